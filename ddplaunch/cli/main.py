"""The ``ddplaunch`` command: splits off the script's arguments, dispatches, and is the one error boundary."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from ddplaunch import __version__
from ddplaunch.cli.say import tell, tell_findings
from ddplaunch.cli.target import misplaced_script, split_arguments
from ddplaunch.errors import DdplaunchError, ExitStatus, usage

#: Command -> module under ``ddplaunch.cli`` that holds the function of the same name; only the one asked for is loaded.
_COMMANDS = {
    "run": "Check, plan, and become torchrun.",
    "plan": "Show everything that run would decide; start nothing.",
    "doctor": "Check this machine.",
    "explain": "Describe a check by the code of its finding.",
}
_LAUNCHING = ("run", "plan", "doctor")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = dispatch(words)
    except KeyboardInterrupt:
        status = ExitStatus.INTERRUPTED
    except DdplaunchError as problem:
        tell_findings(problem.findings)
        tell("nothing was launched\n" if words[:1] == ["run"] else "")
        status = problem.status
    except Exception as exception:
        status = _bug(exception)
    sys.exit(int(status))


def dispatch(words: list[str]) -> int:
    """Parse and execute; return the exit status. Raises DdplaunchError with what is wrong."""
    ours, script = split_arguments(words)
    if script is None and ours[:1] and ours[0] in _LAUNCHING and "--help" not in ours:
        problem = misplaced_script(ours)
        if problem is not None:
            raise problem
    if ours[:1] == ["plan"]:
        ours = _bare_env(ours)
    app = application(ours[0] if ours else None)
    try:
        result = app(args=ours, prog_name="ddplaunch", obj=script, standalone_mode=False)
    except Exception as exception:
        if not hasattr(exception, "format_message"):
            raise
        raise usage(
            exception.format_message().rstrip("."),
            why="the command line could not be understood",
            fix=f"`ddplaunch{' ' + ours[0] if ours and ours[0] in _COMMANDS else ''} --help` lists what there is",
        ) from exception
    return int(result or 0)


def application(command: str | None) -> Callable[..., Any]:
    """Return the Typer application; only ``command`` is really imported, the others are named for ``--help``."""
    app = typer.Typer(
        help="Launch distributed PyTorch: what runs is torchrun, checked and explained.",
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_version)
    for name, text in _COMMANDS.items():
        function = getattr(import_module(f"ddplaunch.cli.{name}"), name) if name == command else _placeholder
        app.command(name, help=text)(function)
    return app


def _placeholder() -> None:
    """Stand in for a command that this invocation does not run."""


def _version(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=lambda value: _print(value)
    ),
) -> None:
    pass


def _print(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"ddplaunch {__version__}\n")
        raise typer.Exit()


def _bare_env(words: list[str]) -> list[str]:
    """Read ``plan --env`` without NAME=VALUE behind it as the output format that it names."""
    result = []
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else "-"
        result.append("--exports" if word == "--env" and following.startswith("-") else word)
    return result


def _bug(exception: Exception) -> ExitStatus:
    import traceback

    tell("".join(traceback.format_exception(exception)))
    where = traceback.extract_tb(exception.__traceback__)[-1]
    tell(
        f"\nthis is a bug in ddplaunch {__version__}, not in your command: {type(exception).__name__} at "
        f"{Path(where.filename).name}:{where.lineno}\n"
        "  fix: report it with the lines above and `ddplaunch doctor --report -`\n"
    )
    return ExitStatus.BUG
