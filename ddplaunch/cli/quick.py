"""Parses a correct command line without Typer, from the same flags; everything else, ``--help`` included, is Typer's.

Importing Typer and building its application takes 65 to 100 ms, more than the rest of a launch until torchrun.
"""

from __future__ import annotations

from typing import Any

from ddplaunch.cli.flags import flags_of
from ddplaunch.launch.flag import Flag


def parse(command: str, words: list[str]) -> dict[str, Any] | None:
    """Return the value of every flag by name, None where it was not given; None if Typer has to look.

    It accepts a subset of what Typer accepts, with the same result; a test holds the two against each other.
    """
    flags = flags_of(command)
    values: dict[str, Any] = {flag.name: [] if flag.kind in ("many", "arguments") else None for flag in flags}
    spelled = _spellings(flags)
    arguments = [flag.name for flag in flags if flag.kind == "argument"]
    all_others = next((values[flag.name] for flag in flags if flag.kind == "arguments"), None)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if arguments:
                values[arguments.pop(0)] = word
            elif all_others is not None:
                all_others.append(word)
            else:
                return None
            continue
        name, equals, attached = word.partition("=")
        if name not in spelled:
            return None
        flag, meaning = spelled[name]
        if meaning is not None:
            if equals:
                return None
            values[flag.name] = meaning
            continue
        if not equals and (not rest or rest[0].startswith("-")):
            return None
        value = attached if equals else rest.pop(0)
        if flag.kind == "many":
            values[flag.name].append(value)
        else:
            values[flag.name] = value
    return values


def _spellings(flags: tuple[Flag, ...]) -> dict[str, tuple[Flag, bool | None]]:
    """Return each spelling with its flag and, for one that takes no value, what it means."""
    found: dict[str, tuple[Flag, bool | None]] = {}
    for flag in flags:
        if flag.kind in ("argument", "arguments"):
            continue
        found[flag.flag] = (flag, True if flag.kind in ("switch", "pair") else None)
        if flag.kind == "pair":
            found["--no-" + flag.flag[2:]] = (flag, False)
    return found
