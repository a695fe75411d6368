r"""Frozen values to JSON, and JSON back to typed values, checked against the types of their fields.

Text that is not UTF-8 (paths, variables) is in Python's surrogateescape form and crosses as ``\udcXX`` escapes.
"""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, cast

from ddplaunch.values.resolved import Unavailable

SCHEMA = 1
_REASON = "unavailable"
_MOST = 1 << 1000  # no larger number is a float
T = TypeVar("T")


def to_json(value: object) -> str:
    """Return a frozen value as one line of ASCII JSON with "schema": 1."""
    return json.dumps({"schema": SCHEMA, **plain(value)})


def from_json(text: str, wanted: type[T]) -> T:
    """Return the ``wanted`` dataclass in ``text``; unknown fields, of a newer ddplaunch, are ignored.

    A missing field, of an older one, becomes None or Unavailable if its type allows. Raises ValueError, with the place,
    for anything else that does not fit.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
        raise ValueError(f"not JSON of {wanted.__name__}: there is no schema number")
    return cast(T, _build(data, wanted, wanted.__name__))


def from_plain(data: object, wanted: type[T]) -> T:
    """Return the ``wanted`` dataclass that ``plain`` made ``data`` of. Raises ValueError as ``from_json`` does."""
    return cast(T, _build(data, wanted, wanted.__name__))


def _build(data: Any, wanted: Any, place: str) -> Any:
    """Return ``data`` as the annotated type ``wanted``."""
    origin, inner, is_class = _shape(wanted)
    if origin in (types.UnionType, typing.Union):
        return _union(data, inner, place)
    if is_class:
        return _dataclass(data, wanted, place)
    if origin in (tuple, frozenset):
        items = _checked(data, list, place)
        types_of_items = inner if origin is tuple and inner[1:] != (...,) else inner[:1] * len(items)
        if len(items) != len(types_of_items):
            raise ValueError(f"{place}: {len(items)} items instead of {len(types_of_items)}")
        pairs = enumerate(zip(items, types_of_items, strict=True))
        return origin(_build(item, kind, f"{place}[{index}]") for index, (item, kind) in pairs)
    if origin in (dict, Mapping):
        return {key: _build(item, inner[1], f"{place}.{key}") for key, item in _checked(data, dict, place).items()}
    if wanted is Any or (origin is typing.Literal and data in inner):
        return data
    return _checked(data, wanted, place)


def _checked(data: Any, wanted: Any, place: str) -> Any:
    if wanted is float and type(data) in (int, float) and abs(data) < _MOST:
        return float(data)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return wanted(data)  # raises ValueError
    if wanted is float or type(data) is not wanted:  # not isinstance: True is no int here
        raise ValueError(f"{place}: {type(data).__name__} instead of {getattr(wanted, '__name__', wanted)}")
    return data


def _union(data: Any, arms: tuple[Any, ...], place: str) -> Any:
    if Unavailable in arms and isinstance(data, dict) and isinstance(data.get(_REASON), str):
        return Unavailable(data[_REASON])
    if type(data) in arms and type(data) is not float:  # which may be infinite
        return data
    if data is None and Unavailable in arms:
        return Unavailable("this host's ddplaunch does not report it")
    return _build(data, next(arm for arm in arms if arm not in (Unavailable, type(None))), place)


def _dataclass(data: Any, wanted: type, place: str) -> Any:
    members, values = _checked(data, dict, place), {}
    for name, kind, is_needed in _fields(wanted):
        if name in members:
            values[name] = _build(members[name], kind, f"{place}.{name}")
        elif is_needed:
            values[name] = _build(None, kind, f"{place}.{name}, which is missing")
    return wanted(**values)


@functools.cache
def _fields(wanted: Any) -> list[tuple[str, Any, bool]]:
    """Return names, types and whether there is no default; cached, because that is slow and a launch decodes many."""
    hints = typing.get_type_hints(wanted)
    return [
        (field.name, hints[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(wanted)
    ]


@functools.cache
def _shape(wanted: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Return a type's origin and arguments, and whether it is a dataclass."""
    return typing.get_origin(wanted), typing.get_args(wanted), is_dataclass(wanted)


def plain(value: Any) -> Any:
    """Return dataclasses as objects, tuples as lists, sets sorted, ``Unavailable`` as ``{"unavailable": reason}``."""
    if isinstance(value, Unavailable):
        return {_REASON: value.reason}
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value))
    if isinstance(value, (list, tuple)):
        return list(map(plain, value))
    return value
