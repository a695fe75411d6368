"""A training program as the rules for mistakes look at it: its calls by full name, and which ranks reach a line.

Rules that conclude from the absence of something ask ``lacks``, which is sure only where all of the program was read.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ddplaunch.script.flow import Flow
from ddplaunch.script.names import Function, FunctionNodes, at, dotted, keyword, last, string
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
_MAIN = re.compile(r"(?i)_?(?:is_)?(?:main|master|primary)(?:_process|_rank|_worker)?|is_(?:rank_?0|rank_?zero)")
_SHORT = 120
_MOST_PARSED = 30_000  # characters of files that are parsed to see what a function in them does: some 5 ms
_MOST_FILES = 48  # that are read to be sure of what a program lacks: some 10 ms
# Packages that neither load data, nor start ranks, nor train, beside those of which that is known anyway.
_ASIDE_NAMES = """
    IPython accimage apex debugpy dllogger functorch gpu_affinity line_profiler lxml onnx onnxruntime panopticapi ptvsd
    pycocoevalcap pytorch_quantization ruamel_yaml swanlab tabulate tensorboard_logger tensorflow thop torchdiffeq
    torchprofile torchsummary torchinfo torchviz unidecode warmup_scheduler yaml
"""
_ASIDE = frozenset(_ASIDE_NAMES.split())

Place = tuple[ast.Call, ReachablePart]
Called = tuple[Function, ReachablePart]
# A condition that holds, or does not, for all ranks of a run alike: whether it is one of several processes.
_OF_GROUP = re.compile(r"(?i)is_initialized|is_available|is_dist|is_distributed|world_?size|distributed|num_gpus|n_gpu")
_LEAVES = (ast.Return, ast.Continue, ast.Break)


class Inside(NamedTuple):
    """The calls of a function, and the names and attributes that it assigns to, each by the last name."""

    calls: dict[str, list[ast.Call]]
    stores: dict[str, list[ast.Name | ast.Attribute]]


class OfSome(NamedTuple):
    """A call that only one rank reaches, or all but one, and the condition that they pass or leave at."""

    call: ast.Call
    part: ReachablePart
    test: ast.expr


class Training:
    """One program with its arithmetic."""

    def __init__(self, program: Program, parts: Sequence[ReachablePart], flow: Flow) -> None:
        """Look at the ``parts`` of a program that can run."""
        self.program, self.parts, self.flow = program, parts, flow
        self._inside: dict[int, Inside] = {}
        self._sides: dict[int, bool | None] = {}
        self._modules_of: dict[Path, dict[str, Path]] = {}
        self._homes: dict[Path, ReachablePart | None] = {}
        self._methods: dict[str, Called | None] = {}
        self._characters = _MOST_PARSED

    @cached_property
    def whole(self) -> bool:
        """Whether all of the program's source was read; files that no option can be in are read for it now."""
        known = HARMLESS | FRAMEWORKS | sys.stdlib_module_names | _ASIDE

        def strange() -> bool:
            return not all(record.package in known for _, record in self.program.foreign)

        return not strange() and (self.program.complete or self.program.whole(_MOST_FILES)) and not strange()

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

    @cached_property
    def guarded(self) -> list[OfSome]:
        """The calls under a condition that only one rank, or all but one, can pass."""
        found: dict[int, OfSome] = {}
        for part in self.parts:
            for node in part.of(ast.If):
                assert isinstance(node, ast.If)
                if self.side(node.test) is None:
                    continue
                both = not isinstance(node.test, ast.BoolOp)  # nobody knows why it does not hold
                for call in _calls_in([*node.body, *(node.orelse if both else ())]):
                    found[id(call)] = OfSome(call, part, node.test)
        return list(found.values())

    @cached_property
    def left_behind(self) -> list[OfSome]:
        """The calls behind an ``if`` of one rank's, or of all but one, that leaves the function or the loop's turn."""
        found: dict[int, OfSome] = {}
        for part in self.parts:
            for node in part.of(ast.If):
                assert isinstance(node, ast.If)
                if node.orelse or not isinstance(node.body[-1], _LEAVES) or self.side(node.test) is None:
                    continue
                parent = part.source.parents.get(node)
                if not isinstance(node.body[-1], ast.Return) and not isinstance(parent, (ast.For, ast.While)):
                    continue  # what is left is not certain to be the block around
                for body in _bodies(parent):
                    position = next((i for i, each in enumerate(body) if each is node), len(body))
                    for call in _calls_in(body[position + 1 :]):
                        found.setdefault(id(call), OfSome(call, part, node.test))
        return list(found.values())

    def side(self, test: ast.expr) -> bool | None:
        """Return what ``one_side`` says of a condition."""
        if id(test) not in self._sides:
            self._sides[id(test)] = one_side(test)
        return self._sides[id(test)]

    def inside(self, function: Function | ast.Module) -> Inside:
        """Return the calls in a function or a module, and what it assigns to."""
        found = self._inside.get(id(function))
        if found is None:
            found = self._inside[id(function)] = Inside({}, {})
            for node in ast.walk(function):
                if isinstance(node, ast.Call):
                    found.calls.setdefault(last(node.func), []).append(node)
                elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
                    found.stores.setdefault(last(node), []).append(node)
        return found

    def lacks(self, pattern: str) -> bool:
        """Return whether all of the program was read, and none of its files has a match of ``pattern``."""
        found = re.compile(pattern)
        seen: set[Path] = set()
        for _ in range(2):  # the second time in the files that were read to be sure
            texts = {path: file.text for path, file in self.program.files.items() if path not in seen}
            if any(map(found.search, texts.values())) or not self.whole:
                return False
            seen |= texts.keys()
        return True

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
        for each in self.inside(self.function(node, part)).stores.get(last(node), ()):
            if line < each.lineno < node.lineno and ast.unparse(each) == wanted:
                parent = part.source.parents.get(each)
                found, line = (parent.value if isinstance(parent, ast.Assign) else None), each.lineno
        return found

    def called(self, call: ast.Call, part: ReachablePart) -> Called | None:
        """Return the function of the program that a call runs, with its part: by its name, a module's or a method's.

        A method of any object is known by its name alone, where the program has one function of that name.
        """
        function = call.func
        if isinstance(function, ast.Name):
            around = self.function(call, part)
            own = isinstance(around, FunctionNodes) and any(
                each.arg == function.id for each in ast.walk(around.args) if isinstance(each, ast.arg)
            )
            if own or (isinstance(around, FunctionNodes) and function.id in self.inside(around).stores):
                return None
            path, name = self.program.resolve(part.source.path, function.id) or (part.source.path, function.id)
            return self._defined(path, name)
        if not isinstance(function, ast.Attribute):
            return None
        if isinstance(function.value, ast.Name) and function.value.id in part.aliases:
            module = self._modules(part).get(function.value.id)
            return None if module is None else self._defined(module, function.attr)
        plain = "_" in function.attr.strip("_") or dotted(function.value, {}) == "self"
        return self._method(function.attr) if plain else None

    def _method(self, name: str) -> Called | None:
        """Return the one function of the program that has a name, wherever it is."""
        if name not in self._methods:
            paths = self.program.defining(name) if self.whole else []
            home = self._opened(paths[0]) if len(paths) == 1 else None
            nodes = [] if home is None else [node for node in home.source.nodes if getattr(node, "name", "") == name]
            alone = len(nodes) == 1 and isinstance(nodes[0], FunctionNodes) and not nodes[0].decorator_list
            self._methods[name] = (nodes[0], home) if alone and home is not None else None  # type: ignore[assignment]
        return self._methods[name]

    def _defined(self, path: Path, name: str) -> Called | None:
        home = self._opened(path)
        definition = None if home is None else home.source.definitions.get(name)
        return (definition, home) if isinstance(definition, FunctionNodes) and home is not None else None

    def _opened(self, path: Path) -> ReachablePart | None:
        """Return what can run of a file; one that was not parsed for its options is parsed now if it is not long."""
        if path not in self._homes:
            home = next((part for part in self.parts if part.source.path == path), None)
            file = self.program.files.get(path)
            if home is None and file is not None and len(file.text) <= self._characters:
                self._characters -= len(file.text)
                source = self.program.tree_of(path)
                home = None if source is None else ReachablePart(source, tuple(source.nodes))
            self._homes[path] = home
        return self._homes[path]

    def _modules(self, part: ReachablePart) -> dict[str, Path]:
        if part.source.path not in self._modules_of:
            file = self.program.files.get(part.source.path)
            self._modules_of[part.source.path] = {} if file is None else self.program.modules_of(file)
        return self._modules_of[part.source.path]

    def callers(self, function: Function, part: ReachablePart) -> list[Place] | None:
        """Return the calls of a top-level function; None where it is a method, or named other than in a call."""
        if part.source.definitions.get(function.name) is not function:
            return None
        found: list[Place] = []
        for each in self.parts:
            for node in each.of(ast.Name, ast.Attribute) if function.name in each.source.text else ():
                if last(node) != function.name or not isinstance(getattr(node, "ctx", None), ast.Load):
                    continue
                parent = each.source.parents.get(node)
                if not isinstance(parent, ast.Call) or parent.func is not node:
                    return None
                found.append((parent, each))
        return found


