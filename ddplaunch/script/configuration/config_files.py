"""Reads the keys of YAML and JSON configuration files, with their values and lines.

Nothing in them is executed. PyYAML, which reads JSON too, is imported only when there is such a file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice
from operator import add, floordiv, mul, neg, truediv
from pathlib import Path
from typing import Any

from ddplaunch.script.names import at, last, string
from ddplaunch.script.script_report import DeclaredAt
from ddplaunch.script.source import ParsedFile, read_text
from ddplaunch.values.frozen import dataclass

#: Endings of the names of files that this module reads.
ENDINGS = (".yaml", ".yml", ".json")
_NOT_LITERAL = re.compile(r"\$\{|\?\?\?")
_DEPTH = 12
_MOST_ENTRIES = 5000


@dataclass(frozen=True)
class Entry:
    """A value that is not a section: ``key`` is its path (``optim.lr``), ``text`` its literal value or None.

    ``computed`` is True for a reference to another value, and for what only running the file would tell.
    """

    key: str
    text: str | None
    at: DeclaredAt
    computed: bool = False


def read_entries(path: Path, shown: str) -> list[Entry]:
    """Return the entries of one file in their order, none if it cannot be read. Never raises."""
    read = read_text(path)
    if read is None or read.problem is not None:
        return []
    try:
        return list(islice(_yaml(read.text, shown), _MOST_ENTRIES))
    except (ValueError, RecursionError, OSError):  # what its own reader would refuse too
        return []


def _compose(text: str) -> Any:
    """Return the tree of a YAML text. Raises ValueError."""
    import yaml  # takes 20 ms

    try:
        return yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _yaml(text: str, shown: str) -> Iterator[Entry]:
    """Yield the entries of a YAML or JSON file."""
    for key, node in _scalars(_compose(text)):
        reference = _NOT_LITERAL.search(node.value) is not None
        value = None if reference or node.tag.endswith(":null") else node.value
        yield Entry(key, value, DeclaredAt(shown, node.start_mark.line + 1), reference)


def _scalars(node: Any, prefix: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Yield the scalars below a mapping, other than those that ``<<`` merges into it."""
    for key, value in node.value if depth and getattr(node, "id", "") == "mapping" else ():
        if value.id == "scalar":
            yield f"{prefix}{key.value}", value
        elif key.value != "<<":
            yield from _scalars(value, f"{prefix}{key.value}.", depth - 1)


def literal_entries(name: str, node: ast.expr, source: ParsedFile, depth: int = _DEPTH) -> Iterator[Entry]:
    """Yield the entry of ``name``, or those below it if the expression is a dictionary."""
    pairs = dict_items(node)
    if pairs is None:
        value = _folded(node)
        text = None if value is None else str(value)
        empty = isinstance(node, ast.Constant) and node.value is None
        yield Entry(name, text, at(node, source), computed=text is None and not empty)
        return
    for key, value in pairs if depth else ():
        yield from literal_entries(f"{name}.{key}" if name else key, value, source, depth - 1)


_MAKERS_OF_DICTS = "dict Dict ConfigDict CN CfgNode EasyDict edict Namespace HParams L"
_DICTS = _MAKERS_OF_DICTS.split()


def dict_items(node: ast.AST | None) -> list[tuple[str, ast.expr]] | None:
    """Return the items of ``{…}`` or ``dict(…)`` as far as their keys are literal; None for anything else."""
    if isinstance(node, ast.Dict):
        named = [(string(key), value) for key, value in zip(node.keys, node.values, strict=True)]
        return [(key, value) for key, value in named if key is not None]
    if not isinstance(node, ast.Call) or last(node.func) not in _DICTS:
        return None
    inner = dict_items(node.args[0]) if node.args else None
    return [*(inner or ()), *((item.arg, item.value) for item in node.keywords if item.arg is not None)]


_FOLDS: dict[object, Any] = {ast.Mult: mul, ast.Add: add, ast.Div: truediv, ast.FloorDiv: floordiv, ast.USub: neg}


def _folded(node: ast.AST | None) -> Any:
    """Return a literal, or arithmetic on literals; None for anything else."""
    if isinstance(node, ast.Constant):
        return None if node.value is ... else node.value
    try:
        if isinstance(node, ast.UnaryOp):
            return _FOLDS[type(node.op)](_folded(node.operand))
        if isinstance(node, ast.BinOp):
            return _FOLDS[type(node.op)](_folded(node.left), _folded(node.right))
    except Exception:  # no arithmetic, or it would fail in the script too
        pass
    return None


def names_class(entry: Entry) -> bool:
    """Return whether an entry names a class to create: ``_target_: src.data.Digits``."""
    return "." in (entry.text or "") and entry.key.rpartition(".")[2] in ("_target_", "class_path", "target")
