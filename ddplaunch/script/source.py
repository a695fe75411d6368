"""Turns one file into a syntax tree, its nodes and their parents; refuses to follow imports or to raise."""

from __future__ import annotations

import ast
import io
import re
import stat
import tokenize
import warnings
from functools import cached_property
from pathlib import Path

from ddplaunch.frozen import dataclass

SIZE_LIMIT_BYTES = 1_000_000


@dataclass(frozen=True)
class Text:
    """The decoded text of a file. ``problem`` says why Python itself would refuse to run it."""

    text: str
    problem: str | None = None


@dataclass(frozen=True)
class Source:
    """One parsed file: ``shown`` is its path as users read it, ``parents`` leads from any node to its parent."""

    path: Path
    shown: str
    text: str
    tree: ast.Module
    parents: dict[ast.AST, ast.AST]
    nodes: tuple[ast.AST, ...]

    @cached_property
    def lines(self) -> list[str]:
        """The lines as the parser counts them (form feeds do not end one)."""
        return list(io.StringIO(self.text, newline=None))


@dataclass(frozen=True)
class SyntaxProblem:
    """Why a text has no tree; ``refused`` is False where only this reader gave up, not Python."""

    line: int
    message: str
    refused: bool


def read_text(path: Path) -> Text | None:
    """Return the text of a regular file below ``SIZE_LIMIT_BYTES``, or None.

    The encoding is taken from the byte order mark or the cookie (PEP 263); what does not decode is read as Latin-1
    with ``problem`` set, since Python refuses such a file.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > SIZE_LIMIT_BYTES:
            return None
        data = path.read_bytes()
    except (OSError, ValueError):
        return None
    return decode(data)


def decode(data: bytes) -> Text:
    """Return ``data`` as text, see ``read_text``."""
    problem = "source code cannot contain null bytes" if b"\0" in data else None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return Text(data.decode(encoding), problem)
    except (SyntaxError, LookupError, ValueError) as error:
        return Text(data.decode("latin-1"), problem or f"the encoding is wrong ({_first_line(str(error))})")


def parse(path: Path, shown: str, text: str) -> Source | SyntaxProblem:
    """Parse ``text``; never raises, whatever it holds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `"\d"` in the user's script is not ours to complain about
            tree = ast.parse(text)
        parents: dict[ast.AST, ast.AST] = {}
        nodes = tuple(_walk(tree, parents))
    except SyntaxError as error:
        too_deep = re.search("too many nested|too complex|parser stack", error.msg or "") is not None
        return SyntaxProblem(error.lineno or 1, _first_line(error.msg or "invalid syntax"), not too_deep)
    except (ValueError, RecursionError, MemoryError) as error:
        return SyntaxProblem(1, _first_line(str(error)), False)
    return Source(path, shown, text, tree, parents, nodes)


def _walk(tree: ast.Module, parents: dict[ast.AST, ast.AST]) -> list[ast.AST]:
    """Return all nodes except contexts and operators, in source order of statements, and fill ``parents``."""
    nodes: list[ast.AST] = []
    stack: list[ast.AST] = [tree]
    skipped = (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)
    while stack:
        node = stack.pop()
        nodes.append(node)
        children: list[ast.AST] = []
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                children += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, skipped):
                children.append(value)
        for child in children:
            parents[child] = node
        stack.extend(reversed(children))
    return nodes


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200]
