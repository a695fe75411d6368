"""How a loop in a source ends, and how long a line sleeps: what a rank that stands still may be waiting for."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Literal

from ddplaunch.script.configuration.config_files import number_text
from ddplaunch.script.names import is_number, last
from ddplaunch.script.source import SyntaxProblem, parse, read_text

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def source_text(path: str) -> str | None:
    """Return the text of the source at ``path``; None of what cannot be read."""
    file = read_text(Path(path))
    return None if file is None else file.text


def _loop_at(text: str, line: int) -> ast.For | ast.While | None:
    """Return the innermost loop around ``line`` of its function."""
    parsed = parse(Path(), "", text)
    around = [
        node
        for node in (() if isinstance(parsed, SyntaxProblem) else parsed.nodes)
        if isinstance(node, (ast.For, ast.While, *_FUNCTIONS)) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return around[-1] if around and isinstance(around[-1], (ast.For, ast.While)) else None


def waits_in_loop(text: str, line: int) -> bool:
    """Return whether ``line`` of the source ``text`` is in a loop that does nothing but ask and sleep until it ends.

    ``while not flag: pass``, ``while not path.exists(): time.sleep(1)``, and ``while True:`` with an ``if`` that leaves
    it are such loops: whatever ends them has to come from elsewhere.
    """
    loop = _loop_at(text, line)
    return isinstance(loop, ast.While) and all(_idles(statement, loop) for statement in loop.body)


def loop_kind(text: str, line: int) -> Literal["counts", "endless", "asks"] | None:
    """Return how the innermost loop around ``line`` of its function ends; None where there is none.

    One that ``counts`` comes to its end by itself: ``for batch in data:``, and ``while step < steps:`` with
    ``step += 1``. An ``endless`` one never does: ``while True:`` that nothing leaves, or a loop that only waits. Any
    other ``asks``: what ends it may come from elsewhere, as with ``break`` and ``return``.
    """
    loop = _loop_at(text, line)
    if loop is None:
        return None
    inside = list(ast.walk(loop))
    if isinstance(loop, ast.While) and all(_idles(each, loop) for each in loop.body):
        return "endless"
    if any(isinstance(node, (ast.Break, ast.Return)) for node in inside):
        return "asks"
    if isinstance(loop, ast.For):
        name = last(loop.iter.func) if isinstance(loop.iter, ast.Call) else ""
        return "endless" if name in ("count", "cycle", "repeat") else "asks" if name == "iter" else "counts"
    if isinstance(loop.test, ast.Constant) and not any(isinstance(node, ast.Raise) for node in inside):
        return "endless"
    tested = list(ast.walk(loop.test))
    counted = bool(_grown(loop) & _names(loop.test)) and isinstance(loop.test, ast.Compare)
    return "counts" if counted and not any(isinstance(node, ast.Call) for node in tested) else "asks"


def slept_s(text: str, line: int) -> float:
    """Return for how many seconds ``line`` of the source sleeps: ``time.sleep(60 * 5)``; 0.0 where no number tells."""
    parsed = parse(Path(), "", text)
    for node in () if isinstance(parsed, SyntaxProblem) else parsed.nodes:
        sleeps = isinstance(node, ast.Call) and last(node.func) == "sleep" and len(node.args) == 1
        if sleeps and node.lineno <= line <= (node.end_lineno or 0):  # type: ignore[attr-defined]  # of a call
            seconds = number_text(node.args[0]) or ""  # type: ignore[attr-defined]
            return float(seconds) if is_number(seconds) else 0.0
    return 0.0


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
    name = last(statement.value.func) if isinstance(statement.value, ast.Call) else ""
    return isinstance(statement.value, ast.Constant) or name in ("sleep", "sched_yield")
