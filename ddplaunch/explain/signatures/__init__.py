"""All signatures, of the files ``ddplaunch/explain/families/*.toml``: those of a file in their order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ddplaunch.explain.signatures.signature import Signature, Tier, Words, words_of


@cache
def all_signatures() -> tuple[Signature, ...]:
    """Return what lines of logs are compared with; read here, when a log is to be explained."""
    return tuple(signature for signature in _all() if not signature.name)


def named(name: str) -> Signature:
    """Return the words of this name. Raises KeyError if there are none."""
    return _names()[name]


def say(name: str, **groups: str) -> Words:
    """Return the words of this name, see ``families/unsaid.toml``, with what is known. Raises KeyError as `named`."""
    return words_of(named(name), groups)


def has_words(name: str) -> bool:
    """Return whether there are words of this name."""
    return name in _names()


def all_words() -> Iterable[Signature]:
    """Return the words that are asked for by name; some have patterns of messages."""
    return _names().values()


def words_for(exception: str, message: str) -> Iterator[tuple[Signature, dict[str, str]]]:
    """Yield the words for an exception with this message, and for one of this type, with the groups they fill in."""
    for words in all_words():
        for match in filter(None, (re.search(pattern, message) for pattern in words.patterns)):
            yield words, match.groupdict()
    if has_words(of_type := f"exception-{exception}"):
        yield named(of_type), {}


@cache
def _names() -> dict[str, Signature]:
    return {words.name: words for words in _all() if words.name}


@cache
def _all() -> tuple[Signature, ...]:
    """Return the rules of all families, as ``python -m scripts.signatures`` has compiled them."""
    rules = json.loads(Path(__file__).parents[1].joinpath("families.json").read_bytes())
    return tuple(signature_of(rule) for rule in rules)


def signature_of(rule: dict[str, Any]) -> Signature:
    """Return a rule of the compiled file as it is used."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in rule.items()}
    values["tier"] = Tier[rule["tier"].upper()]
    return Signature(**values)
