"""Finds mistakes of distributed training in a script's source, and returns each with the corrected line.

Mistakes that show in the ranks' first steps are left to ``watch``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddplaunch.script.flow import Flow
from ddplaunch.script.names import at, dotted, keyword, string
from ddplaunch.script.process_groups import Outside
from ddplaunch.script.reachable import ReachablePart, calls_in, is_environ
from ddplaunch.script.script_report import Mistake

_INIT = ("torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group")


def _is_plain(node: ast.AST, part: ReachablePart, flow: Flow) -> bool:
    """Return whether the main guard is the only condition around ``node``."""
    return all("__name__" in ast.unparse(test) for test, _ in flow.known.conditions(node, part))


def mistakes_of(outside: Outside) -> Iterator[Mistake]:
    """Yield addresses and ports that the script sets itself, although torchrun sets them."""
    flow = outside.flow
    named = calls_in(outside.parts, "init_process_group")
    calls = [place for place in named if dotted(place[0].func, place[1].aliases) in _INIT and flow.known.runs(*place)]
    by_environment = False
    for call, part in calls:
        if all(item.arg for item in call.keywords) and not any(isinstance(item, ast.Starred) for item in call.args):
            given = keyword(call, "init_method") or next(iter(call.args[1:]), ast.Constant("env://"))
            method = str(flow.known.value(given, part))
            by_environment |= method == "env://" and keyword(call, "store") is None
            if method.startswith("tcp://") and part.around(call, ast.Try) is None:
                # an address without size and rank is refused, and torch chooses the backend by the device
                yield Mistake(at(call, part.source), f"{ast.unparse(call.func)}()", method)
    chain = [(flow.function_of(call, home), home) for call, home in calls]
    for function, home in chain:  # and the functions that certainly call these
        for reference, where in outside.references(function, home) if function else ():
            caller = (flow.function_of(reference, where), where)
            if caller not in chain and _is_plain(reference, where, flow):
                chain.append(caller)
    around = [None, *(function for function, _ in chain)]
    for part in outside.parts if by_environment else ():
        for node in part.of(ast.Assign):
            target, value = node.targets[0], string(node.value)
            variable = isinstance(target, ast.Subscript) and is_environ(target.value, part) and string(target.slice)
            # certainly before the set-up of a group: at the top level, in the same function, or in one that calls it
            certain = flow.function_of(node, part) in around and _is_plain(node, part, flow)
            if variable == "MASTER_PORT" and value is not None and certain and part.around(node, ast.Try) is None:
                corrected = f'os.environ.setdefault("MASTER_PORT", "{value}")'
                yield Mistake(at(node, part.source), corrected, f"MASTER_PORT={value}")
