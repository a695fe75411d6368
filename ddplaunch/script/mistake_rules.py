"""Finds mistakes of distributed training in a script's source, and returns each with the corrected line.

Mistakes that show in the ranks' first steps are left to ``watch``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddplaunch.script.names import at, dotted, keyword, string
from ddplaunch.script.process_groups import Outside
from ddplaunch.script.reachable import calls_in, is_environ
from ddplaunch.script.script_report import Mistake

_INIT = ("torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group")


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
    functions = [flow.function_of(*place) for place in calls]
    for part in outside.parts if by_environment else ():
        for node in part.of(ast.Assign):
            target, value = node.targets[0], string(node.value)
            variable = isinstance(target, ast.Subscript) and is_environ(target.value, part) and string(target.slice)
            # where the group is set up, or elsewhere for certain
            plain = all("__name__" in ast.unparse(test) for test, _ in flow.known.conditions(node, part))
            certain = (plain and flow.function_of(node, part) in functions) or outside.is_certain(node.value, part)
            if variable == "MASTER_PORT" and value is not None and certain and part.around(node, ast.Try) is None:
                corrected = f'os.environ.setdefault("MASTER_PORT", "{value}")'
                yield Mistake(at(node, part.source), corrected, f"MASTER_PORT={value}")
