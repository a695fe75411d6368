"""The Typer application: parses what ``quick`` leaves to it, prints help, and words the errors of a command line."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, Optional

import typer

from ddplaunch.cli.flags import HELP, flags_of
from ddplaunch.launch.flag import Flag
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import UsageError, usage

#: Numbers and lengths of time are text here: ``Flag`` reads them, with errors in our words.
_TEXT: Any = Optional[str]  # noqa: UP045 - Typer reads it at run time
_TYPES: dict[str, Any] = {
    "arguments": Optional[list[str]],  # noqa: UP045
    "switch": Optional[bool],  # noqa: UP045
    "pair": Optional[bool],  # noqa: UP045
    "many": Optional[list[str]],  # noqa: UP045
}
_NEAR = 0.7
_WIDEST = 80


def parse(words: list[str]) -> tuple[str, dict[str, Any]] | None:
    """Return (command, values) as Typer understands the command line; None if it was ``--help`` that it answered.

    Raises UsageError in our words for what it does not understand.
    """
    parsed: list[tuple[str, dict[str, Any]]] = []
    app = typer.Typer(
        context_settings={
            "help_option_names": ["-h", "--help"],
            "terminal_width": min(Terminal.of(sys.stdout).width, _WIDEST) - 2,  # Typer would not go below 50
        },
        help="Launch distributed PyTorch: what runs is torchrun, checked and explained.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    for name in HELP:
        app.command(name, help=HELP[name])(_command(name, lambda name, values: parsed.append((name, values))))
    try:
        app(args=words, prog_name="ddplaunch", standalone_mode=False)
    except Exception as exception:
        if not hasattr(exception, "format_message"):
            raise
        raise _in_our_words(words, exception) from exception
    return parsed[0] if parsed else None


def _command(name: str, keep: Callable[[str, dict[str, Any]], None]) -> Callable[..., None]:
    """Return a function with one parameter for each flag, as Typer wants to read them."""

    def command(**values: Any) -> None:
        keep(name, {key: list(value) if isinstance(value, (list, tuple)) else value for key, value in values.items()})

    parameters = [
        inspect.Parameter(
            flag.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=[] if flag.kind in ("many", "arguments") else None,
            annotation=Annotated[_TYPES.get(flag.kind, _TEXT), _described(flag)],
        )
        for flag in flags_of(name)
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _described(flag: Flag) -> Any:
    if flag.kind in ("argument", "arguments"):
        return typer.Argument(help=flag.text, metavar=flag.metavar, show_default=False)
    spelling = f"{flag.flag}/--no-{flag.flag[2:]}" if flag.kind == "pair" else flag.flag
    return typer.Option(
        spelling, help=flag.text, metavar=flag.metavar or None, rich_help_panel=flag.panel, show_default=False
    )


def _in_our_words(words: list[str], exception: Any) -> UsageError:
    """Return the parser's complaint with a fix; the kinds are told apart by what the exceptions carry."""
    command = words[0] if words and words[0] in HELP else ""
    listed = f"`ddplaunch{' ' + command if command else ''} --help` lists what there is"
    message = exception.format_message().rstrip(".")
    unknown = getattr(exception, "option_name", None)
    kind = type(exception).__name__
    if kind == "NoSuchOption" and unknown:
        return _unknown_option(unknown, list(exception.possibilities or []), listed)
    if kind == "BadOptionUsage" and unknown and "requires an argument" in message:
        return usage(
            f"`{unknown}` needs a value",
            why="the next word is an option, or there is none before `--`",
            fix=f"`{unknown} {_metavar(command, unknown)}`, or leave it out; {listed}",
            where=f"flag: {unknown}",
        )
    if not command and words and not words[0].startswith("-"):
        near = difflib.get_close_matches(words[0], list(HELP), n=1)
        return usage(
            f"`{words[0]}` is not a command of ddplaunch",
            why=f"the commands are {', '.join(f'`{name}`' for name in HELP)}",
            fix=f"did you mean `ddplaunch {near[0]}`?" if near else "`ddplaunch run 4 -- train.py`",
        )
    if "unexpected extra argument" in message:
        extra = message.partition("(s) (")[2].rstrip(")") or message
        return usage(
            f"`{extra}` is one word too many",
            why="only one word besides options may come before `--`",
            fix=f"leave it out, or put it behind `--` if it is the script's; {listed}",
        )
    return usage(message, why="the command line could not be understood", fix=listed)


def _metavar(command: str, spelled: str) -> str:
    return next((flag.metavar for flag in flags_of(command) if flag.flag == spelled), "VALUE") if command else "VALUE"


def _unknown_option(unknown: str, near: list[str], listed: str) -> UsageError:
    if unknown[1:].isdigit():
        return usage(
            f"`{unknown}` is not a number of processes",
            why="NPROC is a positive integer, `auto` (every visible GPU) or `NxM` (N nodes of M)",
            fix="`ddplaunch run 4 -- train.py`",
        )
    if unknown.replace("_", "-") in ("--nproc-per-node", "--nproc"):
        fix = "the number stands alone: `ddplaunch run 4 -- train.py`"
    elif near := difflib.get_close_matches(unknown, near, cutoff=_NEAR):
        fix = f"did you mean {' or '.join(f'`{each}`' for each in near)}? An option of the script goes behind `--`"
    else:
        fix = f"put it behind `--` if it is the script's, into `--torchrun-arg` if it is torchrun's; {listed}"
    return usage(f"there is no option `{unknown}`", why="it is not one of ddplaunch's", fix=fix)
