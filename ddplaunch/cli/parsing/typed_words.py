"""Parses the words of a command line into the options of a launch, and turns options back into words.

Typer would do it as well; its import takes longer than deciding a launch, and it knows nothing of a script.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from ddplaunch.cli.parsing.command import LAUNCHING, PROFILE, REPEATED, options_of, spellings
from ddplaunch.cli.target import is_quoted, names_script
from ddplaunch.planning.flag import Flag
from ddplaunch.planning.options import Said, flags_of_options
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source

#: Options that also accept several names separated by commas, although they may be repeated.
_LISTS = ("ignore", "exclude")


class Misread(Exception):
    """Raised with the place of the first word that is not understood, and what it is."""


def parse(words: Sequence[str], script: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the values of all options of a command, None for one that was not given. Raises Misread.

    ``words`` are those before ``--`` with the command, ``script`` those after it.
    """
    command, options = words[0], options_of(words[0])
    values: dict[str, Any] = {option.name: [] if option.kind in REPEATED else None for option in options}
    spelled = spellings(options)
    arguments = [option for option in options if option.kind in ("argument", "arguments")]
    # The first argument of submit is no script, and one before `--` rather a number that is misspelt.
    at, count = 1, int(script is None and command != "submit")
    while at < len(words):
        word = words[at]
        is_argument = word[:1] != "-" or word == "-"
        if command in LAUNCHING and (kind := _of_script(word, count, is_argument=is_argument)):
            raise Misread(at, kind)
        if not is_argument:
            option, value, size = _option(words, at, spelled)
        elif not arguments:
            raise Misread(at, "argument")
        else:
            option, value, size = arguments.pop(0), word, 1
            arguments[:0] = [option] * (option.kind == "arguments")
        at, count = at + size, count + is_argument
        if option.kind in REPEATED:
            values[option.name] += filter(None, value.split(",")) if option.name in _LISTS else [value]
        else:
            values[option.name] = value  # the last one counts
    if command in LAUNCHING and script:
        if script[0][:2] == "--" and any(word.endswith(".py") for word in script):
            raise Misread(at + 1, "order")
        if is_quoted(script[0]) and " -- " not in script[0]:
            raise Misread(at + 1, "quotes")
    return values


def _of_script(word: str, count: int, *, is_argument: bool) -> str:
    """Return what a word is that belongs after ``--``, if it does; ``count`` arguments stand before it."""
    if is_argument and is_quoted(word):
        return "quotes"
    return "script" if word == "-m" or (is_argument and names_script(word, count)) else ""


def _option(words: Sequence[str], at: int, spelled: Mapping[str, tuple[Flag, bool | None]]) -> tuple[Flag, Any, int]:
    """Return the option at a place in the line, its value, and how many words both are. Raises Misread."""
    name, equals, value = words[at].partition("=")
    if name[1] != "-" and name[:2] in spelled and len(words[at]) > 2:  # -n5
        name, equals, value = name[:2], "=", words[at][2:]
    if (found := spelled.get(name.replace("_", "-"))) is None:
        raise Misread(at, "option")
    option, meaning = found
    if meaning is not None:
        if equals:
            raise Misread(at, "switch")
        return option, meaning, 1
    if not equals and at + 1 == len(words):
        raise Misread(at, "value")
    return (option, value, 1) if equals else (option, words[at + 1], 2)


def said_on_command_line(values: dict[str, Any]) -> Said:
    """Return the typed launch options, each with its flag as source. Raises UsageError for an invalid number."""
    said: dict[str, Any] = {}
    for option in flags_of_options().values():
        value = values[option.name]
        if value is None or value == []:
            continue
        source = Source("flag", "--no-" + option.flag[2:] if value is False else option.shown)
        several = isinstance(value, list)
        said[option.name] = (
            tuple(Resolved(item, source) for item in value) if several else Resolved(option.typed(value), source)
        )
    return said


@dataclass(frozen=True)
class TypedLaunch:
    """A launch as typed: its options with their sources, the words after ``--`` (None without it), and its profile."""

    said: Said
    script: list[str] | None = None
    profile: str | None = None

    @property
    def nproc(self) -> str | None:
        """NPROC as typed, None without it."""
        return str(self.said["nproc"].value) if "nproc" in self.said else None

    def words(self, without: Container[str] = ()) -> list[str]:
        """Return the words of a command line for the profile and the options; the caller adds NPROC."""
        return [*words_of(PROFILE, self.profile), *launch_words(self.said, without)]


def launch_words(typed: Said, without: Container[str] = ()) -> list[str]:
    """Return the words of a command line for the options in ``typed``; the caller adds NPROC."""
    words: list[str] = []
    for option in flags_of_options().values():
        if option.name in typed and option.name not in without and option.kind != "argument":
            value = typed[option.name]
            words += words_of(option, [item.value for item in value] if isinstance(value, tuple) else value.value)
    return words


def words_of(option: Flag, value: Any) -> list[str]:
    """Return the words that give an option its value, or each of a list of values; none for None."""
    if value is None:
        return []
    if option.kind in ("switch", "pair"):
        return [option.flag if value else f"--no-{option.flag[2:]}"]
    return [
        word for item in (value if isinstance(value, list) else [value]) for word in spelled(option.flag, str(item))
    ]


def spelled(option: str, value: str) -> list[str]:
    """Return the words of an option and its value, joined by ``=`` where the value looks like another option."""
    return [f"{option}={value}"] if value.startswith("-") else [option, value]


def whole_number(option: str, text: str, noun: str, why: str, fix: str, least: int = 0) -> int:
    """Return an option's number of ``noun``. Raises UsageError for text that is no number, or less than ``least``."""
    if text.isascii() and text.isdecimal() and len(text) <= 30 and int(text) >= least:  # int() refuses thousands
        return int(text)
    raise usage(f"`{option} {text}` is not a number of {noun}", why=why, fix=fix, where=f"flag: {option}")
