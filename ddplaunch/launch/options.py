"""Everything a user can say about a launch, merged from flags and profile; refuses to decide what was not said.

A project's configuration table as options with their source; refuses to read files.

``K=V`` of ``--env`` and the lines of ``--env-file`` as pairs; refuses shell syntax beyond quotes.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ddplaunch.scaling.numbers import LrScaling
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source


@dataclass(frozen=True)
class Options:
    """One field per command-line option, named alike (``--batch-size`` is ``batch_size``); None is "not said".

    ``nproc`` is the positional: an integer, ``auto`` or ``NxM``. ``gpus`` is ``0,1,3``, UUIDs or ``free:N``.
    """

    nproc: Resolved[str] | None = None
    gpus: Resolved[str] | None = None
    device: Resolved[str] | None = None
    batch_size: Resolved[int] | None = None
    accum: Resolved[int] | None = None
    global_batch_size: Resolved[int] | None = None
    base_lr: Resolved[float] | None = None
    base_batch_size: Resolved[int] | None = None
    lr: Resolved[float] | None = None
    lr_scaling: Resolved[LrScaling] | None = None
    lr_max_factor: Resolved[float] | None = None
    base_warmup: Resolved[int] | None = None
    dataset_size: Resolved[int] | None = None
    forward: Resolved[bool] | None = None
    workers: Resolved[int] | None = None
    data: tuple[Resolved[str], ...] = ()
    output: tuple[Resolved[str], ...] = ()
    nnodes: Resolved[str] | None = None
    node_rank: Resolved[int] | None = None
    master_addr: Resolved[str] | None = None
    master_port: Resolved[int] | None = None
    socket_ifname: Resolved[str] | None = None
    nccl_debug: Resolved[str] | None = None
    nccl_ib: Resolved[bool] | None = None
    env: tuple[Resolved[str], ...] = ()
    env_file: tuple[Resolved[str], ...] = ()
    max_restarts: Resolved[int] | None = None
    relaunch: Resolved[int] | None = None
    relaunch_after: Resolved[str] | None = None
    relaunch_wait: Resolved[str] | None = None
    grace: Resolved[float] | None = None
    timeout: Resolved[str] | None = None
    hang_timeout: Resolved[str] | None = None
    on_hang: Resolved[str] | None = None
    stacks: Resolved[bool] | None = None
    start: Resolved[str] | None = None
    preload: Resolved[str] | None = None
    trace: Resolved[str] | None = None
    show: Resolved[str] | None = None
    verbose: Resolved[bool] | None = None
    capture: Resolved[bool] | None = None
    record_metrics: Resolved[bool] | None = None
    torchrun_arg: tuple[Resolved[str], ...] = ()
    ignore: tuple[Resolved[str], ...] = ()
    checks: Resolved[bool] | None = None
    run_id: Resolved[str] | None = None
    run_dir: Resolved[str] | None = None


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


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def parse_assignment(text: str, where: str = "flag: --env") -> tuple[str, str]:
    """Return (name, value) of ``K=V``, which ``where`` says. Raises UsageError without ``=`` or a possible name."""
    name, equals, value = text.partition("=")
    if not equals or not _NAME.match(name):
        example = name if _NAME.match(name) else "NAME"
        raise usage(
            f"`--env {text}` sets nothing" if not equals else f"`{name}` cannot name an environment variable",
            why="`--env` takes NAME=VALUE; names are letters, digits and `_`",
            fix=f"`--env {example}=VALUE`",
            where=where,
        )
    return name, value


def parse_file(text: str, name: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of an environment file: ``K=V`` lines, comments, ``export``, shell quotes around a value.

    Raises UsageError with file:line for any other line.
    """
    pairs = []
    lines = text.removeprefix("\ufeff").split("\n")  # not splitlines(), which also ends a line at U+2028 and form feeds
    for number, line in enumerate(lines, start=1):
        stripped = line.strip().removeprefix("export ").lstrip()
        if not stripped or stripped.startswith("#"):
            continue
        key, equals, raw = stripped.partition("=")
        value = _unquote(raw.strip())
        if not equals or not _NAME.match(key) or value is None or "\0" in value:
            raise usage(
                f"{name}:{number} is not NAME=VALUE",
                why="every line of an environment file sets one variable",
                fix=f"correct line {number} of `{name}`, or put `#` in front of it",
                where=f"{name}:{number}",
            )
        pairs.append((key, value))
    return tuple(pairs)


def _unquote(raw: str) -> str | None:
    if raw[:1] not in ("'", '"'):
        return raw
    try:
        words = shlex.split(raw, comments=True)
    except ValueError:
        return None
    return words[0] if len(words) == 1 else None
