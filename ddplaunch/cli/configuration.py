"""The project's configuration and environment files: merges the profile with the flags into ``Options``."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddplaunch.checks.all_checks import refuse_unknown
from ddplaunch.launch.flag import VARIABLE
from ddplaunch.launch.options import Options, Said, merge, parse_options, said_in_profile
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.resolved import Source

_FILES = ("ddplaunch.toml", "pyproject.toml")


def with_configuration(said: Said, profile: str | None, cwd: Path) -> Options:
    """Return what flags say, completed by ``ddplaunch.toml`` or ``[tool.ddplaunch]`` of ``pyproject.toml`` in ``cwd``.

    Raises UsageError for an unreadable file, an unknown key or profile, and a value that no launch can have.
    """
    for name in _FILES:
        table = _table(cwd / name)
        if table is not None:
            return _parsed(merge(said, said_in_profile(table, profile, name)))
    if profile is not None:
        section = profile if re.fullmatch(r"[A-Za-z0-9_-]+", profile) else json.dumps(profile)
        raise usage(
            f"there is no profile `{profile}`",
            why=f"neither ddplaunch.toml nor [tool.ddplaunch] in pyproject.toml is in {cwd}",
            fix=f"write a `ddplaunch.toml` with a section `[profiles.{section}]`, or leave `--profile` out",
            where="flag: --profile",
        )
    return _parsed(said)


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


def _parsed(said: Said) -> Options:
    options = parse_options(said)
    if options.ignore:
        from ddplaunch.comm.checks import CHECKS as measured  # only to know their names

        refuse_unknown([item.value for item in options.ignore], measured)
    return options


def variables(options: Options) -> tuple[tuple[str, str, Source], ...]:
    """Return what --env-file and --env set, in this order, so that --env wins. Raises UsageError."""
    pairs: dict[str, tuple[str, Source]] = {}
    for item in options.env_file:
        for name, value in parse_file(_text(item.value), item.value):
            pairs[name] = (value, Source(item.source.kind, f"--env-file {item.value}"))
    pairs.update({item.value[0]: (item.value[1], item.source) for item in options.env})
    return tuple((name, value, source) for name, (value, source) in pairs.items())


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
        if not equals or not VARIABLE.match(key) or value is None or "\0" in value:
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
