"""The ``ddplaunch`` command: splits off the script's arguments, runs a command, and reports what it raises."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ddplaunch import __version__
from ddplaunch.cli.flags import LAUNCHING, own_values, parse_quickly, said_on_command_line
from ddplaunch.cli.help.command_help import HELP, asks_for_help
from ddplaunch.cli.other_spellings import as_spelled_here, unknown_command
from ddplaunch.cli.streams import answer, end_with_starter, say, tell, tell_findings
from ddplaunch.cli.target import misplaced_script, split_arguments
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import DdplaunchError, ExitStatus, RefusedError, UsageError, usage
from ddplaunch.values.words import needs_linux

_ASKED_BY_SHELL = "_DDPLAUNCH_COMPLETE"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    words = list(sys.argv[1:] if argv is None else argv)
    occupy_standard_descriptors()
    if _ASKED_BY_SHELL in os.environ:
        from ddplaunch.cli.help.completion import answer_shell

        text, found = answer_shell(os.environ)
        answer(f"{text}\n")
        sys.exit(found)
    end_with_starter()
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # until here there was nothing to tidy up
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = _dispatch_and_report(words)
    except KeyboardInterrupt:
        status = int(ExitStatus.INTERRUPTED)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nor is there from here on
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)


def _dispatch_and_report(words: list[str]) -> int:
    try:
        return dispatch(words)
    except DdplaunchError as problem:
        return _report(words, problem)
    except Exception as exception:
        unwritable = _unwritable(exception)
        return _bug(exception) if unwritable is None else _report(words, unwritable)


def occupy_standard_descriptors() -> None:
    """Open /dev/null in the place of a closed stdin, stdout or stderr.

    The next file that is opened, a GPU lock or the rendezvous of torchrun, would otherwise become somebody's stdout.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(descriptor, True)


def _report(words: list[str], problem: DdplaunchError) -> ExitStatus:
    tell_findings(problem.findings)
    if words[:1] == ["run"]:
        say("nothing was launched")
    if words[:1] == ["submit"]:
        say("nothing was submitted")
    return problem.status


def _unwritable(exception: Exception) -> UsageError | None:
    """A full disk behind ``> plan.txt`` is no bug; an error at a file of ours carries its name."""
    if not isinstance(exception, OSError) or exception.filename is not None:
        return None
    if exception.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
        return None
    return usage(
        f"stdout cannot be written: {exception.strerror}",
        why="what was asked for goes there",
        fix="send it to a file system with space left",
        code="stdout-not-writable",
    )


def dispatch(words: list[str]) -> int:
    """Parse and execute; return the exit status. Raises DdplaunchError with what is wrong."""
    ours, script = split_arguments(words)
    command = ours[0] if ours else ""
    if (status := _of_itself(ours, script)) is not None:
        return status
    if command in HELP and command not in (*LAUNCHING, "convert"):
        ours += script or []  # there it ends the options, as everywhere else
    if command in HELP:
        ours = [command, *as_spelled_here(command, ours[1:])]
    if command in LAUNCHING:
        problem = misplaced_script(ours, script)
        if problem is not None:
            raise problem
    if command == "plan":
        ours = _bare_env(ours)
    values = parse_quickly(command, ours[1:]) if command in HELP else None
    if values is None:
        from ddplaunch.cli.typer_app import parse  # takes longer than deciding a launch

        values = parse(ours, script)
    if (missing := needs_linux(_what_is_done(command, values))) is not None:
        raise RefusedError(missing)
    function = getattr(import_module(f"ddplaunch.cli.commands.{command}"), command)
    return int(function(**_behind(command, values, script), **own_values(command, values)))


def _what_is_done(command: str, values: dict[str, Any]) -> str:
    """Return the command, with the flag that makes something else of it on systems that are not Linux."""
    flags = {"doctor": ("list_checks",), "plan": ("hosts", "hostfile")}.get(command, ())
    special = next((name for name in flags if values.get(name)), None)
    return command if special is None else f"{command} --{'hosts' if command == 'plan' else special}"


def _behind(command: str, values: dict[str, Any], script: list[str] | None) -> dict[str, Any]:
    """Return what a command gets beside its own flags: those of a launch, and the words behind ``--``."""
    if command in LAUNCHING:
        return {"said": said_on_command_line(values), "script": script}
    return {"line": script} if command == "convert" else {}


def _of_itself(ours: list[str], script: list[str] | None) -> ExitStatus | None:
    """Answer what asks for ddplaunch itself: its version, help, a shell's completion; None for all else.

    Raises UsageError for a first word that is no command.
    """
    if ours in (["--version"], ["-V"], ["-v"], ["version"]):
        answer(f"ddplaunch {__version__}\n")
        return ExitStatus.DONE
    behind = ours[1:] if ours[:1] == ["help"] else ours
    command = behind[0] if behind else ""
    if command and not command.startswith("-") and command not in HELP:
        raise unknown_command(behind, script)
    if not ours or asks_for_help(ours):
        from ddplaunch.cli.help.pages import page

        answer(page(ours, Terminal.of(sys.stdout)))
        return ExitStatus.DONE if ours else ExitStatus.USAGE
    if command.partition("=")[0] in ("--install-completion", "--show-completion"):
        from ddplaunch.cli.help.completion import set_up_shell

        answer(set_up_shell(ours))
        return ExitStatus.DONE
    return None


def _bare_env(words: list[str]) -> list[str]:
    """Read ``plan --env`` without NAME=VALUE behind it as the output format that it names."""
    pairs = zip(words, [*words[1:], "-"], strict=True)
    return ["--exports" if word == "--env" and following.startswith("-") else word for word, following in pairs]


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
