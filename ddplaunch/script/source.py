"""One source file: found without importing anything, decoded as Python does, and parsed."""

from __future__ import annotations

import ast
import io
import re
import stat
import tokenize
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable

try:
    from _blake2 import blake2b  # hashlib's own, without OpenSSL, which takes 3 ms to load
except ImportError:
    from hashlib import blake2b

_SIZE_LIMIT_BYTES = 1_000_000
_SHEBANG = re.compile(rb"#!.*\bpython[0-9.]*\b")
_SHEBANG_BYTES = 256


def locate(kind: str, name: str, cwd: Path, search: Sequence[Path]) -> Path | Unavailable:
    """Return the source file of a script, module or executable named on the command line.

    ``kind`` is that of ``Target``. A folder's script is its ``__main__.py``. A module is looked up in ``cwd`` and then
    in ``search`` (the entries of ``sys.path``) as by ``python -m``, but without importing its parent packages. An
    executable only counts if its first line names a Python interpreter.
    """
    try:
        if kind == "script":
            path = cwd / name
            return path / "__main__.py" if path.is_dir() else path
        if kind == "module":
            return _module(name, (cwd, *search))
        return _executable(cwd / name)
    except (OSError, ValueError) as error:  # a NUL byte in a name is a ValueError
        return Unavailable(f"`{name}` cannot be read: {error}")


def find_module(parts: Sequence[str], directories: Iterable[Path]) -> Path | None:
    """Return ``a/b.py`` or ``a/b/__init__.py`` for ``("a", "b")``, or None.

    As in Python's own path finder, the first directory with a regular package or module ends the search. Directories
    without ``__init__.py`` are portions of a namespace package: they only count if nothing else is found, and a
    namespace package itself has no source.
    """
    portions = [Path(directory) for directory in directories]
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        found = _regular(part, portions)
        if found is None:
            portions = [portion / part for portion in portions if (portion / part).is_dir()]
            if not portions:
                return None
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
    return main or Unavailable(f"no source of the module `{name}` was found")


def _executable(path: Path) -> Path | Unavailable:
    if path.is_file():
        with path.open("rb") as file:
            first_line = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
        if _SHEBANG.match(first_line):
            return path
    return Unavailable("not a Python file")


@dataclass(frozen=True)
class FileText:
    """The decoded text of a file. ``problem`` says why Python would refuse to run it."""

    text: str
    problem: str | None = None


@dataclass(frozen=True)
class ParsedFile:
    """A parsed file: ``shown`` is its path as users see it, ``parents`` maps each node to its parent.

    ``starts`` are the positions of its top-level statements among its ``nodes``; nodes inside a statement follow it.
    """

    path: Path
    shown: str
    text: str
    tree: ast.Module
    parents: dict[ast.AST, ast.AST]
    nodes: tuple[ast.AST, ...]
    starts: tuple[int, ...]

    @cached_property
    def imports(self) -> tuple[ast.AST, ...]:
        """The import statements."""
        return tuple([node for node in self.nodes if type(node) in (ast.Import, ast.ImportFrom)])

    @cached_property
    def definitions(self) -> dict[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
        """The classes and functions at the top level; of several with one name the first."""
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        return {each.name: each for each in reversed(self.tree.body) if isinstance(each, kinds)}

    @cached_property
    def lines(self) -> list[str]:
        """The lines as the parser counts them (form feeds do not end one)."""
        return list(io.StringIO(self.text, newline=None))


@dataclass(frozen=True)
class SyntaxProblem:
    """Why a text has no tree; ``refused`` is False if only this reader gave up and Python would not."""

    line: int
    message: str
    refused: bool


def read_text(path: Path) -> FileText | None:
    """Return the text of a regular file below ``_SIZE_LIMIT_BYTES``, or None.

    The byte order mark or the cookie (PEP 263) gives the encoding. A file that does not decode is read as Latin-1 with
    ``problem`` set, because Python refuses it.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _SIZE_LIMIT_BYTES:
            return None
        data = path.read_bytes()
    except (OSError, ValueError):
        return None
    problem = "source code cannot contain null bytes" if b"\0" in data else None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return FileText(data.decode(encoding), problem)
    except (SyntaxError, LookupError, ValueError) as error:
        return FileText(data.decode("latin-1"), problem or f"the encoding is wrong ({_first_line(str(error))})")


def parse(path: Path, shown: str, text: str) -> ParsedFile | SyntaxProblem:
    """Return the parsed ``text``, or why it cannot be parsed; never raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about `"\d"` and the like in the user's script
            tree = ast.parse(text)
        parents: dict[ast.AST, ast.AST] = {}
        nodes, starts = _walk(tree, parents)
    except SyntaxError as error:
        too_deep = re.search("too many nested|too complex|parser stack", error.msg or "") is not None
        return SyntaxProblem(error.lineno or 1, _first_line(error.msg or "invalid syntax"), not too_deep)
    except (ValueError, RecursionError, MemoryError) as error:
        return SyntaxProblem(1, _first_line(str(error)), False)
    return ParsedFile(path, shown, text, tree, parents, tuple(nodes), tuple(starts))


# Fields that are not followed: contexts, operators, and texts such as names.
_NO_NODES = frozenset({"ctx", "op", "ops", "id", "attr", "arg", "asname", "module", "level", "type_comment"})
# For each kind of node the fields that can hold nodes, the last first; a name and a constant have none.
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {ast.Name: (), ast.Constant: ()}


def _walk(tree: ast.Module, parents: dict[ast.AST, ast.AST]) -> tuple[list[ast.AST], list[int]]:
    """Return all nodes except contexts and operators, in source order of statements, and fill ``parents``.

    The second list has the positions of the top-level statements.
    """
    nodes: list[ast.AST] = [tree]
    starts: list[int] = []
    for statement in tree.body:
        parents[statement] = tree
        starts.append(len(nodes))
        stack: list[ast.AST] = [statement]
        while stack:
            node = stack.pop()
            nodes.append(node)
            kind = type(node)
            fields = _FIELDS.get(kind)
            if fields is None:
                fields = _FIELDS[kind] = tuple(name for name in reversed(kind._fields) if name not in _NO_NODES)
            for name in fields:  # last first, so that the first is on top of the stack
                value = getattr(node, name, None)
                for item in reversed(value) if type(value) is list else (value,):
                    if isinstance(item, ast.AST):
                        parents[item] = node
                        stack.append(item)
    return nodes, starts


def digest_of(text: str) -> str:
    """Return a digest of 64 bits in hex, which tells apart texts that nobody chose to collide."""
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200]
