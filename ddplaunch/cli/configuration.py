"""The project's configuration and other named files: reads a profile and merges it with the flags into ``Options``."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.checks.all_checks import refuse_unknown
from ddplaunch.cli.parsing.command import REPEATED
from ddplaunch.cli.parsing.typed_words import TypedLaunch
from ddplaunch.cli.streams import tell_findings
from ddplaunch.machine.files import read_plain
from ddplaunch.planning.flag import TYPES, Flag
from ddplaunch.planning.options import Options, Said, flags_of_options, parse_options
from ddplaunch.records.own.own_files import other_owner
from ddplaunch.values.codec import from_toml
from ddplaunch.values.finding import UsageError, usage, warning
from ddplaunch.values.resolved import Resolved, Source
from ddplaunch.values.words import nearest

_LARGEST = 1 << 24  # bytes
_FILES = ("ddplaunch.toml", "pyproject.toml")


def with_configuration(typed: TypedLaunch) -> Options:
    """Return the typed options, completed from ``ddplaunch.toml`` or ``[tool.ddplaunch]`` of ``pyproject.toml`` here.

    Raises UsageError for a deleted working directory, an unreadable file, an unknown key or profile, and a value that
    no launch can have.
    """
    name, table = _project()
    options = parse_options(merge(typed.said, said_in_profile(table, typed.profile, name)))
    if options.ignore:
        from ddplaunch.comm.checks import CHECKS as measured  # needed only for their names

        refuse_unknown([item.value for item in options.ignore], measured)
    return options


def profile_names() -> list[str]:
    """Return the profiles that `--profile` accepts here. Raises UsageError for an unreadable file."""
    name, table = _project()
    return list(_as_table(table.get("profiles", {}), "profiles", name))


def _project() -> tuple[str, Mapping[str, Any]]:
    """Return the file that configures ddplaunch here, and its table; an empty table where there is no such file."""
    cwd = working_directory()
    for name in _FILES:
        if (table := _table(cwd / name)) is not None:
            return name, table
    return _FILES[0], {}


def working_directory() -> Path:
    """Return the working directory. Raises UsageError where it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError as exception:
        raise usage(
            "the working directory does not exist any more",
            why="scripts, configuration and records are looked up from it",
            fix="`cd` to a directory that exists",
            code="working-directory-missing",
        ) from exception


def variables(options: Options) -> tuple[tuple[str, str, Source], ...]:
    """Return the variables that --env sets, each once."""
    pairs = {item.value[0]: (item.value[1], item.source) for item in options.env}
    return tuple((name, value, source) for name, (value, source) in pairs.items())


def hostfile_text(name: str) -> str:
    """Return the text of the file that ``--hostfile`` names. Raises UsageError where it cannot be read."""
    try:
        with open(name, "rb") as file:  # it may be a pipe: `--hostfile <(…)`
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise OSError(errno.EFBIG, f"it has more than {_LARGEST >> 20} MiB")
        return data.decode("utf-8", "surrogateescape")
    except OSError as exception:
        raise usage(
            f"`{name}` cannot be read: {exception.strerror}",
            why="it was named by `--hostfile`",
            fix="correct the path, or name the hosts by `--hosts gpu-a,gpu-b`",
            where="flag: --hostfile",
        ) from exception


def _table(path: Path) -> Mapping[str, Any] | None:
    """Return the project file's table for ddplaunch, None without one. Raises UsageError for an unreadable file."""
    of_python = path.name == "pyproject.toml"
    try:
        text = read_plain(path, _LARGEST).decode("utf-8")
        if of_python and "ddplaunch" not in text:
            return None
        if (owner := other_owner(path)) is not None:
            unread = warning(
                "configuration-not-yours",
                f"{path.name} belongs to {owner} and is not read",
                why="it could set variables and import modules in what you run",
                fix=f"read it; `cp {path.name} mine && mv mine {path.name}` makes it yours",
                where=str(path),
            )
            tell_findings([unread])
            return None
        document = from_toml(text)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as exception:  # not UTF-8, not TOML, a number of 5000 digits
        raise usage(
            f"`{path.name}` cannot be read: {getattr(exception, 'strerror', None) or exception}",
            why="it may change the launch, so it is not skipped",
            fix=f"correct `{path.name}`",
            where=str(path),
        ) from exception
    if not of_python:
        return document
    tools = _as_table(document.get("tool", {}), "tool", path.name)
    return _as_table(tools["ddplaunch"], "tool.ddplaunch", path.name) if "ddplaunch" in tools else None


