"""Finds the source file of what is to be launched by walking directories; refuses to import anything."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from ddplaunch.values import Unavailable

_SHEBANG = re.compile(rb"#!.*\bpython[0-9.]*\b")
_SHEBANG_BYTES = 256


def locate(kind: str, name: str, cwd: Path, search: Sequence[Path]) -> Path | Unavailable:
    """Return the source file of a script, module or executable named on the command line.

    ``kind`` is that of ``Target``. A module is looked up in ``cwd`` and then in ``search`` (the entries of
    ``sys.path``) as ``python -m`` would find it, except that no parent package is imported. An executable counts
    only if its first line names a Python interpreter.
    """
    try:
        if kind == "script":
            return cwd / name
        if kind == "module":
            return _module(name, (cwd, *search))
        return _executable(cwd / name)
    except (OSError, ValueError) as error:  # a NUL byte in a name is a ValueError
        return Unavailable(f"`{name}` cannot be read: {error}")


def find_module(parts: Sequence[str], directories: Iterable[Path]) -> Path | None:
    """Return ``a/b.py`` or ``a/b/__init__.py`` for ``("a", "b")``, or None.

    As in Python's own path finder the first directory with a regular package or module ends the search and
    directories without ``__init__.py`` are namespace portions, which only count if nothing else is found.
    A namespace package itself has no source, so it is None.
    """
    portions = [Path(directory) for directory in directories]
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        found = _regular(part, portions)
        if found is None:
            portions = [portion / part for portion in portions if (portion / part).is_dir()]
        elif last:
            return found
        elif found.name == "__init__.py" and found.parent.name == part:
            portions = [found.parent]
        else:
            return None
    return None


def _regular(part: str, portions: Iterable[Path]) -> Path | None:
    for portion in portions:
        for candidate in (portion / part / "__init__.py", portion / f"{part}.py"):
            if candidate.is_file():
                return candidate
    return None


def _module(name: str, directories: Sequence[Path]) -> Path | Unavailable:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return Unavailable(f"`{name}` is not the name of a module")
    found = find_module(parts, directories)
    if found is not None and found.name != "__init__.py":
        return found
    main = find_module([*parts, "__main__"], directories)
    if main is not None:
        return main
    return Unavailable(f"no source of the module `{name}` was found")


def _executable(path: Path) -> Path | Unavailable:
    if path.is_file() and stat.S_ISREG(path.stat().st_mode):
        with path.open("rb") as file:
            first_line = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
        if _SHEBANG.match(first_line):
            return path
    return Unavailable("not a Python file")
