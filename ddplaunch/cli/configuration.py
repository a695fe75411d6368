"""The project's configuration and environment files: reads a profile, merges it with the flags into ``Options``."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ddplaunch.checks.all_checks import refuse_unknown
from ddplaunch.cli.streams import tell_findings
from ddplaunch.machine.files import read_plain
from ddplaunch.planning.flag import TYPES, VARIABLE, Kind
from ddplaunch.planning.options import Options, Said, flags_of_options, parse_options
from ddplaunch.records.own.own_files import other_owner
from ddplaunch.values.finding import Finding, UsageError, usage, warning
from ddplaunch.values.resolved import Resolved, Source
from ddplaunch.values.variable_names import QUIET
from ddplaunch.values.words import nearest

_LARGEST = 1 << 24  # bytes
_NOT = ("0", "false", "no", "off")
_FILES = ("ddplaunch.toml", "pyproject.toml")


def with_configuration(said: Said, profile: str | None, cwd: Path) -> Options:
    """Return what flags say, completed by ``ddplaunch.toml`` or ``[tool.ddplaunch]`` of ``pyproject.toml`` in ``cwd``.

    Raises UsageError for an unreadable file, an unknown key or profile, and a value that no launch can have.
    """
    for name in _FILES:
        table = _table(cwd / name)
        if table is not None:
            said = merge(said, said_in_profile(table, profile, name))
            break
    else:
        if profile is not None:
            raise _no_profile(profile, cwd)
    if (quiet := os.environ.get(QUIET)) and "quiet" not in said:
        said = {**said, "quiet": Resolved(quiet.lower() not in _NOT, Source("environment", QUIET))}
    options = parse_options(said)
    if options.ignore:
        from ddplaunch.comm.checks import CHECKS as measured  # only to know their names

        refuse_unknown([item.value for item in options.ignore], measured)
    return options


def profile_names(cwd: Path) -> list[str]:
    """Return the profiles that `--profile` takes in ``cwd``. Raises UsageError for an unreadable file."""
    table = next(filter(None, (_table(cwd / name) for name in _FILES)), {})
    return list(_table_of_tables(table.get("profiles", {}), "ddplaunch.toml"))


def _no_profile(profile: str, cwd: Path) -> UsageError:
    section = profile if re.fullmatch(r"[A-Za-z0-9_-]+", profile) else json.dumps(profile)
    return usage(
        f"there is no profile `{profile}`",
        why=f"neither ddplaunch.toml nor [tool.ddplaunch] in pyproject.toml is in {cwd}",
        fix=f"write a `ddplaunch.toml` with a section `[profiles.{section}]`, or leave `--profile` out",
        where="flag: --profile",
    )


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
    """Return what --env-file and --env set, in this order, so that --env wins. Raises UsageError."""
    pairs: dict[str, tuple[str, Source]] = {}
    for item in options.env_file:
        for name, value in parse_file(text_of(item.value, "--env-file", "correct the path"), item.value):
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


def text_of(name: str, flag: str, fix: str) -> str:
    """Return what the file holds that ``flag`` names. Raises UsageError where it cannot be read."""
    try:
        with open(name, "rb") as file:  # it may be a pipe: `--env-file <(…)`
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise OSError(errno.EFBIG, f"it has more than {_LARGEST >> 20} MiB")
        return data.decode("utf-8", "surrogateescape")
    except OSError as exception:
        raise usage(
            f"`{name}` cannot be read: {exception.strerror}",
            why=f"it was named by `{flag}`",
            fix=fix,
            where=f"flag: {flag}",
        ) from exception


def _table(path: Path) -> dict[str, Any] | None:
    """Return what a file of the project says to ddplaunch, None where it says nothing. Raises UsageError."""
    of_python = path.name == "pyproject.toml"
    try:
        text = read_plain(path, _LARGEST).decode("utf-8")
        if of_python and "ddplaunch" not in text:
            return None
        if (owner := other_owner(path)) is not None:
            tell_findings([_not_read(path, owner)])
            return None
        if sys.version_info >= (3, 11):  # 5 ms, for projects that have a configuration
            import tomllib
        else:
            import tomli as tomllib
        document: dict[str, Any] = tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exception:
        raise _unreadable(path, exception.strerror or str(exception)) from exception
    except UnicodeDecodeError as exception:
        raise _unreadable(path, f"byte {exception.start} is not UTF-8") from exception
    except ValueError as exception:  # TOMLDecodeError, and what int() says to a number of 5000 digits
        raise _unreadable(path, str(exception)) from exception
    except RecursionError as exception:
        raise _unreadable(path, "brackets are nested too deeply") from exception
    return _of_ddplaunch(document) if of_python else document


def _not_read(path: Path, owner: str) -> Finding:
    return warning(
        "configuration-not-yours",
        f"{path.name} belongs to {owner} and is not read",
        why="it could set variables and import modules in what you run",
        fix=f"read it; `cp {path.name} mine && mv mine {path.name}` makes it yours",
        where=str(path),
    )


def _of_ddplaunch(document: dict[str, Any]) -> dict[str, Any] | None:
    tools = document.get("tool")
    table = tools.get("ddplaunch") if isinstance(tools, dict) else None
    if table is None or isinstance(table, dict):
        return table
    raise usage(
        "`tool.ddplaunch` in pyproject.toml is not a table",
        why="the options stand in it, one a line",
        fix="write `[tool.ddplaunch]`, and below it `batch-size = 8`",
        where="pyproject.toml",
    )


def _unreadable(path: Path, reason: str) -> UsageError:
    return usage(
        f"`{path.name}` cannot be read: {reason}",
        why="it may change the launch, so it is not skipped",
        fix=f"correct `{path.name}`",
        where=str(path),
    )


_EXAMPLES = {"env": '["NAME=VALUE"]', "nproc": '"auto"', "gpus": '"0,1"', "lr-scaling": '"sqrt"'}


def said_in_table(table: Mapping[str, Any], where: str) -> Said:
    """Return what a table of the project's configuration says, each value with source "profile".

    A key is the flag without the leading dashes. Raises UsageError for an unknown key (with the near miss) and for a
    value of the wrong type.
    """
    flags = {flag.name: flag for flag in flags_of_options().values()}
    said: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in flags:
            from ddplaunch.cli.parsing.removed import removed  # for mistakes

            if (gone := removed("run", f"--{name}")) is not None:
                raise gone
            raise _unknown("key", key, [known.replace("_", "-") for known in flags], where)
        if name in said:
            spelled = name.replace("_", "-")
            raise usage(
                f"`{spelled}` is set twice",
                why="`-` and `_` spell the same key",
                fix=f"keep one of `{spelled}` and `{name}` in {where}",
                where=where,
            )
        source, kind = Source("profile", where), flags[name].kind
        if kind == "rates":
            said[name] = tuple(Resolved(text, source) for text in _rates(key, value, where))
        elif kind == "many":
            items = value if isinstance(value, list) else [value]
            said[name] = tuple(Resolved(_scalar(key, item, kind, where), source) for item in items)
        else:
            said[name] = Resolved(_scalar(key, value, kind, where), source)
    return said


def _rates(key: str, value: object, where: str) -> Iterator[str]:
    """Yield ``1e-4``, or ``phase1=3e-5`` for each of several learning rates in a list or a table."""
    if isinstance(value, Mapping):
        for name, number in value.items():
            yield f"{name}={_scalar(key, number, 'rates', where)}"
        return
    for item in value if isinstance(value, list) else [value]:
        yield item if isinstance(item, str) and "=" in item else str(_scalar(key, item, "rates", where))


def _scalar(key: str, value: object, kind: Kind, where: str) -> object:
    wanted, expected, example = TYPES.get(kind, (str, "text", '"text"'))
    if wanted in (float, str) and isinstance(value, int) and not isinstance(value, bool):
        return wanted(str(value))  # float() of an int of 400 digits raises OverflowError, that of their text is inf
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise usage(
            f"`{key} = {value!r}` is not {expected}",
            why=f"`{key}` takes {expected}",
            fix=f"correct it in {where}, as in `{key} = {_EXAMPLES.get(key, example)}`",
            where=where,
        )
    return value


def said_in_profile(document: Mapping[str, Any], name: str | None, where: str) -> Said:
    """Merge the document's own keys with those of the named profile, which wins.

    Raises UsageError if the profile does not exist.
    """
    profiles = _table_of_tables(document.get("profiles", {}), where)
    base = said_in_table({key: value for key, value in document.items() if key != "profiles"}, where)
    if name is None:
        return base
    if name not in profiles:
        raise _unknown("profile", name, list(profiles), where)
    return merge(said_in_table(profiles[name], f"{where}, {name}"), base)


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


_ONLY_SCALE = ("base_batch_size", "lr_scaling", "lr_max_factor")


def merge(first: Said, second: Said) -> dict[str, Any]:
    """Return ``first`` completed by ``second``; repeatable flags are joined, those of ``first`` last.

    What ``first`` says also takes away from ``second`` what would contradict it, so that a flag wins over a profile.
    """
    merged = {name: value for name, value in second.items() if name not in _displaced(first, second)}
    for name, other in (("lr", "base_lr"), ("base_lr", "lr")):
        said = {item.value.rpartition("=")[0] for item in first.get(name, ())}
        left = tuple(item for item in merged.pop(other, ()) if item.value.rpartition("=")[0] not in said)
        merged |= {other: left} if left else {}
    if "lr" in first and not {"base_lr", "base_warmup"} & (first.keys() | merged.keys()):  # nothing to scale is left
        merged = {name: value for name, value in merged.items() if name not in _ONLY_SCALE}
    for name, value in first.items():
        merged[name] = (*merged.get(name, ()), *value) if isinstance(value, tuple) else value
    return merged


def _displaced(first: Said, second: Said) -> set[str]:
    """Return the flags of ``second`` that cannot stand beside those of ``first``."""
    names: set[str] = set()
    if "warmup" in first:
        names.add("base_warmup")
    if "base_warmup" in first:
        names.add("warmup")
    if "gpus" in first:
        names.add("device")
    if "device" in first and first["device"].value == "cpu":
        names.add("gpus")
    if "nnodes" in first and "nproc" in second and "x" in second["nproc"].value:
        names.add("nproc")
    return names


def _unknown(what: str, name: str, known: list[str], where: str) -> UsageError:
    near = nearest(name, known, cutoff=0.5)
    listed = ", ".join(f"`{item}`" for item in sorted(known)) or "none"
    return usage(
        f"unknown {what} `{name}`",
        why=f"{where} may hold: {listed}",
        fix=f"did you mean `{near}`?" if near else f"use one of those, or remove `{name}`",
        where=where,
    )