def _as_table(value: object, name: str, place: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise usage(
        f"`{name}` is not a table",
        why="options stand in it, one a line",
        fix=f"write `[{name}]`, and below it `batch-size = 8`",
        where=place,
    )


def said_in_table(table: Mapping[str, Any], place: str) -> Said:
    """Return the options in a table of the project's configuration, each value with source "profile".

    A key is the flag without the leading dashes. Raises UsageError for an unknown key (suggesting a similar one) and
    for a value of the wrong type.
    """
    flags = {flag.name: flag for flag in flags_of_options().values()}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in flags:
            from ddplaunch.cli.parsing.removed import removed  # needed only for mistakes

            if (removal := removed("run", f"--{name}")) is not None:
                raise removal
            raise _unknown("key", key, [name_known.replace("_", "-") for name_known in flags], place)
        flag, source = flags[name], Source("profile", place)
        if flag.kind in REPEATED:
            items = value if isinstance(value, list) else [value]
            values[name] = tuple(Resolved(_typed(flag, item, place), source) for item in items)
        else:
            values[name] = Resolved(_typed(flag, value, place), source)
    return values


def _typed(flag: Flag, value: object, place: str) -> object:
    """Return a value of the file in the type that the command line gives it. Raises UsageError."""
    switch = flag.kind in ("switch", "pair")
    if isinstance(value, bool) is not switch or not isinstance(value, (bool, str, int, float)):
        _, expected, example = TYPES.get(flag.kind, (str, "text", '"text"'))
        key = flag.name.replace("_", "-")
        raise usage(
            f"`{key}` is not {expected}",
            why=f"`{key}` takes {expected}",
            fix=f"correct it in {place}, as in `{key} = {flag.example or example}`",
            where=place,
        )
    try:
        return value if switch else flag.typed(str(value))
    except UsageError as problem:
        raise UsageError(*(replace(finding, where=(place,)) for finding in problem.findings)) from problem


def said_in_profile(document: Mapping[str, Any], name: str | None, place: str) -> Said:
    """Return the document's own keys, overridden by those of the profile ``name``.

    Raises UsageError if the profile does not exist.
    """
    profiles = _as_table(document.get("profiles", {}), "profiles", place)
    base = said_in_table({key: value for key, value in document.items() if key != "profiles"}, place)
    if name is None:
        return base
    if name not in profiles:
        if Path(place).exists():
            raise _unknown("profile", name, list(profiles), place)
        what, fix = f"unknown profile `{name}`", "`ddplaunch init` writes one with a profile; or leave `--profile` out"
        raise usage(what, why=f"there is no {place} here", fix=fix)
    return merge(said_in_table(_as_table(profiles[name], f"profiles.{name}", place), f"{place}, {name}"), base)


def merge(first: Said, second: Said) -> dict[str, Any]:
    """Return ``first`` completed by ``second``; values of repeatable flags are joined, those of ``first`` last.

    Flags of ``second`` that would contradict ``first`` are dropped, so that a flag wins over a profile. Learning rates
    of ``first`` replace all those of ``second``.
    """
    displaced = _displaced(first, second)
    merged = {name: value for name, value in second.items() if name not in displaced}
    for name, value in first.items():
        joined = isinstance(value, tuple) and name not in _RATES
        merged[name] = (*merged.get(name, ()), *value) if joined else value
    return merged


_RATES = ("lr", "base_lr")
_ONLY_SCALE = ("base_batch_size", "lr_scaling", "lr_max_factor")


def _displaced(first: Said, second: Said) -> set[str]:
    """Return the flags of ``second`` that would contradict those of ``first``."""
    either = {"warmup": "base_warmup", "base_warmup": "warmup", "gpus": "device", "lr": "base_lr", "base_lr": "lr"}
    names = {other for name, other in either.items() if name in first}
    if "device" in first and first["device"].value == "cpu":
        names.add("gpus")
    if "nnodes" in first and "nproc" in second and "x" in second["nproc"].value:
        names.add("nproc")
    if "lr" in first and not {"base_lr", "base_warmup"} & (first.keys() | second.keys() - names):
        names.update(_ONLY_SCALE)  # there is nothing to scale
    return names


def _unknown(what: str, name: str, names: list[str], place: str) -> UsageError:
    near = nearest(name, names, cutoff=0.5)
    add = f"write a section `[profiles.{name}]` into `{place}`, or leave `--profile` out"
    return usage(
        f"unknown {what} `{name}`",
        why=f"{'its profiles' if what == 'profile' else 'its keys'}: {', '.join(sorted(names))}"
        if names
        else f"no {what} is written in {place}",
        fix=f"did you mean `{near}`?" if near else add if what == "profile" else f"remove `{name}`",
        where=place,
    )
