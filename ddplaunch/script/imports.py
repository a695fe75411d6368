"""Reads import statements and finds the local files behind them; refuses to look into site-packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ddplaunch.frozen import dataclass
from ddplaunch.script.locate import find_module

_STATEMENT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#;]+)|import[ \t]+([^\n#;(]+))", re.MULTILINE
)
_NOT_LOCAL = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class ImportRecord:
    """``from a.b import x as y``: module ``a.b``, level 0, names ``((x, y),)``; ``import a.b`` has no names."""

    module: str
    level: int
    names: tuple[tuple[str, str], ...]
    bound: str
    line: int

    @property
    def package(self) -> str:
        """The top-level package, empty for ``from . import x``."""
        return "" if self.level else self.module.partition(".")[0]


def records_of(nodes: Iterable[ast.AST]) -> Iterator[ImportRecord]:
    """Yield the imports among ``nodes``."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                yield ImportRecord(alias.name, 0, (), bound, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            names = tuple((alias.name, alias.asname or alias.name) for alias in node.names)
            yield ImportRecord(node.module or "", node.level, names, "", node.lineno)


def records_of_text(text: str) -> Iterator[ImportRecord]:
    """Yield the imports of a file that is not worth parsing, found by pattern; lines inside strings may slip in."""
    for match in _STATEMENT.finditer(text):
        origin, names, plain = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        if plain:
            for name, bound in _aliases(plain):
                top = name.partition(".")[0]
                yield ImportRecord(name, 0, (), top if bound == name else bound, line)
        else:
            module = origin.lstrip(".")
            level = len(origin) - len(module)
            yield ImportRecord(module, level, tuple(_aliases(re.sub(r"#[^\n]*", "", names))), "", line)


def _aliases(text: str) -> Iterator[tuple[str, str]]:
    for item in text.strip(" \t()\r\n").split(","):
        words = item.strip(" \t()\r\n\\").split()
        if words:
            yield words[0], words[2] if len(words) == 3 and words[1] == "as" else words[0]


class Roots:
    """The directories in which an import counts as local: the script's own, the working directory and its ``src``.

    Entries of ``search`` below the working directory count too. Installed packages never do.
    """

    def __init__(self, script: Path, cwd: Path, search: Sequence[Path]) -> None:
        below = [entry for entry in search if entry != cwd and entry.is_relative_to(cwd)]
        candidates = [script.parent, cwd, cwd / "src", *below]
        self.directories = [entry for entry in dict.fromkeys(candidates) if not _NOT_LOCAL & set(entry.parts)]
        self._found: dict[tuple[Path, ...], dict[tuple[str, ...], Path | None]] = {}

    def file_of(self, importer: Path, record: ImportRecord, name: str = "") -> Path | None:
        """Return the local file that the imported module, or its submodule ``name``, lives in."""
        parts = tuple(record.module.split(".")) if record.module else ()
        parts += (name,) if name else ()
        if not record.level:
            return self._find(parts, tuple(self.directories))
        base = importer.parent
        for _ in range(record.level - 1):
            base = base.parent
        if not parts:
            package = base / "__init__.py"
            return package if package.is_file() else None
        return self._find(parts, (base,))

    def files_of(self, importer: Path, record: ImportRecord) -> Iterator[Path]:
        """Yield every local file that the statement executes: the packages on the way and imported submodules."""
        parts = record.module.split(".") if record.module else []
        for count in range(1, len(parts) + 1):
            found = self.file_of(importer, ImportRecord(".".join(parts[:count]), record.level, (), "", 0))
            if found is not None:
                yield found
        if not parts:
            found = self.file_of(importer, record)
            if found is not None:
                yield found
        if not parts or self._is_package(importer, record):
            for name, _ in record.names:
                found = self.file_of(importer, record, name) if name != "*" else None
                if found is not None:
                    yield found

    def is_local(self, package: str) -> bool:
        """Say whether a file or directory of that name lies in one of the roots."""
        return any(
            (root / f"{package}.py").exists() or (root / package).is_dir() or any(root.glob(f"{package}.*.so"))
            for root in self.directories
        )

    def _is_package(self, importer: Path, record: ImportRecord) -> bool:
        found = self.file_of(importer, record)
        return found is None or found.name == "__init__.py"

    def _find(self, parts: tuple[str, ...], directories: tuple[Path, ...]) -> Path | None:
        memory = self._found.setdefault(directories, {})
        if parts not in memory:
            memory[parts] = None if "*" in parts else _find_safely(parts, directories)
        return memory[parts]


def _find_safely(parts: tuple[str, ...], directories: tuple[Path, ...]) -> Path | None:
    try:
        return find_module(parts, directories)
    except (OSError, ValueError):  # a loop of symbolic links, a name too long
        return None
