"""Mistakes in what only one rank does, and in what all do that only one should: collectives, evaluations, files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddplaunch.script.mistakes.training import DDP, OfSome, Place, Training, call_text, mistake, several_processes
from ddplaunch.script.names import Function, dotted, keyword, last, string
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
_NAMES = frozenset(name.rpartition(".")[2] for name in _COLLECTIVES)
_LEAVES = (ast.Return, ast.Continue, ast.Break)
_FOLLOWED = 4  # functions that call one another


def collectives_of_some(training: Training) -> Iterator[Mistake]:
    """Collectives that only one side of a condition on the rank reaches, while all ranks are needed."""
    texts = (file.text for file in training.program.files.values())
    if not any(f"{name}(" in text for text in texts for name in _NAMES):
        return
    seen: set[int] = set()
    for under, places in ((True, training.guarded), (False, training.left_behind)):
        for place in places:
            call, part, test = place
            joined = (
                None if id(call) in seen or not training.flow.known.runs(call, part) else _joined(call, part, training)
            )
            if joined is None:
                continue
            seen.add(id(call))
            others = _others_join(place, training) if under else _collects_before_leaving(test, part, training)
            if not others:
                yield _of_some(call, part, test, *joined)


def _of_some(call: ast.Call, part: ReachablePart, test: ast.expr, collective: ast.Call, home: ReachablePart) -> Mistake:
    where = "" if collective is call else f"{home.source.shown}:{collective.lineno}"
    detail = "\n".join([ast.unparse(collective.func), ast.unparse(test), where])
    return mistake("collective-on-some-ranks", call, part, call_text(call), detail)


def _joined(call: ast.Call, part: ReachablePart, training: Training, depth: int = _FOLLOWED) -> Place | None:
    """Return the collective of all ranks that a call certainly is, or comes to in the functions that it calls."""
    if last(call.func) in _NAMES or dotted(call.func, part.aliases) in _COLLECTIVES:
        direct = dotted(call.func, part.aliases) in _COLLECTIVES
        if direct:
            other = keyword(call, "group") is not None or len(call.args) > 2 or _in_other_group(call)
            return None if other else (call, part)
    found = training.called(call, part) if depth else None
    if found is None:
        return None
    function, home = found
    if any(_leaves_for_reasons(each) for each in ast.walk(function) if isinstance(each, ast.If)):
        return None
    for calls in training.inside(function).calls.values():
        for inner in calls:
            if training.function(inner, home) is not function or training.tried(inner, home):
                continue
            if not all(several_processes(test, wanted) for test, wanted in training.conditions(inner, home)):
                continue
            joined = _joined(inner, home, training, depth - 1)
            if joined is not None:
                return joined
    return None


def _leaves_for_reasons(node: ast.If) -> bool:
    """Return whether an ``if`` leaves its function for another reason than that there is one process alone."""
    leaves = any(isinstance(each, ast.Return) for statement in node.body for each in ast.walk(statement))
    return leaves and not several_processes(node.test, False)


def _in_other_group(call: ast.Call) -> bool:
    """Return whether the call names a process group other than that of all ranks."""
    return any(item.arg is None or "group" in item.arg for item in call.keywords) or any(
        "group" in ast.unparse(item) for item in call.args
    )


def _others_join(of_some: OfSome, training: Training) -> bool:
    """Return whether the function has a collective, or what may be one, for the other ranks too."""
    call, part, test = of_some
    sides = set()
    for name, calls in training.inside(training.function(call, part)).calls.items():
        for other in calls:
            if name != last(call.func) and not _may_join(other, part, training):
                continue
            for condition, wanted in training.conditions(other, part):
                side = training.side(condition)
                if side is not None:
                    sides.add(side is wanted)
    behind = (each.call for each in training.left_behind if each.test is test)
    return len(sides) == 2 or any(_may_join(each, part, training) for each in behind)


def _collects_before_leaving(test: ast.expr, part: ReachablePart, training: Training) -> bool:
    """Return whether the ranks that leave at an ``if`` join a collective, or what may be one, in it."""
    node = part.source.parents.get(test)
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call)) if node is not None else ()
    return any(_may_join(each, part, training) for each in calls)


def _may_join(call: ast.Call, part: ReachablePart, training: Training, depth: int = _FOLLOWED) -> bool:
    """Return whether a call is a collective, or of a function that may come to one."""
    if last(call.func) in _NAMES:
        return True
    found = training.called(call, part) if depth else None
    calls = training.inside(found[0]).calls if found is not None else {}
    return any(
        found is not None and _may_join(inner, found[1], training, depth - 1)
        for inside in calls.values()
        for inner in inside
    )


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
    for call, part, guard in training.guarded:
        wrapped = _wrapped_argument(call, part, training)
        if wrapped is None or not training.flow.known.runs(call, part) or not _has_all_ranks_out(call, part, training):
            continue
        name = ast.unparse(wrapped)
        corrected = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", f"{name}.module", ast.unparse(call), count=1)
        yield mistake("evaluation-on-one-rank", call, part, corrected, f"{name} {ast.unparse(guard)}")
        return


def _has_all_ranks_out(call: ast.Call, part: ReachablePart, training: Training) -> bool:
    """Return whether no other branch does the same for the other ranks."""
    name = ast.unparse(call.func)
    for node in training.inside(training.function(call, part)).calls.get(last(call.func), ()):
        if node is not call and ast.unparse(node.func) == name:
            guards = [(training.side(test), wanted) for test, wanted in training.conditions(node, part)]
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


def changed_on_one(training: Training) -> Iterator[Mistake]:
    """Parameters that one rank alone loads into a model behind its wrapper, and trains with."""
    if not training.wraps or not training.lacks(r"broadcast|_sync_|sync_param|\.scatter\("):
        return
    for call, part, guard in training.guarded:
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr != "load_state_dict":
            continue
        model = function.value.value if last(function.value) == "module" else function.value  # type: ignore[attr-defined]
        wrapped = _is_wrapped(model, part, training)
        known = training.flow.known.runs(call, part) and _has_all_ranks_out(call, part, training)
        if wrapped and known and _trains_after(call, part, training):
            yield mistake("replicas-differ", call, part, call_text(call), f"{ast.unparse(model)} {ast.unparse(guard)}")
            return


def _trains_after(node: ast.Call, part: ReachablePart, training: Training, depth: int = _FOLLOWED) -> bool:
    """Return whether below ``node``, in its function, gradients are computed."""
    return any(
        call.lineno > node.lineno and _computes_gradients(call, part, training, depth)
        for calls in training.inside(training.function(node, part)).calls.values()
        for call in calls
    )


def _computes_gradients(call: ast.Call, part: ReachablePart, training: Training, depth: int) -> bool:
    if last(call.func) == "backward":
        return True
    found = training.called(call, part) if depth else None
    calls = training.inside(found[0]).calls if found is not None else {}
    return any(
        found is not None and _computes_gradients(inner, found[1], training, depth - 1)
        for inside in calls.values()
        for inner in inside
    )


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
    own = (each for each in part.of(ast.If) if training.function(each, part) is function)
    if any(isinstance(each, ast.If) and _ONE.search(ast.unparse(each.test)) and _leaves(each) for each in own):
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