def _calls_in(statements: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    """Yield the calls that run with some statements: none in a function that is only defined there."""
    pending: list[ast.AST] = [*statements]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call):
            yield node
        if not isinstance(node, (*FunctionNodes, ast.Lambda, ast.ClassDef)):
            pending += ast.iter_child_nodes(node)


def _bodies(node: ast.AST | None) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        value = getattr(node, name, None)
        if isinstance(value, list):
            yield value


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


def several_processes(test: ast.expr, wanted: bool) -> bool:
    """Return whether a run of several ranks comes to a condition with this outcome: ``if dist.is_initialized():``."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return several_processes(test.operand, not wanted)
    if isinstance(test, ast.BoolOp):
        return wanted is isinstance(test.op, ast.And) and all(several_processes(each, wanted) for each in test.values)
    if isinstance(test, ast.Compare):
        more = isinstance(test.ops[0], (ast.Gt, ast.GtE, ast.NotEq))
        less = isinstance(test.ops[0], (ast.Eq, ast.Lt, ast.LtE))
        sized = _OF_GROUP.search(ast.unparse(test.left)) and isinstance(test.comparators[0], ast.Constant)
        return bool(sized) and (more if wanted else less)
    return wanted and _OF_GROUP.search(ast.unparse(test)) is not None


def _compared(left: ast.expr, operation: ast.cmpop, right: ast.expr) -> bool | None:
    if isinstance(left, ast.Constant):
        left, right = right, left
    if not _tells_rank(left):
        return None
    values = [right] if isinstance(right, ast.Constant) else getattr(right, "elts", [])
    numbers = {ast.unparse(value) for value in values}
    if "0" not in numbers or not numbers <= {"0", "-1"}:
        return None
    kinds = {ast.Eq: True, ast.In: True, ast.NotEq: False, ast.NotIn: False, ast.Gt: False}
    return kinds.get(type(operation))


def _tells_rank(node: ast.expr) -> bool:
    """Return whether an expression is a rank: ``args.rank``, ``dist.get_rank()``, ``int(os.environ["RANK"])``."""
    if isinstance(node, ast.Call) and last(node.func) == "int" and len(node.args) == 1:
        return _tells_rank(node.args[0])
    if isinstance(node, ast.Subscript) and last(node.value) == "environ":
        return string(node.slice) in ("RANK", "LOCAL_RANK")
    if isinstance(node, ast.Call) and last(node.func) in ("get", "getenv") and node.args:
        return string(node.args[0]) in ("RANK", "LOCAL_RANK")
    return _RANK.fullmatch(last(node.func if isinstance(node, ast.Call) else node)) is not None


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
