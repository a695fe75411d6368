"""Evaluates a script's expressions before it runs, to decide which conditions hold in this launch.

Known are literals, options with their passed value or literal default, and that torchrun sets its variables. Everything
else is ``UNKNOWN``, and so is a condition that depends on it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ddplaunch.script.names import dotted, last, string
from ddplaunch.script.reachable import ReachablePart

UNKNOWN: Final = object()

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], object]] = {ast.Not: operator.not_, ast.USub: operator.neg}
#: Usual names of variables with parsed arguments or a configuration.
_NAMESPACES = "args arguments opt opts options cfg config conf params hparams flags FLAGS"
NAMESPACES = frozenset(_NAMESPACES.split())
_DEPTH = 12
_OF_RANKS = """
    RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE ROLE_NAME
    MASTER_ADDR MASTER_PORT OMP_NUM_THREADS TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
    TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE TORCHELASTIC_SIGNALS_TO_HANDLE TORCH_NCCL_ASYNC_ERROR_HANDLING
"""
#: Variables that every rank of a launch has.
TORCHRUN_NAMES = frozenset(_OF_RANKS.split())


class Known:
    """Decides conditions from the values of ``options``, by destination.

    ``bound`` returns the expressions that are assigned to a name or attribute, each with its part of the program. The
    name is known if all of them that can run have the same value.
    """

    def __init__(
        self,
        options: Mapping[str, object],
        bound: Callable[[ast.AST, ReachablePart], Sequence[tuple[ast.expr, ReachablePart]]],
    ) -> None:
        """Remember what is known."""
        self._options, self._bound = options, bound
        self._decided: dict[int, bool | None] = {}
        self._open: set[str] = set()
        self._around: dict[int, tuple[tuple[ast.expr, bool], ...]] = {}

    def option(self, dest: str) -> object:
        """Return the value of an option, or ``UNKNOWN``."""
        return self._options.get(dest, UNKNOWN)

    def runs(self, node: ast.AST, part: ReachablePart) -> bool:
        """Return whether ``node`` may run: False only if a condition around it certainly does not hold."""
        return self.obstacle(node, part) is None

    def obstacle(self, node: ast.AST, part: ReachablePart) -> ast.expr | None:
        """Return the condition that certainly keeps ``node`` from running, within its function."""
        for test, wanted in self.conditions(node, part):
            verdict = self.decide(test, part)
            if verdict is not None and verdict is not wanted:
                return test
        return None

    def conditions(self, node: ast.AST, part: ReachablePart) -> tuple[tuple[ast.expr, bool], ...]:
        """Return the conditions around ``node``, the innermost first, each with the outcome that lets it run."""
        if id(node) not in self._around:
            parent = part.parent(node)
            around = () if parent is None else self.conditions(parent, part)
            if isinstance(parent, (ast.If, ast.IfExp)) and node is not parent.test:
                body = parent.body if isinstance(parent.body, list) else [parent.body]
                around = ((parent.test, node in body), *around)
            self._around[id(node)] = around
        return self._around[id(node)]

    def options_behind(self, test: ast.expr, part: ReachablePart, depth: int = 5) -> frozenset[str]:
        """Return the destinations of the options that a condition depends on."""
        found: set[str] = set()
        for node in ast.walk(test):
            found |= {last(node), string(node) or ""} & self._options.keys()
            if depth and isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
                for value, where in self._bound(node, part):
                    stopped = self.obstacle(value, where)
                    found |= self.options_behind(stopped or value, where, depth - 1)
        return frozenset(found)

    def decide(self, test: ast.expr, part: ReachablePart) -> bool | None:
        """Return whether the condition holds, or None."""
        if id(test) not in self._decided:
            self._decided[id(test)] = None  # in case the condition depends on itself
            value = self.value(test, part)
            self._decided[id(test)] = None if value is UNKNOWN else bool(value)
        return self._decided[id(test)]

    def turns(self, dest: str, test: ast.expr, part: ReachablePart) -> bool:
        """Return whether another value of an option would change what a condition decides."""
        texts = () if isinstance(self._options.get(dest), (int, float)) else ("2", "env://")
        others = (Known({**self._options, dest: value}, self._bound) for value in (True, 0, 2, *texts))
        return any(other.decide(test, part) is not self.decide(test, part) for other in others)

    def value(self, node: ast.expr, part: ReachablePart, depth: int = _DEPTH) -> object:
        """Return the value of an expression, or ``UNKNOWN``."""
        if depth == 0:
            return UNKNOWN
        try:
            return self._value(node, part, depth - 1)
        except Exception:  # it would fail in the script too, or means something else there
            return UNKNOWN

    def _value(self, node: ast.expr, part: ReachablePart, depth: int) -> object:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            items = [self.value(item, part, depth) for item in node.elts]
            return UNKNOWN if UNKNOWN in items else tuple(items)
        if isinstance(node, ast.BoolOp):
            return self._bool(node, part, depth)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, part, depth)
        if isinstance(node, ast.Compare):
            return self._compare(node, part, depth)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, part, depth)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._named(node, part, depth)
        return UNKNOWN

    def _bool(self, node: ast.BoolOp, part: ReachablePart, depth: int) -> object:
        values = [self.value(item, part, depth) for item in node.values]
        decisive = isinstance(node.op, ast.Or)
        if any(value is not UNKNOWN and bool(value) is decisive for value in values):
            return decisive
        return UNKNOWN if UNKNOWN in values else not decisive

    def _unary(self, node: ast.UnaryOp, part: ReachablePart, depth: int) -> object:
        value = self.value(node.operand, part, depth)
        if value is UNKNOWN:
            return UNKNOWN
        return _UNARY[type(node.op)](value)

    def _compare(self, node: ast.Compare, part: ReachablePart, depth: int) -> object:
        if len(node.ops) == 1 and dotted(node.comparators[0], part.aliases) in ("os.environ", "os.environ.keys"):
            present = string(node.left) in TORCHRUN_NAMES
            return isinstance(node.ops[0], ast.In) if present else UNKNOWN
        left = self.value(node.left, part, depth)
        for operation, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, part, depth)
            if left is UNKNOWN or right is UNKNOWN:
                return UNKNOWN
            if not _COMPARE[type(operation)](left, right):
                return False
            left = right
        return True

    def _subscript(self, node: ast.Subscript, part: ReachablePart, depth: int) -> object:
        key = string(node.slice) if last(node.value) in NAMESPACES else None
        return UNKNOWN if key is None else self._assigned(key, UNKNOWN, node, part, depth)

    def _named(self, node: ast.Name | ast.Attribute, part: ReachablePart, depth: int) -> object:
        name = dotted(node, part.aliases)
        if name == "__name__":  # no part has the main guard of an imported file
            return "__main__"
        if isinstance(node, ast.Attribute):
            return self._assigned(node.attr, self.option(node.attr), node, part, depth)
        return self._assigned(f"name {id(node)}", UNKNOWN, node, part, depth)  # `args.gpu = gpu`: not the same

    def _assigned(self, key: str, option: object, node: ast.expr, part: ReachablePart, depth: int) -> object:
        """Return the value that all assignments of a name, attribute or key, and its option, have; else UNKNOWN."""
        if key in self._open:  # `args.gpu = gpu` in a function that gets `args.gpu`
            return option
        self._open.add(key)
        try:
            bound = self._bound(node, part)
            values = [self.value(item, where, depth) for item, where in bound if self.runs(item, where)]
        finally:
            self._open.discard(key)
        if option is not UNKNOWN or not values:
            values.append(option)
        first = values[0]
        return first if all(value is not UNKNOWN and value == first for value in values) else UNKNOWN


def known_value(default: str | None, given: Sequence[str], takes_value: bool) -> object:
    """Return the value that an option will have, from what is passed for it or its default as source text.

    Text is a number if it reads as one, as it would be for an option with a type.
    """
    if given:
        return _literal(given[-1]) if takes_value else given[-1] == "True"
    if default is None:
        return None if takes_value else False
    return _literal(default)


def _literal(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"True": True, "False": False, "None": None}.get(text, text)


def text_of(node: ast.AST | None) -> str:
    """Return the text in an expression that may be joined from several, as in the ``help`` of an option."""
    pieces = [inner for inner in ast.walk(node) if isinstance(inner, ast.Constant)] if node is not None else []
    pieces.sort(key=lambda piece: (piece.lineno, piece.col_offset))
    return "".join(string(piece) or "" for piece in pieces)
