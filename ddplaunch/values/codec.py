r"""Frozen values to JSON, and JSON back to typed values, checked against the types of their fields.

Text that is not UTF-8 (paths, variables) is in Python's surrogateescape form and crosses as ``\udcXX`` escapes.
"""

from __future__ import annotations

import functools
import json
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, cast

from ddplaunch.values.resolved import Unavailable

SCHEMA = 1
_REASON = "unavailable"
_LARGEST_FLOAT = sys.float_info.max
T = TypeVar("T")


def to_json(value: object) -> str:
    """Return a frozen value as one line of ASCII JSON with "schema": 1."""
    return json.dumps({"schema": SCHEMA, **plain(value)})


def from_json(text: str, wanted: type[T]) -> T:
    """Return the ``wanted`` dataclass in ``text``; unknown fields, of a newer ddplaunch, are ignored.

    A missing field, of an older one, becomes None or Unavailable if its type allows. Raises ValueError, with the
    place, for anything else that does not fit.
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
    origin, inner, fields_inside = _shape(wanted)
    if origin in (types.UnionType, typing.Union):
        return _union(data, inner, place)
    if fields_inside:
        return _dataclass(data, cast(type, wanted), place)
    if origin is tuple:
        return _tuple(data, inner, place)
    if origin is frozenset:
        return frozenset(_build(item, inner[0], place) for item in _checked(data, list, place))
    if origin in (dict, Mapping):
        if inner[1] is str and all(type(item) is str for item in _checked(data, dict, place).values()):
            return data
        return {key: _build(item, inner[1], f"{place}.{key}") for key, item in _checked(data, dict, place).items()}
    if wanted is Any:
        return data
    if origin is typing.Literal:
        return data if data in inner else _refuse(place, f"none of {inner}")
    return _checked(data, wanted, place)


def _refuse(place: str, problem: str) -> Any:
    raise ValueError(f"{place}: {problem}")


def _checked(data: Any, wanted: type, place: str) -> Any:
    if wanted is float and type(data) in (int, float):
        return float(data) if abs(data) <= _LARGEST_FLOAT else _refuse(place, "a number that no float holds")
    if issubclass(wanted, Enum):
        found = next((each for each in wanted if type(data) is type(each.value) and data == each.value), None)
        return _refuse(place, f"no {wanted.__name__}") if found is None else found
    if type(data) is not wanted:  # not isinstance: True is no int here
        _refuse(place, f"{type(data).__name__} instead of {wanted.__name__}")
    return data


def _union(data: Any, arms: tuple[Any, ...], place: str) -> Any:
    if Unavailable in arms and isinstance(data, dict) and isinstance(data.get(_REASON), str):
        return Unavailable(data[_REASON])
    if data is None and type(None) in arms:
        return None
    arm = next(arm for arm in arms if arm not in (Unavailable, type(None)))
    return _build(data, arm, place)


def _tuple(data: Any, inner: tuple[Any, ...], place: str) -> tuple[Any, ...]:
    items = _checked(data, list, place)
    if inner[1:] == (...,):
        if inner[0] is str and all(type(item) is str for item in items):  # a third of the time, of many lines
            return tuple(items)
        return tuple(_build(item, inner[0], f"{place}[{index}]") for index, item in enumerate(items))
    if len(items) != len(inner):
        raise ValueError(f"{place}: {len(items)} items instead of {len(inner)}")
    return tuple(
        _build(item, arm, f"{place}[{index}]") for index, (item, arm) in enumerate(zip(items, inner, strict=True))
    )


def _dataclass(data: Any, wanted: type, place: str) -> Any:
    given = _checked(data, dict, place)
    hints = _hints(wanted)
    values = {}
    for each in fields(wanted):
        if each.name in given:
            values[each.name] = _build(given[each.name], hints[each.name], f"{place}.{each.name}")
        elif each.default is MISSING and each.default_factory is MISSING:
            arms = typing.get_args(hints[each.name])
            if Unavailable not in arms and type(None) not in arms:
                raise ValueError(f"{place}.{each.name} is missing")
            unknown = Unavailable("this host's ddplaunch does not report it")
            values[each.name] = None if type(None) in arms else unknown
    return wanted(**values)


@functools.cache
def _hints(wanted: type) -> dict[str, Any]:
    """Return the evaluated annotations; cached, because that is slow and a launch decodes many hosts."""
    return typing.get_type_hints(wanted)


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
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(each) for each in value)
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value
