"""The Typer application: parses what ``parse_quickly`` leaves, and words the errors of a command line."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Optional

import typer

from ddplaunch.cli.flags import LAUNCHING, REPEATED, flags_of, spellings
from ddplaunch.cli.help.command_help import HELP
from ddplaunch.cli.help.removed import removed
from ddplaunch.cli.other_spellings import PROCESSES, others_line
from ddplaunch.planning.flag import Flag
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.words import listed, nearest

#: Numbers and lengths of time are text here: ``Flag`` reads them, with errors in our words. All options are lists, to
#: see what was typed twice.
_TEXTS: Any = Optional[list[str]]  # noqa: UP045 - Typer reads it at run time
_TYPES: dict[str, Any] = {
    "argument": Optional[str],  # noqa: UP045
    "switch": Optional[bool],  # noqa: UP045
    "pair": Optional[list[bool]],  # noqa: UP045
}
_NEAR = 0.7


def parse(words: list[str], script: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the values of all flags as Typer understands the command line; ``script`` are the words behind ``--``.

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
        raise _in_our_words(words, script, exception) from exception
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


def _in_our_words(words: list[str], script: Sequence[str] | None, exception: Any) -> UsageError:
    """Return the parser's complaint with a fix; the kinds are told apart by what the exceptions carry."""
    command = words[0] if words and words[0] in HELP else ""
    listed = f"`ddplaunch{' ' + command if command else ''} --help` lists what there is"
    message = exception.format_message().rstrip(".")
    unknown = getattr(exception, "option_name", None)
    kind = type(exception).__name__
    if kind == "NoSuchOption" and unknown:
        return _unknown_option(words, script, unknown, listed)
    if kind == "BadOptionUsage" and unknown and "requires an argument" in message:
        before = " before `--`" if script is not None else ""
        return usage(
            f"`{unknown}` needs a value",
            why=f"the next word is an option, or there is none{before}",
            fix=f"`{unknown} {spellings(flags_of(command))[unknown][0].metavar}`, or leave it out; {listed}",
            where=f"flag: {unknown}",
        )
    if extra := re.search(r"unexpected extra argument(?:s|\(s\))? \((.*)\)$", message):  # as click and Typer word it
        return _extra(command, extra[1], listed)
    return usage(message, why="the command line could not be understood", fix=listed)


def _extra(command: str, extra: str, listed: str) -> UsageError:
    takes = [flag.metavar for flag in flags_of(command) if flag.kind == "argument"] if command else []
    why = f"besides options, `{command}` takes {f'one word, {takes[0]}' if takes else 'no word'}"
    if command in LAUNCHING:
        return usage(
            f"`{extra}` is one word too many",
            why=f"{why}, in front of `--`",
            fix=f"leave it out, or put it behind `--` if it is the script's; {listed}",
        )
    return usage(f"`{extra}` is one word too many", why=why, fix=f"leave it out; {listed}")


def _unknown_option(words: Sequence[str], script: Sequence[str] | None, unknown: str, listed: str) -> UsageError:
    """Return the error for an option that there is not, with the line corrected where its sense is plain."""
    command = words[0] if words[0] in HELP else ""
    if (gone := removed(command, unknown)) is not None:
        return gone
    launches = command in LAUNCHING
    behind = [] if script is None else ["--", *script]
    if launches and unknown[1:].isdigit():
        return usage(
            f"`{unknown}` is not a number of processes",
            why="NPROC is a positive integer, `auto` (every visible GPU) or `NxM` (N nodes of M)",
            fix="`ddplaunch run 4 -- train.py`",
        )
    there = [*spellings(flags_of(command)), "--help"] if command else ["--version", "--help", "--install-completion"]
    near = nearest(unknown, there, cutoff=_NEAR)
    at = next((at for at, word in enumerate(words) if word.partition("=")[0] == unknown), None)
    if launches and unknown.replace("_", "-") in (*PROCESSES, "--standalone"):
        return _number_of_processes(words, unknown, at)
    fix = listed
    if near and at is not None:
        line = ["ddplaunch", *words[:at], words[at].replace(unknown, near, 1), *words[at + 1 :], *behind]
        fix = f"did you mean `{shlex.join(line)}`?"
    elif launches and at is not None and script:
        value = [word for word in words[at + 1 : at + 2] if "=" not in words[at] and not word.startswith("-")]
        own = [*words[:at], *words[at + 1 + len(value) :]]
        moved = shlex.join(["ddplaunch", *own, *behind, words[at], *value])
        whole = shlex.quote("=".join((words[at], *value)))
        fix = f"`{moved}` if it is the script's, `--torchrun-arg={whole}` if it is torchrun's; {listed}"
        if translated := others_line(words[at], value, script):
            fix = f"`{translated}` says what stands for it here; `{moved}` if it is the script's"
    elif launches:
        fix = f"put it behind `--` if it is the script's, into `--torchrun-arg` if it is torchrun's; {listed}"
    if near and launches:
        fix += " An option of the script goes behind `--`"
    return usage(f"there is no option `{unknown}`", why="it is not one of ddplaunch's", fix=fix)


def _number_of_processes(words: Sequence[str], unknown: str, at: int | None) -> UsageError:
    """Return the error for another launcher's number of processes or nodes that could not be read as ddplaunch's."""
    typed = words[at] if at is not None else unknown
    following = words[at + 1 : at + 2] if at is not None and "=" not in typed else []
    typed = " ".join((typed, *(word for word in following if not word.startswith("-") and unknown != "--standalone")))
    why = "it is read as NPROC, processes per node, where that is a number of its own: not beside another one"
    if unknown.replace("_", "-") not in ("--nproc-per-node", "--nproc", "--num-gpus"):
        why = "it counts the processes of all nodes: it needs one number of nodes that divides it, and no other NPROC"
    number = typed.replace("=", " ").partition(" ")[2]
    if not number and unknown != "--standalone":
        return usage(
            f"`{unknown}` needs a value", why="it is a number of processes", fix="`ddplaunch run 4 -- train.py`"
        )
    if not number.isdecimal() and unknown != "--standalone":
        return usage(
            f"`{typed}` is not a number of processes",
            why="NPROC is a positive integer, `auto` (every visible GPU) or `NxM` (N nodes of M)",
            fix="`ddplaunch run 4 -- train.py`",
        )
    if unknown == "--standalone":
        return usage(
            "`--standalone` means one node",
            why="the launch has several, or a range",
            fix="leave `--standalone` out, or `--nnodes`",
            where="flag: --standalone",
        )
    return usage(
        f"`{typed}` is not read here",
        why=why,
        fix="give the processes of each node as a number alone: `ddplaunch run 4 -- train.py`, `run 2x4` for 2 nodes",
        where=f"flag: {unknown}",
    )
