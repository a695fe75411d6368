"""Reads a line, and answers words that it does not understand: with the line to type, which it reads again first, or,
of what was removed, with what to use instead.

``removed.toml`` has the names of that, and of what is another launcher's; it is read only for a mistake.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddplaunch.cli.parsing.command import COMMANDS, LAUNCHING, options_of, spellings
from ddplaunch.cli.parsing.typed_words import Misread, parse, said_on_command_line
from ddplaunch.cli.target import parse_target, split_arguments
from ddplaunch.planning.options import parse_options
from ddplaunch.script.read import read_script
from ddplaunch.script.script_report import DeclaredOption
from ddplaunch.values.codec import toml_beside
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.words import nearest

_ELSEWHERE = "; what belongs to the script goes after `--`, to torchrun into `--torchrun-arg=…`"


def understood(words: Sequence[str], script: Sequence[str] | None) -> dict[str, Any]:
    """Return the values of all options of a line: its words before ``--``, and those after it.

    Raises UsageError for the first word that is not understood; its fix is the corrected line, if that is understood.
    """
    try:
        if words[0] in COMMANDS:
            return parse(words, script)
        raise Misread(0, "command")
    except Misread as misread:
        raise removed(*words, script=script) or _mistake(words, script, *misread.args) from None


def corrected_line(words: Sequence[str], script: Sequence[str] | None) -> str:
    """Return a command line to type, in backticks, if it is understood; else the one that corrects it, or nothing."""
    try:
        values = understood(words, script)
        if words[0] in LAUNCHING:  # what `scale` takes for NPROC is a list
            parse_options(said_on_command_line(values | {"nproc": None} if words[0] == "scale" else values))
    except UsageError as problem:
        return "".join(re.findall("^`ddplaunch [^`]*`$", problem.findings[0].fix))
    line = words if script is None else [*words, "--", *script]
    return f"`{shlex.join(['ddplaunch', *line])}`"


def rows() -> dict[str, dict[str, str]]:
    """Return the row of each name in ``removed.toml``."""
    return {name: row for row in toml_beside(__file__, "removed.toml")["removed"] for name in row["names"]}


def removed(*words: str, script: Sequence[str] | None = None) -> UsageError | None:
    """Return the error for the first word of a line that is not ddplaunch's, for a missing ``run``, or for a line that
    is nearly right; else None.

    The fix is the corrected line, if that is a whole launch and the table knows ddplaunch's words for all of it.
    """
    text, what = "\0".join(words), ""
    for nearly in toml_beside(__file__, "removed.toml")["nearly"]:
        text, changes = re.subn(nearly["pattern"], nearly["instead"], text)
        what = nearly["what"] if changes else what
    row_by_name, rest, line, instead = rows(), text.split("\0"), list[str](), ""
    first = rest[0]
    if first not in {*COMMANDS, *row_by_name}:
        line, what = ["run"], what or f"no such command: `{first}`"
    while rest and not rest[0].endswith(".py"):  # what follows is the script's
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        of_command = f"{first} {name}"
        known = of_command if of_command in row_by_name else name
        if known not in row_by_name or (line and word[:1] != "-"):
            line.append(word)
            continue
        row = row_by_name[known]
        what, instead = what or f"there is no `{known}`", instead or row["instead"]
        # without `ours` only the user knows what to type
        line += [*row.get("ours", "…").split(), *[value] * bool(equals)]
    fix = corrected_line([*line, *rest], script) if what and "…" not in line else ""
    if " -- " not in fix:
        fix = instead
    return usage(what, why="", fix=fix) if fix else None


def _mistake(words: Sequence[str], script: Sequence[str] | None, at: int, kind: str) -> UsageError:
    """Return the error for the word that was misread, with the corrected line, or with where to look."""
    command, after = words[0], list(script or ())
    before, word, behind = words[:at], [*words, "--", *after][at], words[at + 1 :]
    name = word.partition("=")[0].replace("_", "-")
    what, why, fix, code = f"no such {kind}: `{name}`", "", "", "usage"
    options = spellings(options_of(command)) if at else {}
    if kind == "script":
        what, code = f"there is no `--` before `{word}`", "separator-missing"
        why = "everything after `--` is the script and its arguments, everything before it options of ddplaunch"
        # every rank would start what torchrun itself is: all ranks
        fix = corrected_line(before, [*words[at + (word == "torchrun") :], *after]) or f"put `--` before `{word}`"
    elif kind == "order":
        what, code = f"`{word}` after `--` is not a script", "script-not-found"
        why = "options of ddplaunch go before `--`, the script and its options after it"
        first = next(place for place, each in enumerate(after) if each.endswith(".py"))
        own, after = after[:first], after[first:]
        fix = corrected_line([*words, *own], after) or corrected_line(words, [*after, *own])
    elif kind == "quotes":
        what, why, code = f"`{word}` is one word", "quotes make it one, and no file has that name", "script-not-found"
        parts = [*before, *word.split(), *behind, *["--"] * bool(after), *after[at > len(words) :]]
        fix = corrected_line(*split_arguments(parts)) or f"leave out the quotes: `{word}`"
    elif kind == "switch":
        what, fix = f"`{name}` takes no value", corrected_line([*before, name, *behind], script)
    elif kind == "value":
        option, _ = options[name]
        what, why, fix = f"`{name}` lacks its value", option.text, f"`{name} {option.example or option.metavar}`"
    elif kind != "argument":
        of_script = {flag: each.takes_value for each in _declared(script) for flag in each.flags if flag not in options}
        names = [*options, *of_script] if at else [*COMMANDS, "--version", "--install-completion"]
        near = nearest(name.lower(), names, 0.75 if at else 0.6) or name
        corrected = near + word[len(name) :]
        if near in of_script:
            size = of_script[near] and corrected == near  # words that go along
            why = "it is an option of the script, and goes after `--`"
            fix = corrected_line([*before, *behind[size:]], [*after, corrected, *behind[:size]])
        elif near != name:
            fix = corrected_line([*before, corrected, *behind], script) or f"did you mean `{near}`?"
    if not at:
        fix = fix or "`ddplaunch --help` lists the commands; a launch is `ddplaunch run -- train.py`"
    elsewhere = _ELSEWHERE if command in LAUNCHING else ""
    return usage(what, why=why, fix=fix or f"`ddplaunch {command} --help` lists the options{elsewhere}", code=code)


def _declared(script: Sequence[str] | None) -> tuple[DeclaredOption, ...]:
    """Return the options that a script declares, none where it cannot be read."""
    with suppress(UsageError):
        return read_script(Path(parse_target(script or ()).name), Path.cwd()).options
    return ()
