"""Reads a command line that is plainly right without Typer, whose import takes longer than deciding a launch.

It reads and judges nothing: what is not plainly right is left to Typer. A test holds the two against each other.
"""

from __future__ import annotations

from typing import Any

from ddplaunch.cli.parsing.command import REPEATED, options_of, spellings
from ddplaunch.cli.parsing.typed_words import with_lists_taken_apart


def parse_quickly(command: str, words: list[str]) -> dict[str, Any] | None:
    """Return the value of every option by name, None where it was not given; None if Typer has to look."""
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
        elif not equals and (not rest or rest[0].startswith("-")):
            return None
        else:
            value = attached if equals else rest.pop(0)
        if option.kind in REPEATED:
            values[option.name].append(value)
        else:
            values[option.name] = value  # the last one counts, as Typer has it
    return with_lists_taken_apart(values)
