"""From the words of a command line to the command: parsed, refused where it is plain nonsense, and called."""

from __future__ import annotations

from typing import Any

from ddplaunch.cli.parsing.command import COMMANDS, LAUNCHING, body_of, own_values
from ddplaunch.cli.parsing.removed import called_otherwise, removed
from ddplaunch.cli.parsing.typed_words import parse_quickly, said_on_command_line
from ddplaunch.cli.target import misplaced_script, split_arguments
from ddplaunch.values.finding import ExitStatus, RefusedError, UsageError
from ddplaunch.values.words import needs_linux


def dispatch(words: list[str]) -> int:
    """Parse and execute; return the exit status. Raises DdplaunchError with what is wrong."""
    ours, script = split_arguments(words)
    names_nothing = not ours
    if names_nothing or ours[0] == "help":
        ours = [*ours[1:], "--help"]
    command = ours[0]
    if (removal := _removed(ours)) is not None:
        raise removal
    if command in COMMANDS and command not in (*LAUNCHING, "convert"):
        ours += script or []  # there it ends the options, as everywhere else
    asks_for_help = bool({"-h", "--help"} & {*ours})
    if command in LAUNCHING and not asks_for_help and (problem := misplaced_script(ours, script)) is not None:
        raise problem
    values = parse_quickly(command, ours[1:]) if command in COMMANDS and not asks_for_help else None
    if values is None:
        from ddplaunch.cli.parsing.typer_app import parse_words  # takes longer than deciding a launch

        values = parse_words(ours)
        if values is None:  # it showed help
            return ExitStatus.USAGE if names_nothing else ExitStatus.DONE
    if (missing := needs_linux(_what_is_done(command, values))) is not None:
        raise RefusedError(missing)
    return int(body_of(command)(**_beside_own(command, values, script), **own_values(command, values)))


def _what_is_done(command: str, values: dict[str, Any]) -> str:
    """Return the command, with the flag that makes something else of it on systems that are not Linux."""
    flags = {"doctor": ("list_checks",), "plan": ("hosts", "hostfile")}.get(command, ())
    special = next((name for name in flags if values.get(name)), None)
    return command if special is None else f"{command} --{'hosts' if command == 'plan' else special}"


def _beside_own(command: str, values: dict[str, Any], script: list[str] | None) -> dict[str, Any]:
    """Return what a command gets beside its own options: those of a launch, and the words after ``--``."""
    if command in LAUNCHING:
        return {"said": said_on_command_line(values), "script": script}
    return {"line": script} if command == "convert" else {}


def _removed(ours: list[str]) -> UsageError | None:
    """Return the error for the first word that names what is gone, or called otherwise; None where none does."""
    command, *words = ours
    if command not in COMMANDS:
        return removed(command)
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    answers = [removed(command, word) for word in options if word.startswith("--")]
    answers += [called_otherwise(word) for word in options if command in LAUNCHING]
    return next((removal for removal in answers if removal is not None), None)
