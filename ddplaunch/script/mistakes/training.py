"""A training program as the rules for mistakes look at it: its calls by full name, and which ranks reach a line.

Rules that conclude from the absence of something ask ``lacks``, which is sure only where all of the program was read.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property

from ddplaunch.script.flow import Flow
from ddplaunch.script.names import Function, FunctionNodes, at, dotted, keyword, last
from ddplaunch.script.program import Program
from ddplaunch.script.reachable import ReachablePart
from ddplaunch.script.script_report import FRAMEWORKS, HARMLESS, Mistake

DDP = frozenset({"torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel"})
INIT = frozenset({"torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group"})
LOADER = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
SAMPLER = frozenset({"torch.utils.data.DistributedSampler", "torch.utils.data.distributed.DistributedSampler"})
_RANK = re.compile(
    r"(?i)_?(?:global_|world_|dist_|ddp_|local_|node_|process_)?rank|get_(?:global_|local_)?rank|process_index"
)
_MAIN = re.compile(r"(?i)_?(?:is_)?(?:main|master|primary)(?:_process|_rank)?|is_(?:rank_?0|rank_?zero)")
_SHORT = 100
# Packages that neither load data, nor start ranks, nor train, beside those of which that is known anyway.
_ASIDE_NAMES = """
    IPython accimage apex debugpy dllogger functorch gpu_affinity line_profiler lxml onnx onnxruntime panopticapi ptvsd
    pycocoevalcap pytorch_quantization ruamel_yaml swanlab tabulate tensorboard_logger tensorflow thop torchdiffeq
    torchprofile torchsummary torchinfo torchviz unidecode warmup_scheduler yaml
"""
_ASIDE = frozenset(_ASIDE_NAMES.split())

Place = tuple[ast.Call, ReachablePart]


class Training:
    """One program with its arithmetic; ``whole`` is whether all of its source was read."""

    def __init__(self, program: Program, parts: Sequence[ReachablePart], flow: Flow) -> None:
        """Look at the ``parts`` of a program that can run."""
        self.program, self.parts, self.flow = program, parts, flow
        known = HARMLESS | FRAMEWORKS | sys.stdlib_module_names | _ASIDE
        packages = (record.package for _, record in program.foreign)
        self.whole = program.complete and all(package in known for package in packages)

    def calls(self, names: frozenset[str]) -> Iterator[Place]:
        """Yield the calls of functions and classes by their full ``names`` that no condition keeps from running."""
        short = {name.rpartition(".")[2] for name in names}
        for part in self.parts:
            for call in part.calls_of(*sorted(short)):
                if dotted(call.func, part.aliases) in names and self.flow.known.runs(call, part):
                    yield call, part

    @cached_property
    def wraps(self) -> list[Place]:
        """The calls of DistributedDataParallel."""
        return list(self.calls(DDP))

    @cached_property
    def groups(self) -> list[Place]:
        """The calls of ``init_process_group``."""
        return list(self.calls(INIT))

    def lacks(self, pattern: str) -> bool:
        """Return whether all of the program was read, and none of its files has a match of ``pattern``."""
        found = re.compile(pattern)
        return self.whole and not any(found.search(file.text) for file in self.program.files.values())

    def function(self, node: ast.AST, part: ReachablePart) -> Function | ast.Module:
        """Return the innermost function around ``node``, or the module."""
        return self.flow.function_of(node, part) or part.source.tree

    def conditions(self, node: ast.AST, part: ReachablePart) -> tuple[tuple[ast.expr, bool], ...]:
        """Return the conditions around ``node`` within its function, each with the outcome that lets it run."""
        return self.flow.known.conditions(node, part)

    def tried(self, node: ast.AST, part: ReachablePart) -> bool:
        """Return whether ``node`` stands in a ``try``, in its body or in what is done instead."""
        parent = part.source.parents.get(node)
        while parent is not None and not isinstance(parent, (ast.Try, *FunctionNodes)):
            parent = part.source.parents.get(parent)
        return isinstance(parent, ast.Try)

    def always(self, node: ast.AST, part: ReachablePart) -> bool:
        """Return whether ``node`` stands under no condition but the main guard, and in no ``try``."""
        return not self.tried(node, part) and all(_is_main_guard(test) for test, _ in self.conditions(node, part))

    def is_made_by(self, node: ast.AST, part: ReachablePart, names: frozenset[str]) -> bool:
        """Return whether a name was last given, in its function and above ``node``, what one of ``names`` returns."""
        if isinstance(node, ast.Call):
            return dotted(node.func, part.aliases) in names
        value = self.last_value(node, part)
        return isinstance(value, ast.Call) and dotted(value.func, part.aliases) in names

    def last_value(self, node: ast.AST, part: ReachablePart) -> ast.expr | None:
        """Return what the function assigned last, above ``node``, to its name; None where a tuple or a loop did."""
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return None
        wanted, found, line = ast.unparse(node), None, -1
        for each in ast.walk(self.function(node, part)):
            if not isinstance(each, (ast.Name, ast.Attribute)) or not isinstance(each.ctx, ast.Store):
                continue
            if line < each.lineno < node.lineno and ast.unparse(each) == wanted:
                parent = part.source.parents.get(each)
                found, line = (parent.value if isinstance(parent, ast.Assign) else None), each.lineno
        return found

    def called(self, call: ast.Call, part: ReachablePart) -> tuple[Function, ReachablePart] | None:
        """Return the function of the program that a plain name calls, with its part."""
        if not isinstance(call.func, ast.Name):
            return None
        path, name = self.program.resolve(part.source.path, call.func.id) or (part.source.path, call.func.id)
        for each in self.parts:
            definition = each.source.definitions.get(name) if each.source.path == path else None
            if isinstance(definition, FunctionNodes):
                return definition, each
        return None

    def callers(self, function: Function, part: ReachablePart) -> list[Place] | None:
        """Return the calls of a top-level function; None where it is a method, or named other than in a call."""
        if part.source.definitions.get(function.name) is not function:
            return None
        found: list[Place] = []
        for each in self.parts:
            for node in each.of(ast.Name, ast.Attribute):
                if last(node) != function.name or not isinstance(getattr(node, "ctx", None), ast.Load):
                    continue
                parent = each.source.parents.get(node)
                if not isinstance(parent, ast.Call) or parent.func is not node:
                    return None
                found.append((parent, each))
        return found


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and "__name__" in ast.unparse(test)


def one_side(test: ast.expr) -> bool | None:
    """Return True if only rank 0 can pass ``test``, False if only the others, None if nobody can tell.

    ``rank == 0``, ``local_rank in (-1, 0)``, ``is_main_process()``, and these with ``and``. What also holds without a
    process group (``rank == -1``) is no side.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        side = one_side(test.operand)
        return None if side is None or isinstance(test.operand, ast.BoolOp) else not side
    if isinstance(test, ast.BoolOp):
        sides = {one_side(value) for value in test.values}
        if isinstance(test.op, ast.Or):
            others = [value for value in test.values if one_side(value) is None]
            if not all(isinstance(value, ast.UnaryOp) and "dist" in ast.unparse(value).lower() for value in others):
                return None
        known = sides - {None}
        return known.pop() if len(known) == 1 else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test.left, test.ops[0], test.comparators[0])
    called = test.func if isinstance(test, ast.Call) else test
    return True if _MAIN.fullmatch(last(called)) else None


