"""Finds mistakes of distributed training in a script's source, and returns each with the corrected line.

Mistakes that show in the ranks' first steps are left to ``watch``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddplaunch.script.flow import Flow
from ddplaunch.script.names import FunctionNodes, at, dotted, keyword, string
from ddplaunch.script.reachable import ReachablePart, is_environ
from ddplaunch.script.script_report import Mistake

_INIT = ("torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group")

Place = tuple[ast.Call, ReachablePart]


def mistakes_of(parts: Sequence[ReachablePart], flow: Flow) -> tuple[Mistake, ...]:
    """Return the mistakes of a program, each place once."""
    calls = ((call, part) for part in parts for call in part.calls_of("init_process_group"))
    groups = [
        (call, part) for call, part in calls if dotted(call.func, part.aliases) in _INIT and flow.known.runs(call, part)
    ]
    return tuple(_written_down(groups, parts, flow))


def _is_tried(node: ast.AST, part: ReachablePart) -> bool:
    """Return whether ``node`` is in any branch of a ``try`` statement of its function."""
    parent = part.source.parents.get(node)
    while parent is not None and not isinstance(parent, (ast.Try, *FunctionNodes)):
        parent = part.source.parents.get(parent)
    return isinstance(parent, ast.Try)


def _written_down(groups: Sequence[Place], parts: Sequence[ReachablePart], flow: Flow) -> Iterator[Mistake]:
    """Yield addresses and ports that the script sets itself, although torchrun sets them."""
    by_environment = False
    for call, part in groups:
        if all(item.arg for item in call.keywords) and not any(isinstance(item, ast.Starred) for item in call.args):
            given = keyword(call, "init_method") or next(iter(call.args[1:]), ast.Constant("env://"))
            method = str(flow.known.value(given, part))
            by_environment = by_environment or (method == "env://" and keyword(call, "store") is None)
            if method.startswith("tcp://") and not _is_tried(call, part):
                # an address without size and rank is refused, and torch chooses the backend by the device
                yield Mistake("rendezvous-in-script", at(call, part.source), f"{ast.unparse(call.func)}()", method)
    around = [None, *(flow.function_of(call, home) for call, home in groups)]
    for part in parts if by_environment else ():
        for node in part.of(ast.Assign):
            target, value = node.targets[0], string(node.value)
            named = isinstance(target, ast.Subscript) and is_environ(target.value, part) and string(target.slice)
            tests = (ast.unparse(test) for test, _ in flow.known.conditions(node, part))
            # certainly before the set-up of a group: at the top level, or in the same function
            certain = flow.function_of(node, part) in around and all("__name__" in test for test in tests)
            if named == "MASTER_PORT" and value is not None and certain and not _is_tried(node, part):
                corrected = f'os.environ.setdefault("MASTER_PORT", "{value}")'
                yield Mistake("rendezvous-in-script", at(node, part.source), corrected, f"MASTER_PORT={value}")
