"""Frozen values as what JSON can hold; refuses to know any particular one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from ddplaunch.values import Unavailable


def plain(value: Any) -> Any:
    """Return dataclasses as objects, tuples as lists, sets sorted, ``Unavailable`` as ``{"unavailable": reason}``."""
    if isinstance(value, Unavailable):
        return {"unavailable": value.reason}
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(each) for each in value)
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value
