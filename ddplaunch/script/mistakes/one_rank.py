"""Mistakes in what only one rank does, and in what all do that only one should: collectives, evaluations, files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddplaunch.script.mistakes.training import DDP, Training, call_text, mistake, one_side
from ddplaunch.script.names import Function, FunctionNodes, keyword, last, string
from ddplaunch.script.reachable import ReachablePart
from ddplaunch.script.script_report import Mistake

_COLLECTIVES = frozenset(
    f"torch.distributed.{name}"
    for name in [
        "barrier",
        "monitored_barrier",
        "all_reduce",
        "all_gather",
        "all_gather_object",
        "all_gather_into_tensor",
        "broadcast",
        "broadcast_object_list",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "gather",
        "gather_object",
        "scatter",
        "scatter_object_list",
        "all_to_all",
        "all_to_all_single",
    ]
)
_LEAVES = (ast.Return, ast.Continue, ast.Break)


def collectives_of_some(training: Training) -> Iterator[Mistake]:
    """Collectives that only one side of a condition on the rank reaches, while all ranks are needed."""
    for call, part in training.calls(_COLLECTIVES):
        if keyword(call, "group") is not None or len(call.args) > 2 or _in_other_group(call):
            continue
        guard = _guard(call, part, training)
        if guard is not None:
            if _on_both_sides(call, part, training):
                continue
            yield _of_some(call, part, guard)
        elif (leaving := _left_before(call, part)) is not None:
            yield _of_some(call, part, leaving.test)


def _of_some(call: ast.Call, part: ReachablePart, test: ast.expr) -> Mistake:
    detail = f"{ast.unparse(call.func)} {ast.unparse(test)}"
    return mistake("collective-on-some-ranks", call, part, ast.unparse(call), detail)


def _in_other_group(call: ast.Call) -> bool:
    """Return whether the call names a process group other than that of all ranks."""
    return any(item.arg is None or "group" in item.arg for item in call.keywords) or any(
        "group" in ast.unparse(item) for item in call.args
    )


def _guard(node: ast.AST, part: ReachablePart, training: Training) -> ast.expr | None:
    """Return the condition around ``node`` that only one rank, or all but one, can pass."""
    for test, wanted in training.conditions(node, part):
        side = one_side(test)
        if side is not None and (wanted or not isinstance(test, ast.BoolOp)):
            return test
    return None


def _on_both_sides(call: ast.Call, part: ReachablePart, training: Training) -> bool:
    """Return whether the function has the same collective for the other ranks too."""
    name, sides = last(call.func), set()
    for other in ast.walk(training.function(call, part)):
        if isinstance(other, ast.Call) and last(other.func) == name:
            for test, wanted in training.conditions(other, part):
                side = one_side(test)
                if side is not None:
                    sides.add(side is wanted)
    return len(sides) == 2


def _left_before(call: ast.Call, part: ReachablePart) -> ast.If | None:
    """Return the ``if`` of one rank's that leaves the function, or the turn of a loop, in front of ``call``."""
    node: ast.AST = call
    while not isinstance(node, FunctionNodes):
        parent = part.source.parents.get(node)
        if parent is None:
            return None
        for earlier in _before(node, parent):
            if _is_exit(earlier, parent):
                return earlier
        node = parent
    return None


def _before(node: ast.AST, parent: ast.AST) -> Iterator[ast.If]:
    """Yield the ``if`` statements in front of a statement, in its block."""
    for body in _bodies(parent):
        positions = [position for position, each in enumerate(body) if each is node]
        yield from (each for position in positions for each in body[:position] if isinstance(each, ast.If))


def _is_exit(node: ast.If, parent: ast.AST) -> bool:
    """Return whether some ranks certainly leave at an ``if``, and join no collective in it."""
    leaves = isinstance(node.body[-1], _LEAVES) and _fits(node.body[-1], parent)
    return leaves and not node.orelse and one_side(node.test) is not None and not _collects(node)


def _fits(leaving: ast.stmt, parent: ast.AST) -> bool:
    """Return whether what leaves is certain to pass over the rest of the statements beside it."""
    return isinstance(leaving, ast.Return) or isinstance(parent, (ast.For, ast.While))


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        value = getattr(node, name, None)
        if isinstance(value, list):
            yield value


def _collects(node: ast.AST) -> bool:
    names = {name.rpartition(".")[2] for name in _COLLECTIVES}
    return any(isinstance(each, ast.Call) and last(each.func) in names for each in ast.walk(node))


_UNWRAPS = re.compile(r"\.module\b|unwrap|de_parallel|without_ddp|deepcopy|ema")
# What says that a model has buffers, which its wrapper sends to all ranks in front of each forward.
_BUFFERS = re.compile(r"BatchNorm|register_buffer|models\.(?:resne|wide_res|mobilenet|efficientnet|densenet|\w+_bn)")
_EVALUATES = re.compile(r"(?i)val|test|eval|infer|generate|sample")


