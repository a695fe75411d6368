"""A project's configuration table as options with their source; refuses to read files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ddplaunch.errors import UsageError, usage
from ddplaunch.launch.options import Options
from ddplaunch.values import Resolved, Source

_TYPES = {field.name: str(field.type) for field in fields(Options)}
_EXPECTED = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "text", "LrScaling": "text"}


_EXAMPLE = {"env": '["NAME=VALUE"]', "nproc": '"auto"', "gpus": '"0,1"', "lr-scaling": '"sqrt"'}
_EXAMPLE_OF = {"int": "8", "float": "1e-4", "bool": "true", "str": '"text"', "LrScaling": '"sqrt"'}


def key_of(name: str) -> str:
    """Return the configuration key of an option: its flag without the leading dashes."""
    return name.replace("_", "-")


def options_from_table(table: Mapping[str, Any], where: str) -> Options:
    """Return the options that ``table`` sets, each with source "profile".

    Raises UsageError for an unknown key (with the near miss) and for a value of the wrong type.
    """
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in _TYPES:
            raise _unknown("key", key, [key_of(known) for known in _TYPES], where)
        if name in values:
            raise usage(
                f"`{key_of(name)}` is set twice",
                why="`-` and `_` spell the same key",
                fix=f"keep one of `{key_of(name)}` and `{name}` in {where}",
                where=where,
            )
        values[name] = _convert(key, value, _TYPES[name], where)
    return Options(**values)


def select_profile(document: Mapping[str, Any], name: str | None, where: str) -> Options:
    """Merge the document's own keys with those of the named profile, which wins.

    Raises UsageError if the profile does not exist.
    """
    profiles = _table_of_tables(document.get("profiles", {}), where)
    base = options_from_table({key: value for key, value in document.items() if key != "profiles"}, where)
    if name is None:
        return base
    if name not in profiles:
        raise _unknown("profile", name, list(profiles), where)
    return merge(options_from_table(profiles[name], f"{where}, {name}"), base)


def _table_of_tables(profiles: object, where: str) -> Mapping[str, Mapping[str, Any]]:
    wrong = "profiles" if not isinstance(profiles, Mapping) else None
    if isinstance(profiles, Mapping):
        wrong = next((f"profiles.{name}" for name, table in profiles.items() if not isinstance(table, Mapping)), None)
    if not isinstance(profiles, Mapping) or wrong is not None:
        raise usage(
            f"`{wrong}` is not a table",
            why="each profile is a section with keys of its own",
            fix="write `[profiles.big]`, and below it `batch-size = 8`",
            where=where,
        )
    return profiles


def merge(first: Options, second: Options) -> Options:
    """Return ``first`` completed by ``second``; repeatable options are joined, those of ``first`` last.

    What ``first`` says also takes away from ``second`` what would contradict it, so that a flag wins over a profile.
    """
    displaced = _displaced(first, second)
    values: dict[str, Any] = {}
    for name in _TYPES:
        one, other = getattr(first, name), getattr(second, name)
        if isinstance(one, tuple):
            values[name] = (*other, *one)
        else:
            values[name] = other if one is None and name not in displaced else one
    return replace(first, **values)


def _displaced(first: Options, second: Options) -> set[str]:
    """Return the options of ``second`` that cannot stand beside those of ``first``."""
    names: set[str] = set()
    if first.lr is not None:
        names |= {"base_lr"}
        if first.base_warmup is None and second.base_warmup is None:  # nothing is left that could be scaled
            names |= {"base_batch_size", "lr_scaling", "lr_max_factor"}
    if first.base_lr is not None:
        names.add("lr")
    if first.gpus is not None:
        names.add("device")
    if first.device is not None and first.device.value == "cpu":
        names.add("gpus")
    if first.nnodes is not None and second.nproc is not None and "x" in second.nproc.value:
        names.add("nproc")
    return names


def _convert(key: str, value: object, declared: str, where: str) -> object:
    source = Source("profile", where)
    kind = declared[declared.index("[") :].replace("Resolved[", "").strip("[").split("]")[0]
    if declared.startswith("tuple"):
        items = value if isinstance(value, list) else [value]
        return tuple(Resolved(_scalar(key, item, kind, where), source) for item in items)
    return Resolved(_scalar(key, value, kind, where), source)


def _scalar(key: str, value: object, kind: str, where: str) -> object:
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind == "str" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    wanted = {"int": int, "float": float, "bool": bool}.get(kind, str)
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind != "bool"):
        raise usage(
            f"`{key} = {value!r}` is not {_EXPECTED[kind]}",
            why=f"`{key}` takes {_EXPECTED[kind]}",
            fix=f"correct it in {where}, as in `{key} = {_EXAMPLE.get(key, _EXAMPLE_OF[kind])}`",
            where=where,
        )
    return value


def _unknown(what: str, name: str, known: list[str], where: str) -> UsageError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    listed = ", ".join(f"`{item}`" for item in sorted(known)) or "none"
    return usage(
        f"unknown {what} `{name}`",
        why=f"{where} may hold: {listed}",
        fix=f"did you mean `{near[0]}`?" if near else f"use one of those, or remove `{name}`",
        where=where,
    )
