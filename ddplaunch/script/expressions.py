"""Questions about single expressions of a source file; refuses to know any library."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ddplaunch.script.imports import records_of
from ddplaunch.script.report import DeclaredAt
from ddplaunch.script.source import Source


def aliases_of(source: Source) -> dict[str, str]:
    """Return what the imported names of a file stand for: ``mp`` is ``torch.multiprocessing``."""
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
    """Say whether the expression is the literal ``True``."""
    return isinstance(node, ast.Constant) and node.value is True


def strings(nodes: Iterable[ast.expr]) -> list[str] | None:
    """Return the string literals, or None if one of the expressions is anything else."""
    found = [string(node) for node in nodes]
    return None if None in found else [text for text in found if text is not None]


def literal(node: ast.AST | None, source: Source) -> str | None:
    """Return a literal default: a string's value, a number as it is written, None for anything computed."""
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


def at(node: ast.AST, source: Source) -> DeclaredAt:
    """Return the line that a statement or expression starts on."""
    return DeclaredAt(source.shown, getattr(node, "lineno", 1))