def evaluated_on_one(training: Training) -> Iterator[Mistake]:
    """A model called through its DistributedDataParallel where only one rank is."""
    if not training.wraps:
        return
    texts = [file.text for file in training.program.files.values()]
    if not any(map(_BUFFERS.search, texts)) or any("broadcast_buffers" in text for text in texts):
        return
    for part in training.parts:
        for call in part.calls:
            guard = _guard(call, part, training)
            if guard is None or one_side(guard) is None or not training.flow.known.runs(call, part):
                continue
            if not _has_all_ranks_out(call, part, training):
                continue
            wrapped = _wrapped_argument(call, part, training)
            if wrapped is None:
                continue
            name = ast.unparse(wrapped)
            corrected = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", f"{name}.module", ast.unparse(call), count=1)
            test = ast.unparse(guard)
            yield mistake("evaluation-on-one-rank", call, part, corrected, f"{name} {test}")
            return


def _has_all_ranks_out(call: ast.Call, part: ReachablePart, training: Training) -> bool:
    """Return whether no other branch does the same for the other ranks."""
    name = ast.unparse(call.func)
    for node in ast.walk(training.function(call, part)):
        if isinstance(node, ast.Call) and node is not call and ast.unparse(node.func) == name:
            guards = [(one_side(test), wanted) for test, wanted in training.conditions(node, part)]
            if any(side is not None and side is not wanted for side, wanted in guards):
                return False
    return True


def _wrapped_argument(call: ast.Call, part: ReachablePart, training: Training) -> ast.expr | None:
    """Return the wrapped model that is called, or given to a function of the program that calls it."""
    if isinstance(call.func, ast.Name) and _is_wrapped(call.func, part, training):
        return call.func
    found = training.called(call, part)
    if found is None:
        return None
    function, _ = found
    if not _EVALUATES.search(function.name) or _UNWRAPS.search(ast.unparse(function)):
        return None
    names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
    for position, value in [*enumerate(call.args), *((item.arg, item.value) for item in call.keywords)]:
        name = (
            position
            if isinstance(position, str)
            else names[position]
            if isinstance(position, int) and position < len(names)
            else ""
        )
        if isinstance(value, ast.Name) and name and _is_wrapped(value, part, training) and _calls(function, name):
            return value
    return None


def _is_wrapped(node: ast.expr, part: ReachablePart, training: Training) -> bool:
    return training.is_made_by(node, part, DDP) and not isinstance(node, ast.Call)


def _calls(function: Function, name: str) -> bool:
    """Return whether the function calls its parameter ``name``, and never gives the name another value."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
    if any(isinstance(node.ctx, ast.Store) for node in nodes):
        return False
    return any(isinstance(each, ast.Call) and each.func in nodes for each in ast.walk(function))


# Anything in a condition or a path that may stand for one rank, or for a switch that only one rank has on.
_ONE = re.compile(
    r"(?i)rank|main|master|primary|gpu|device|local|chief|lead|root|proc|dist|writer|logger|is_first|\bnode|save_?on"
    r"|coordinator|pid|uuid|hostname|tmp|temp|host|worker|should_|zero|verbose|log"
)


def written_by_all(training: Training) -> Iterator[Mistake]:
    """A checkpoint that all ranks write to one path."""
    if not training.wraps or not training.groups:
        return
    for call, part in training.calls(frozenset({"torch.save"})):
        path = call.args[1] if len(call.args) > 1 else keyword(call, "f")
        if path is None or not _is_one_path(path, part, training) or not training.whole:
            continue
        if _all_reach(call, part, training, 4):
            corrected = "if dist.get_rank() == 0: " + call_text(call)
            yield mistake("file-of-all-ranks", call, part, corrected, ast.unparse(path))
            return


def _is_one_path(path: ast.expr, part: ReachablePart, training: Training, depth: int = 5) -> bool:
    """Return whether a path is made of text, and nothing in it, as far as it can be followed, tells of a rank."""
    if _ONE.search(ast.unparse(path)):
        return False
    if depth == 5 and not any(
        string(node) for value in (path, *_values(path, part, training)) for node in ast.walk(value)
    ):
        return False
    if depth:
        for node in ast.walk(path):
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                bound = training.flow.bound(node, part)
                if not all(_is_one_path(value, where, training, depth - 1) for value, where in bound):
                    return False
    return True


def _values(path: ast.expr, part: ReachablePart, training: Training) -> list[ast.expr]:
    return [value for value, _ in training.flow.bound(path, part)]


def _all_reach(node: ast.AST, part: ReachablePart, training: Training, depth: int) -> bool:
    """Return whether all ranks certainly come to ``node``, through functions that are called by name."""
    for test, _ in training.conditions(node, part):
        if "__name__" in ast.unparse(test):
            continue
        if _ONE.search(ast.unparse(test)) or _opaque(test, part, training):
            return False
    function = training.function(node, part)
    if any(
        isinstance(each, ast.If) and _ONE.search(ast.unparse(each.test)) and _leaves(each)
        for each in ast.walk(function)
    ):
        return False
    if isinstance(function, ast.Module):
        return part is training.parts[0]
    callers = training.callers(function, part)
    if not callers or not depth or function.decorator_list:
        return False
    return any(_all_reach(call, where, training, depth - 1) for call, where in callers)


def _opaque(test: ast.expr, part: ReachablePart, training: Training) -> bool:
    """Return whether a name in a condition comes from something that may tell one rank from another."""
    nodes = [node for node in ast.walk(test) if isinstance(node, (ast.Name, ast.Attribute))]
    return any(_ONE.search(ast.unparse(value)) for node in nodes for value, _ in training.flow.bound(node, part))


def _leaves(node: ast.If) -> bool:
    return any(isinstance(each, _LEAVES) for each in ast.walk(node))
