"""One source file: found without importing anything, decoded as Python does, and parsed."""

from __future__ import annotations

import ast
import io
import math
import re
import stat
import tokenize
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

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

    ``kind`` is that of ``Target``. A module is looked up in ``cwd`` and then in ``search`` (the entries of
    ``sys.path``) as by ``python -m``, but without importing its parent packages. An executable only counts if its
    first line names a Python interpreter.
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
    if main is not None:
        return main
    return Unavailable(f"no source of the module `{name}` was found")


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

    ``starts`` are the positions of its top-level statements among its ``nodes``; those inside of each follow it.
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


def waits_in_loop(text: str, line: int) -> bool:
    """Return whether ``line`` of the source ``text`` is in a loop that does nothing but ask and sleep until it ends.

    ``while not flag: pass``, ``while not path.exists(): time.sleep(1)``, and ``while True:`` with an ``if`` that leaves
    it are such loops: whatever ends them has to come from elsewhere.
    """
    parsed = parse(Path(), "", text)
    if isinstance(parsed, SyntaxProblem):
        return False
    loops = [
        node for node in parsed.nodes if isinstance(node, ast.While) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return bool(loops) and all(_idles(each, loops[-1]) for each in loops[-1].body)


def loop_kind(text: str, line: int) -> Literal["counts", "endless", "asks"] | None:
    """Return how the innermost loop around ``line`` of its function ends; None where there is none.

    One that ``counts`` comes to its end by itself: ``for batch in data:``, and ``while step < steps:`` with
    ``step += 1``. An ``endless`` one never does: ``while True:`` that nothing leaves, or a loop that only waits. Any
    other ``asks``: what ends it may come from elsewhere, as with ``break`` and ``return``.
    """
    parsed = parse(Path(), "", text)
    if isinstance(parsed, SyntaxProblem):
        return None
    bodies = (ast.FunctionDef, ast.AsyncFunctionDef)
    around = [
        node
        for node in parsed.nodes
        if isinstance(node, (ast.For, ast.While, *bodies)) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    loop = around[-1] if around else None
    if loop is None or isinstance(loop, bodies):
        return None
    inside = list(ast.walk(loop))
    if isinstance(loop, ast.While) and all(_idles(each, loop) for each in loop.body):
        return "endless"
    if any(isinstance(node, (ast.Break, ast.Return)) for node in inside):
        return "asks"
    if isinstance(loop, ast.For):
        called = loop.iter.func if isinstance(loop.iter, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        return "endless" if name in ("count", "cycle", "repeat") else "asks" if name == "iter" else "counts"
    if isinstance(loop.test, ast.Constant) and not any(isinstance(node, ast.Raise) for node in inside):
        return "endless"
    tested = list(ast.walk(loop.test))
    counted = bool(_grown(loop) & _names(loop.test)) and isinstance(loop.test, ast.Compare)
    return "counts" if counted and not any(isinstance(node, ast.Call) for node in tested) else "asks"


def slept_s(text: str, line: int) -> float:
    """Return for how many seconds ``line`` of the source sleeps: ``time.sleep(60 * 5)``; 0.0 where no number tells."""
    parsed = parse(Path(), "", text)
    calls = () if isinstance(parsed, SyntaxProblem) else parsed.nodes
    for node in calls:
        if not (isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0) and len(node.args) == 1):
            continue
        if (getattr(node.func, "attr", "") or getattr(node.func, "id", "")) == "sleep":
            factors = _factors(node.args[0])
            return math.prod(factors) if factors else 0.0
    return 0.0


def _factors(tree: ast.expr) -> list[float]:
    """Return the numbers of a product, none where it has anything else."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult):
        left, right = _factors(tree.left), _factors(tree.right)
        return [*left, *right] if left and right else []
    return [tree.value] if isinstance(tree, ast.Constant) and isinstance(tree.value, (int, float)) else []


def _grown(loop: ast.While) -> set[str]:
    """Return the variables that ``loop`` counts up or down."""
    found = (each.target for each in ast.walk(loop) if isinstance(each, ast.AugAssign))
    return {target.id for target in found if isinstance(target, ast.Name)}


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _idles(statement: ast.stmt, loop: ast.While) -> bool:
    if isinstance(statement, (ast.Pass, ast.Continue, ast.Break, ast.Return)):
        return True
    if isinstance(statement, ast.AugAssign):  # how often it has asked
        return isinstance(statement.value, ast.Constant) and not _names(statement.target) & _names(loop.test)
    if isinstance(statement, ast.If):
        return all(_idles(each, loop) for each in (*statement.body, *statement.orelse))
    if not isinstance(statement, ast.Expr):
        return False
    called = statement.value.func if isinstance(statement.value, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return isinstance(statement.value, ast.Constant) or name in ("sleep", "sched_yield")


# Fields of contexts and operators, and of names.
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
        _walk_below(statement, parents, nodes)
    return nodes, starts


def _walk_below(top: ast.AST, parents: dict[ast.AST, ast.AST], nodes: list[ast.AST]) -> None:
    stack: list[ast.AST] = [top]
    while stack:
        node = stack.pop()
        nodes.append(node)
        kind = type(node)
        fields = _FIELDS.get(kind)
        if fields is None:
            fields = _FIELDS[kind] = tuple(name for name in reversed(kind._fields) if name not in _NO_NODES)
        for name in fields:  # from the last to the first, as they have to lie on the stack
            value = getattr(node, name, None)
            if isinstance(value, list):
                for item in reversed(value):
                    if isinstance(item, ast.AST):
                        parents[item] = node
                        stack.append(item)
            elif isinstance(value, ast.AST):
                parents[value] = node
                stack.append(value)


def digest_of(text: str) -> str:
    """Return what tells this text from any other one that a person would write."""
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200]
