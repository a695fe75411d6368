r"""Converts frozen values to JSON, and JSON back to typed values, checked against the types of their fields.

Text that is not UTF-8 (paths, variables) is kept in Python's surrogateescape form, in JSON as ``\udcXX`` escapes.
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
_MOST = 1 << 1000  # larger numbers do not fit a float
T = TypeVar("T")


def to_json(value: object) -> str:
    """Return a frozen value as one line of ASCII JSON with "schema": 1."""
    return json.dumps({"schema": SCHEMA, **plain(value)})


def from_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML document. Raises ValueError for other text."""
    if sys.version_info >= (3, 11):  # 5 ms, only for projects with a configuration, and for mistakes
        import tomllib
    else:
        import tomli as tomllib
    table: dict[str, Any] = tomllib.loads(text)
    return table


@functools.cache
def toml_beside(module: str, name: str) -> dict[str, Any]:
    """Return the table of the TOML file ``name`` beside a module, given the module's ``__file__``; it is read once."""
    with open(f"{module.rpartition('/')[0]}/{name}", encoding="utf-8") as file:
        return from_toml(file.read())


def from_json(text: str, value_type: type[T]) -> T:
    """Return the dataclass ``value_type`` read from ``text``.

    Versions may differ: unknown fields (from a newer ddplaunch) are ignored; a missing field (from an older one)
    becomes None or Unavailable if its type allows. Raises ValueError naming the field for anything else that does not
    fit.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
        raise ValueError(f"not JSON of {value_type.__name__}: there is no schema number")
    return cast(T, _build(data, value_type, value_type.__name__))


def from_plain(data: object, value_type: type[T]) -> T:
    """Return the dataclass ``value_type`` from the output of ``plain``. Raises ValueError as ``from_json`` does."""
    return cast(T, _build(data, value_type, value_type.__name__))


def _build(data: Any, value_type: Any, place: str) -> Any:
    """Return ``data`` as ``value_type``; ``place`` names the field in errors."""
    origin, inner, is_class = _shape(value_type)
    if origin in (types.UnionType, typing.Union):
        return _union(data, inner, place)
    if is_class:
        return _dataclass(data, value_type, place)
    if origin in (tuple, frozenset):
        items = _checked(data, list, place)
        types_of_items = inner if origin is tuple and inner[1:] != (...,) else inner[:1] * len(items)
        if len(items) != len(types_of_items):
            raise ValueError(f"{place}: {len(items)} items instead of {len(types_of_items)}")
        pairs = enumerate(zip(items, types_of_items, strict=True))
        return origin(_build(item, kind, f"{place}[{index}]") for index, (item, kind) in pairs)
    if origin in (dict, Mapping):
        return {key: _build(item, inner[1], f"{place}.{key}") for key, item in _checked(data, dict, place).items()}
    if value_type is Any or (origin is typing.Literal and data in inner):
        return data
    return _checked(data, value_type, place)


def _checked(data: Any, value_type: Any, place: str) -> Any:
    if value_type is float and type(data) in (int, float) and abs(data) < _MOST:
        return float(data)
    if isinstance(value_type, type) and issubclass(value_type, Enum):
        return value_type(data)  # raises ValueError
    if value_type is float or type(data) is not value_type:  # not isinstance, for which True is an int
        raise ValueError(f"{place}: {type(data).__name__} instead of {getattr(value_type, '__name__', value_type)}")
    return data


def _union(data: Any, arms: tuple[Any, ...], place: str) -> Any:
    if Unavailable in arms and isinstance(data, dict) and isinstance(data.get(_REASON), str):
        return Unavailable(data[_REASON])
    if type(data) in arms and type(data) is not float:  # a float is checked below, because it may be infinite
        return data
    if data is None and Unavailable in arms:
        return Unavailable("this host's ddplaunch does not report it")
    return _build(data, next(arm for arm in arms if arm not in (Unavailable, type(None))), place)


def _dataclass(data: Any, value_type: type, place: str) -> Any:
    members, values = _checked(data, dict, place), {}
    for name, kind, is_needed in _fields(value_type):
        if name in members:
            values[name] = _build(members[name], kind, f"{place}.{name}")
        elif is_needed:
            values[name] = _build(None, kind, f"{place}.{name}, which is missing")
    return value_type(**values)


@functools.cache
def _fields(value_type: Any) -> list[tuple[str, Any, bool]]:
    """Return each field's name, type and whether it has no default; cached, because type hints are slow to resolve."""
    hints = typing.get_type_hints(value_type)
    return [
        (field.name, hints[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(value_type)
    ]


@functools.cache
def _shape(value_type: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Return a type's origin and arguments, and whether it is a dataclass."""
    return typing.get_origin(value_type), typing.get_args(value_type), is_dataclass(value_type)


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
