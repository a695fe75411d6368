"""Parses the words of a command line into the options of a launch, and turns options back into words.

A line that is plainly right is parsed here without Typer, whose import takes longer than deciding a launch. Any other
line is left to Typer; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from ddplaunch.cli.parsing.command import PROFILE, REPEATED, options_of, spellings
from ddplaunch.planning.flag import Flag
from ddplaunch.planning.options import Said, flags_of_options
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source

#: Options that also accept several names separated by commas, although they may be repeated.
_LISTS = ("ignore", "exclude")


def with_lists_taken_apart(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a command line with ``--ignore a,b`` and the like split into single names."""
    lists = {
        name: [part for value in values[name] for part in value.split(",") if part]
        for name in _LISTS
        if values.get(name)
    }
    return {**values, **lists}


def parse_quickly(command: str, words: list[str]) -> dict[str, Any] | None:
    """Return the values of all options, None for one that was not given; None alone where Typer has to parse them."""
    options = options_of(command)
    values: dict[str, Any] = {option.name: [] if option.kind in REPEATED else None for option in options}
    spelled = spellings(options)
    arguments = [option.name for option in options if option.kind == "argument"]
    remaining = next((values[option.name] for option in options if option.kind == "arguments"), None)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if arguments:
                values[arguments.pop(0)] = word
            elif remaining is not None:
                remaining.append(word)
            else:
                return None
            continue
        name, equals, attached = word.partition("=")
        option, meaning = spelled.get(name, (None, None))
        if option is None or (equals and (meaning is not None or not name.startswith("--"))):
            return None
        if meaning is not None:
            value: Any = meaning
        elif not equals and not rest:
            return None
        else:
            value = attached if equals else rest.pop(0)
        if option.kind in REPEATED:
            values[option.name].append(value)
        else:
            values[option.name] = value  # the last one counts, as in Typer
    return with_lists_taken_apart(values)


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
