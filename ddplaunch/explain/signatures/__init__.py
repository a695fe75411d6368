"""All signatures, of the files ``ddplaunch/explain/families/*.toml``: those of a file in their order."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from ddplaunch.explain.signatures.signature import Signature, Tier


@cache
def all_signatures() -> tuple[Signature, ...]:
    """Return what lines of logs are compared with; read here, when a log is to be explained."""
    return tuple(each for each in _all() if not each.name)


@cache
def named(name: str) -> Signature:
    """Return the words of this name. Raises StopIteration if there are none."""
    return next(each for each in _all() if each.name == name)


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
