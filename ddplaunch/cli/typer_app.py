"""The Typer application: parses what ``parse_quickly`` leaves, and words the errors of a command line."""

from __future__ import annotations

import difflib
import inspect
import shlex
from collections.abc import Callable
from typing import Annotated, Any, Optional

import typer

from ddplaunch.cli.flags import LAUNCHING, REPEATED, flags_of, spellings
from ddplaunch.cli.help.command_help import HELP
from ddplaunch.cli.other_spellings import PROCESSES
from ddplaunch.launch.flag import Flag
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.words import listed

#: Numbers and lengths of time are text here: ``Flag`` reads them, with errors in our words. All options are lists, to
#: see what was typed twice.
_TEXTS: Any = Optional[list[str]]  # noqa: UP045 - Typer reads it at run time
_TYPES: dict[str, Any] = {
    "argument": Optional[str],  # noqa: UP045
    "switch": Optional[bool],  # noqa: UP045
    "pair": Optional[list[bool]],  # noqa: UP045
}
_NEAR = 0.7


def parse(words: list[str]) -> dict[str, Any]:
    """Return the values of all flags as Typer understands the command line.

    Raises UsageError in our words for what it does not understand.
    """
    parsed: dict[str, Any] = {}
    named = words[0] if words and words[0] in HELP else None
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,  # rich would take 90 ms more
        pretty_exceptions_enable=False,
    )
    for name in [named] if named else HELP:  # one alone answers in half the time: a group has Typer import pydantic
        app.command(name, add_help_option=False)(_command(flags_of(name) if named else (), parsed.update))
    try:
        if named:
            app(args=words[1:], prog_name=f"ddplaunch {named}", standalone_mode=False)
        else:
            app(args=words, prog_name="ddplaunch", standalone_mode=False)
    except Exception as exception:
        if not hasattr(exception, "format_message"):
            raise
        raise _in_our_words(words, exception) from exception
    return parsed


def _command(flags: tuple[Flag, ...], keep: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
    """Return a function with one parameter for each flag, as Typer wants to read them."""

    def command(**values: Any) -> None:
        keep({flag.name: _value(flag, values[flag.name]) for flag in flags})

    parameters = [
        inspect.Parameter(
            flag.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=[] if flag.kind in REPEATED else None,
            annotation=Annotated[_TYPES.get(flag.kind, _TEXTS), _described(flag)],
        )
        for flag in flags
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _value(flag: Flag, typed: Any) -> Any:
    """Return what a flag says. Raises UsageError for two values of one that takes one."""
    if flag.kind in REPEATED:
        return list(typed or ())
    if flag.kind in ("argument", "switch") or not typed:
        return None if typed == [] else typed
    if flag.kind == "pair" and len(set(typed)) > 1:
        raise usage(
            f"`{flag.flag}` and `--no-{flag.flag[2:]}` are both given",
            why="one is the opposite of the other",
            fix="keep the one that you mean",
            where=f"flag: {flag.flag}",
        )
    if flag.kind != "pair" and len(typed) > 1:
        said = [f"{flag.flag} {shlex.quote(each)}" for each in typed]
        raise usage(
            f"`{flag.flag}` is given {len(said)} times: {listed([f'`{each}`' for each in said], last=' and ')}",
            why="it takes one value, and which one you mean is not clear",
            fix=f"keep one of them, as in `{said[-1]}`",
            where=f"flag: {flag.flag}",
        )
    return typed[0]


def _described(flag: Flag) -> Any:
    if flag.kind in ("argument", "arguments"):
        return typer.Argument(metavar=flag.metavar)
    spelling = f"{flag.flag}/--no-{flag.flag[2:]}" if flag.kind == "pair" else flag.flag
    return typer.Option(spelling, metavar=flag.metavar or None)


def _in_our_words(words: list[str], exception: Any) -> UsageError:
    """Return the parser's complaint with a fix; the kinds are told apart by what the exceptions carry."""
    command = words[0] if words and words[0] in HELP else ""
    listed = f"`ddplaunch{' ' + command if command else ''} --help` lists what there is"
    message = exception.format_message().rstrip(".")
    unknown = getattr(exception, "option_name", None)
    kind = type(exception).__name__
    if kind == "NoSuchOption" and unknown:
        return _unknown_option(command, unknown, listed)
    if kind == "BadOptionUsage" and unknown and "requires an argument" in message:
        return usage(
            f"`{unknown}` needs a value",
            why="the next word is an option, or there is none before `--`",
            fix=f"`{unknown} {spellings(flags_of(command))[unknown][0].metavar}`, or leave it out; {listed}",
            where=f"flag: {unknown}",
        )
    if "unexpected extra argument" in message:
        extra = message.partition("(s) (")[2].rstrip(")") or message
        return usage(
            f"`{extra}` is one word too many",
            why="only one word besides options may come before `--`",
            fix=f"leave it out, or put it behind `--` if it is the script's; {listed}",
        )
    return usage(message, why="the command line could not be understood", fix=listed)


def _unknown_option(command: str, unknown: str, listed: str) -> UsageError:
    launches = command in LAUNCHING
    if launches and unknown[1:].isdigit():
        return usage(
            f"`{unknown}` is not a number of processes",
            why="NPROC is a positive integer, `auto` (every visible GPU) or `NxM` (N nodes of M)",
            fix="`ddplaunch run 4 -- train.py`",
        )
    there = [*spellings(flags_of(command)), "--help"] if command else ["--version", "--help"]
    near = difflib.get_close_matches(unknown, there, cutoff=_NEAR)
    if launches and unknown.replace("_", "-") in PROCESSES:
        fix = "the number stands alone: `ddplaunch run 4 -- train.py`"
    elif near:
        behind = "? An option of the script goes behind `--`" if launches else "?"
        fix = f"did you mean {' or '.join(f'`{each}`' for each in near)}{behind}"
    elif launches:
        fix = f"put it behind `--` if it is the script's, into `--torchrun-arg` if it is torchrun's; {listed}"
    else:
        fix = listed
    return usage(f"there is no option `{unknown}`", why="it is not one of ddplaunch's", fix=fix)
