"""Reads the project's configuration and environment files; refuses to look outside the working directory."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.checks.all_checks import refuse_unknown
from ddplaunch.cli.option_values import refuse_impossible
from ddplaunch.launch.options import Options, merge, parse_assignment, parse_file, select_profile
from ddplaunch.launch.topology import bare
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.resolved import Source

_FILES = ("ddplaunch.toml", "pyproject.toml")


def with_configuration(flags: Options, profile: str | None, cwd: Path) -> Options:
    """Return the flags completed by ``ddplaunch.toml`` or ``[tool.ddplaunch]`` of ``pyproject.toml`` in ``cwd``.

    Raises UsageError for an unreadable file, an unknown key or an unknown profile.
    """
    for name in _FILES:
        table = _table(cwd / name)
        if table is not None:
            return _possible(merge(flags, select_profile(table, profile, name)))
    if profile is not None:
        section = profile if re.fullmatch(r"[A-Za-z0-9_-]+", profile) else json.dumps(profile)
        raise usage(
            f"there is no profile `{profile}`",
            why=f"neither ddplaunch.toml nor [tool.ddplaunch] in pyproject.toml is in {cwd}",
            fix=f"write a `ddplaunch.toml` with a section `[profiles.{section}]`, or leave `--profile` out",
            where="flag: --profile",
        )
    return _possible(flags)


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


def _possible(options: Options) -> Options:
    refuse_impossible(options)
    if options.ignore:
        from ddplaunch.comm.checks import CHECKS as measured  # only to know their names

        refuse_unknown([item.value for item in options.ignore], measured)
    address = options.master_addr
    return options if address is None else replace(options, master_addr=replace(address, value=bare(address.value)))


def variables(options: Options) -> tuple[tuple[str, str, Source], ...]:
    """Return what --env-file and --env set, in this order, so that --env wins. Raises UsageError."""
    pairs: dict[str, tuple[str, Source]] = {}
    for item in options.env_file:
        for name, value in parse_file(_text(item.value), item.value):
            pairs[name] = (value, Source(item.source.kind, f"--env-file {item.value}"))
    for item in options.env:
        name, value = parse_assignment(item.value, str(item.source))
        pairs[name] = (value, item.source)
    return tuple((name, value, source) for name, (value, source) in pairs.items())


def _text(name: str) -> str:
    try:
        return Path(name).read_bytes().decode("utf-8", "surrogateescape")
    except OSError as exception:
        raise usage(
            f"`{name}` cannot be read: {exception.strerror}",
            why="it was named by `--env-file`",
            fix="correct the path",
            where="flag: --env-file",
        ) from exception


def _table(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exception:
        raise _unreadable(path, exception.strerror or str(exception)) from exception
    except UnicodeDecodeError as exception:
        raise _unreadable(path, f"byte {exception.start} is not UTF-8") from exception
    if path.name == "pyproject.toml" and "ddplaunch" not in text:
        return None
    document = _parse(text, path)
    if path.name != "pyproject.toml":
        return document
    return _nested(document, ("tool", "ddplaunch"))


def _nested(document: dict[str, Any], keys: Sequence[str]) -> dict[str, Any] | None:
    inner: Any = document
    for key in keys:
        inner = inner.get(key) if isinstance(inner, dict) else None
    if inner is not None and not isinstance(inner, dict):
        raise usage(
            f"`{'.'.join(keys)}` in pyproject.toml is not a table",
            why="the options stand in it, one a line",
            fix="write `[tool.ddplaunch]`, and below it `batch-size = 8`",
            where="pyproject.toml",
        )
    return inner


def _parse(text: str, path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except ValueError as exception:  # TOMLDecodeError, and what int() says to a number of 5000 digits
        raise _unreadable(path, str(exception)) from exception
    except RecursionError as exception:
        raise _unreadable(path, "brackets are nested too deeply") from exception
    return document


def _unreadable(path: Path, reason: str) -> UsageError:
    return usage(
        f"`{path.name}` cannot be read: {reason}",
        why="it may change the launch, so it is not skipped",
        fix=f"correct `{path.name}`",
        where=str(path),
    )