def _compared(left: ast.expr, operation: ast.cmpop, right: ast.expr) -> bool | None:
    if isinstance(left, ast.Constant):
        left, right = right, left
    if not _RANK.fullmatch(last(left.func if isinstance(left, ast.Call) else left)):
        return None
    values = [right] if isinstance(right, ast.Constant) else getattr(right, "elts", [])
    numbers = {ast.unparse(value) for value in values}
    if "0" not in numbers or not numbers <= {"0", "-1"}:
        return None
    kinds = {ast.Eq: True, ast.In: True, ast.NotEq: False, ast.NotIn: False, ast.Gt: False}
    return kinds.get(type(operation))


def mistake(code: str, node: ast.AST, part: ReachablePart, corrected: str, detail: str = "") -> Mistake:
    """Return a mistake at ``node``: ``corrected`` is what its line should be, ``detail`` what was read there."""
    place = at(node, part.source)
    lines = part.source.lines
    line = lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""
    return Mistake(code, place, line, corrected, detail)


def call_text(call: ast.Call, without: Sequence[str] = (), **changed: str) -> str:
    """Return a call as a line of source, ``without`` some keywords and with others ``changed``; long ones shortened."""
    words = [item.arg for item in call.keywords]
    given = [ast.unparse(item) for item in call.args]
    kept = [
        f"{item.arg}={changed.get(item.arg, ast.unparse(item.value))}" if item.arg else f"**{ast.unparse(item.value)}"
        for item in call.keywords
        if item.arg not in without
    ]
    new = [f"{name}={value}" for name, value in changed.items() if name not in words]
    function = ast.unparse(call.func)
    text = f"{function}({', '.join([*given, *kept, *new])})"
    if len(text) <= _SHORT:
        return text
    short = [item for item in kept if item.partition("=")[0] in changed]
    return f"{function}({', '.join([*given[:1], '…', *short, *new])})"


def mentions(node: ast.AST, pattern: re.Pattern[str]) -> bool:
    """Return whether an identifier or a string in ``node`` matches."""
    return pattern.search(ast.unparse(node)) is not None


def argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """Return an argument that may be given by its ``name`` or by its ``position``, counted from 0."""
    value = keyword(call, name)
    if value is None and len(call.args) > position and not any(isinstance(each, ast.Starred) for each in call.args):
        value = call.args[position]
    return value


def is_plain(call: ast.Call) -> bool:
    """Return whether all arguments of a call are seen: no ``*words``, no ``**options``."""
    return all(item.arg for item in call.keywords) and not any(isinstance(item, ast.Starred) for item in call.args)
