"""From the words of a command line to what was said of a launch, and back to words for another command line."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

from ddplaunch.planning.options import Said, flags_of_options
from ddplaunch.values.finding import usage
from ddplaunch.values.resolved import Resolved, Source

#: Between the names of a list, not in front of a number: `--exclude gpu-a:0,2` are GPUs of one host.
_COMMA = re.compile(r",(?!\d+(?:,|$))")
#: Options that take names in a list with commas, although they may be repeated.
_LISTS = ("ignore", "include", "exclude")


def with_lists_taken_apart(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a command line with each name of ``--ignore a,b`` for itself."""
    lists = {
        name: [part for value in values[name] for part in _COMMA.split(value) if part]
        for name in _LISTS
        if values.get(name)
    }
    return {**values, **lists}


def said_on_command_line(values: dict[str, Any]) -> Said:
    """Return what was typed for the launch, each value with its option as source. Raises UsageError for no number."""
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


def launch_words(said: Said, without: Container[str] = ()) -> list[str]:
    """Return the words of a command line that say what ``said`` does; NPROC is left to the caller."""
    words: list[str] = []
    for option in flags_of_options().values():
        value = said.get(option.name)
        if option.name in without or option.kind == "argument" or value is None:
            continue
        if option.kind in ("switch", "pair"):
            words.append(option.flag if value.value else f"--no-{option.flag[2:]}")
        else:
            items = value if isinstance(value, tuple) else (value,)
            words += [word for item in items for word in spelled(option.flag, str(item.value))]
    return words


def spelled(option: str, value: str) -> list[str]:
    """Return the words of an option with a value that may look like another option."""
    return [f"{option}={value}"] if value.startswith("-") else [option, value]


def whole_number(option: str, text: str, noun: str, why: str, fix: str, least: int = 0) -> int:
    """Return how many ``noun`` an option gives. Raises UsageError for no number, or less than ``least``."""
    if text.isascii() and text.isdecimal() and int(text) >= least:
        return int(text)
    raise usage(f"`{option} {text}` is not a number of {noun}", why=why, fix=fix, where=f"flag: {option}")
