"""The source of the package, read and parsed once for all tests of a worker that look into it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import ddplaunch

PACKAGE = Path(ddplaunch.__file__).parent


@cache
def trees() -> dict[Path, ast.Module]:
    """Return every module of the package by its path."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def nodes() -> dict[Path, list[ast.AST]]:
    """Return every node of every module by the module's path: a walk takes about as long as the parser."""
    return {path: [*ast.walk(tree)] for path, tree in trees().items()}
