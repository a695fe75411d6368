"""The ``ddplaunch`` command: splits off the script's arguments, has the rest parsed, and reports errors."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddplaunch import __version__
from ddplaunch.cli.streams import answer, end_with_starter, say, tell, tell_findings
from ddplaunch.values.finding import DdplaunchError, ExitStatus, RefusedError, UsageError, usage

_ASKED_BY_SHELL = "_DDPLAUNCH_COMPLETE"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    words = list(sys.argv[1:] if argv is None else argv)
    occupy_standard_descriptors()
    if _ASKED_BY_SHELL in os.environ:
        from ddplaunch.cli.parsing.typer_app import answer_shell

        answer_shell()
    end_with_starter()
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # nothing needed tidying up before
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = _dispatch_and_report(words)
    except KeyboardInterrupt:
        status = int(ExitStatus.INTERRUPTED)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nothing is left to tidy up
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)


def _dispatch_and_report(words: list[str]) -> int:
    try:
        if (status := _of_itself(words)) is not None:
            return status
        return dispatch(words)
    except DdplaunchError as problem:
        return _report(words, problem)
    except Exception as exception:
        unwritable = _unwritable(exception)
        return _bug(exception) if unwritable is None else _report(words, unwritable)


def dispatch(words: list[str]) -> int:
    """Parse and execute a command line; return the exit status. Raises DdplaunchError for whatever is wrong."""
    # imported here because `--version` needs none of them
    from ddplaunch.cli.parsing.command import COMMANDS, LAUNCHING, body_of, own_values
    from ddplaunch.cli.parsing.typed_words import parse_quickly
    from ddplaunch.cli.target import misplaced_script, split_arguments
    from ddplaunch.values.words import needs_linux

    ours, script = split_arguments(words)
    names_nothing = not ours
    if names_nothing or ours[0] == "help":
        ours = [*ours[1:], "--help"]
    command = ours[0]
    asks_for_help = bool({"-h", "--help"} & {*ours})
    if command in COMMANDS and command not in (*LAUNCHING, "convert"):
        ours += script or []  # after `--` these commands take arguments, as other programs do
    values = parse_quickly(command, ours[1:]) if command in COMMANDS and not asks_for_help else None
    if values is None:
        from ddplaunch.cli.parsing.removed import removed  # a table that only mistakes need

        if (removal := removed(*ours, script=script)) is not None:
            raise removal
    if command in LAUNCHING and not asks_for_help and (problem := misplaced_script(ours, script)) is not None:
        raise problem
    if values is None:
        from ddplaunch.cli.parsing.typer_app import parse_words  # this import takes longer than deciding a launch

        values = parse_words(ours, script)
        if values is None:  # Typer showed help
            return ExitStatus.USAGE if names_nothing else ExitStatus.DONE
    if (missing := needs_linux(_what_is_done(command, values))) is not None:
        raise RefusedError(missing)
    return int(body_of(command)(**_beside_own(command, values, script), **own_values(command, values)))


def _what_is_done(command: str, values: dict[str, Any]) -> str:
    """Return the command, with a flag that decides whether it works on systems other than Linux."""
    if command == "doctor" and values["list_checks"]:
        return "doctor --list_checks"
    return "plan --hosts" if command == "plan" and (values["hosts"] or values["hostfile"]) else command


def _beside_own(command: str, values: dict[str, Any], script: list[str] | None) -> dict[str, Any]:
    """Return a command's arguments besides its own options: those of a launch, and the words after ``--``."""
    from ddplaunch.cli.parsing.command import LAUNCHING
    from ddplaunch.cli.parsing.typed_words import TypedLaunch, said_on_command_line

    if command in LAUNCHING:
        return {"typed": TypedLaunch(said_on_command_line(values), script, values["profile"])}
    return {"line": script} if command == "convert" else {}


def occupy_standard_descriptors() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr.

    Otherwise the next file to be opened, such as a GPU lock or torchrun's rendezvous, would become stdout of a program.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is ``descriptor``
            os.set_inheritable(descriptor, True)


def _report(words: list[str], problem: DdplaunchError) -> ExitStatus:
    from dataclasses import replace  # `--version` does not need it

    command = words[: [*words, "--"].index("--")]
    fix = f"`{shlex.join(['ddplaunch', *command, '--', 'train.py'])}`"
    tell_findings([replace(one, fix=fix) if one.code == "script-missing" else one for one in problem.findings])
    if done := {"run": "launched", "submit": "submitted"}.get("".join(words[:1])):
        say(f"nothing was {done}")
    return problem.status


def _unwritable(exception: Exception) -> UsageError | None:
    """Return the error for unwritable output, such as a full disk (``> plan.txt``), which is not a bug; None otherwise.

    An error at one of ddplaunch's own files has a file name.
    """
    if not isinstance(exception, OSError) or exception.filename is not None:
        return None
    if exception.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
        return None
    return usage(
        f"stdout cannot be written: {exception.strerror}",
        why="the answer goes there",
        fix="send it to a file system with space left",
        code="stdout-not-writable",
    )


def _of_itself(ours: list[str]) -> ExitStatus | None:
    """Answer questions about ddplaunch itself: its version, a shell's completion; None for any other command line."""
    if " ".join(ours) in ("--version", "-V", "-v", "version"):
        answer(f"ddplaunch {__version__}\n")
        return ExitStatus.DONE
    option, _, shell = "=".join(ours[:2]).partition("=")
    if option == "--install-completion":
        from ddplaunch.cli.parsing.completion import install_completion

        answer(install_completion(shell))
        return ExitStatus.DONE
    return None


def _bug(exception: Exception) -> ExitStatus:
    import traceback

    tell("".join(traceback.format_exception(exception)))
    frame = traceback.extract_tb(exception.__traceback__)[-1]
    tell(
        f"\nthis is a bug in ddplaunch {__version__}, not in your command: {type(exception).__name__} at "
        f"{Path(frame.filename).name}:{frame.lineno}\n"
        "  fix: report it with the lines above and what `ddplaunch env` prints\n"
    )
    return ExitStatus.BUG
