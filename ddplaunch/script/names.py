"""Import statements and the local files behind them, and the names and literals in expressions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ddplaunch.script.report import DeclaredAt
from ddplaunch.script.source import ParsedFile, find_module
from ddplaunch.values.frozen import dataclass

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
    """Yield the imports of a file without parsing it, by pattern; lines inside of strings may be among them."""
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
    """The directories of local imports: the script's, the working directory, its ``src``, and ``search`` below it.

    Installed packages are never local.
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

    def files_of(self, importer: Path, record: ImportRecord) -> list[Path]:
        """Return every local file that the statement executes: the packages on the way and imported submodules."""
        parts = record.module.split(".") if record.module else []
        modules = [".".join(parts[: number + 1]) for number in range(len(parts))] or [""]
        found = [self.file_of(importer, ImportRecord(module, record.level, (), "", 0)) for module in modules]
        if found[-1] is None or found[-1].name == "__init__.py":
            found += [self.file_of(importer, record, name) for name, _ in record.names if name != "*"]
        return [path for path in found if path is not None]

    def is_local(self, package: str) -> bool:
        """Return whether a file or directory of that name is in one of the roots."""
        return any(
            (root / f"{package}.py").exists() or (root / package).is_dir() or any(root.glob(f"{package}.*.so"))
            for root in self.directories
        )

    def _find(self, parts: tuple[str, ...], directories: tuple[Path, ...]) -> Path | None:
        memory = self._found.setdefault(directories, {})
        if parts not in memory:
            try:
                memory[parts] = None if "*" in parts else find_module(parts, directories)
            except (OSError, ValueError):  # a loop of symbolic links, a name too long
                memory[parts] = None
        return memory[parts]


def aliases_of(source: ParsedFile) -> dict[str, str]:
    """Return the full names of a file's imported names: ``mp`` is ``torch.multiprocessing``."""
    names: dict[str, str] = {}
    for record in records_of(source.nodes):
        dots = "." * record.level
        if not record.names:
            names[record.bound] = record.module if record.bound != record.package else record.package
        for original, bound in record.names:
            names[bound] = f"{dots}{record.module}.{original}"
    return names


def dotted(node: ast.AST | None, aliases: dict[str, str]) -> str:
    """Return ``torch.multiprocessing.spawn`` for ``mp.spawn``; empty for anything but a chain of names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([aliases.get(node.id, node.id), *reversed(parts)])


def last(node: ast.AST | None) -> str:
    """Return the last name of a chain: ``spawn`` for ``mp.spawn`` and for ``get().spawn``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument."""
    return next((item.value for item in call.keywords if item.arg == name), None)


def string(node: ast.AST | None) -> str | None:
    """Return the value of a string literal."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def is_true(node: ast.AST | None) -> bool:
    """Return whether the expression is the literal ``True``."""
    return isinstance(node, ast.Constant) and node.value is True


def strings(nodes: Iterable[ast.expr]) -> list[str] | None:
    """Return the string literals, or None if one of the expressions is anything else."""
    found = [string(node) for node in nodes]
    return None if None in found else [text for text in found if text is not None]


def literal(node: ast.AST | None, source: ParsedFile) -> str | None:
    """Return a literal default: the value of a string, a number as it is written; None for computed ones."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    if not isinstance(number, ast.Constant) or number.value is None or number.value is ...:
        return None
    assert isinstance(node, ast.expr)
    if node.lineno != node.end_lineno or node.lineno > len(source.lines):
        return None
    line = source.lines[node.lineno - 1].encode("utf-8", "surrogatepass")
    return line[node.col_offset : node.end_col_offset].decode("utf-8", "replace")


def at(node: ast.AST, source: ParsedFile) -> DeclaredAt:
    """Return the line that a statement or expression starts on."""
    return DeclaredAt(source.shown, getattr(node, "lineno", 1))
