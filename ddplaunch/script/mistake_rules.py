"""Mistakes of distributed training that can be read in a script's source, each with the line that should stand there.

A rule that concludes from the absence of something asks ``Training.lacks``, which is sure only where all of the
program was read. Mistakes that show in the ranks' first steps are left to ``watch``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from ddplaunch.script.flow import Flow
from ddplaunch.script.names import Function, FunctionNodes, at, dotted, keyword, string
from ddplaunch.script.program import Program
from ddplaunch.script.reachable import ReachablePart, is_environ
from ddplaunch.script.script_report import FRAMEWORKS, HARMLESS, Mistake

DDP = frozenset({"torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel"})
INIT = frozenset({"torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group"})
_LONGEST_CALL = 120  # characters of a corrected call
_LOCAL_RANK = 'int(os.environ["LOCAL_RANK"])'

Place = tuple[ast.Call, ReachablePart]


class Training:
    """One program with its arithmetic, as the rules look at it."""

    def __init__(self, program: Program, parts: Sequence[ReachablePart], flow: Flow) -> None:
        """Look at the ``parts`` of a program that can run."""
        self.program, self.parts, self.flow = program, parts, flow

    def lacks(self, pattern: str) -> bool:
        """Return whether all of the program was read, and none of its files has a match of ``pattern``."""
        known = HARMLESS | FRAMEWORKS | sys.stdlib_module_names
        whole = self.program.complete and all(record.package in known for _, record in self.program.foreign)
        return whole and not any(re.search(pattern, file.text) for file in self.program.files.values())

    def calls(self, full_names: frozenset[str]) -> Iterator[Place]:
        """Yield the calls of functions and classes by their full names that no condition keeps from running."""
        for part in self.parts:
            for call in part.calls_of(*sorted({name.rpartition(".")[2] for name in full_names})):
                if dotted(call.func, part.aliases) in full_names and self.flow.known.runs(call, part):
                    yield call, part

    @cached_property
    def groups(self) -> list[Place]:
        """The calls of ``init_process_group``."""
        return list(self.calls(INIT))

    def function(self, node: ast.AST, part: ReachablePart) -> Function | ast.Module:
        """Return the innermost function around ``node``, or the module."""
        return self.flow.function_of(node, part) or part.source.tree

    def is_tried(self, node: ast.AST, part: ReachablePart) -> bool:
        """Return whether ``node`` stands in a ``try``, in its body or in what is done instead."""
        parent = part.source.parents.get(node)
        while parent is not None and not isinstance(parent, (ast.Try, *FunctionNodes)):
            parent = part.source.parents.get(parent)
        return isinstance(parent, ast.Try)


def _mistake(code: str, node: ast.AST, part: ReachablePart, corrected: str, detail: str = "") -> Mistake:
    return Mistake(code, at(node, part.source), corrected, detail)


def _call_text(call: ast.Call, without: Sequence[str] = (), **added: str) -> str:
    """Return a call as a line of source, ``without`` some keywords and with others ``added``; long ones shortened."""
    kept = [ast.unparse(item) for item in call.args]
    kept += [ast.unparse(item) for item in call.keywords if item.arg not in without]
    new = [f"{name}={value}" for name, value in added.items()]
    text = f"{ast.unparse(call.func)}({', '.join([*kept, *new])})"
    return text if len(text) <= _LONGEST_CALL else f"{ast.unparse(call.func)}({', '.join([*kept[:1], '…', *new])})"


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """Return an argument that may be given by its ``name`` or by its ``position``, counted from 0."""
    return keyword(call, name) or (call.args[position] if len(call.args) > position else None)


def _is_plain(call: ast.Call) -> bool:
    """Return whether all arguments of a call are seen: no ``*words``, no ``**options``."""
    return all(item.arg for item in call.keywords) and not any(isinstance(item, ast.Starred) for item in call.args)


def meeting_place_written_down(training: Training) -> Iterator[Mistake]:
    """An address or port of the script's own in the place of torchrun's."""
    by_environment = False
    for call, part in training.groups:
        if _is_plain(call):
            method = string(_argument(call, "init_method", 1) or ast.Constant("env://")) or ""
            by_environment = by_environment or (method == "env://" and keyword(call, "store") is None)
            if method.startswith("tcp://") and not training.is_tried(call, part):
                # an address without size and rank is refused: the corrected line leaves out all three
                corrected = _call_text(call, without=("init_method", "world_size", "rank"))
                yield _mistake("rendezvous-in-script", call, part, corrected, method)
    for part in training.parts if by_environment else ():
        for node in part.of(ast.Assign):
            assert isinstance(node, ast.Assign)
            target, value = node.targets[0], string(node.value)
            named = isinstance(target, ast.Subscript) and is_environ(target.value, part) and string(target.slice)
            if named == "MASTER_PORT" and value is not None and _comes_first(node, part, training):
                corrected = f'os.environ.setdefault("MASTER_PORT", "{value}")'
                yield _mistake("rendezvous-in-script", node, part, corrected, f"MASTER_PORT={value}")


def _comes_first(node: ast.AST, part: ReachablePart, training: Training) -> bool:
    """Return whether an assignment certainly stands before a process group: at the top, or in a group's function."""
    around = [part.source.tree, *(training.function(call, home) for call, home in training.groups)]
    tests = (ast.unparse(test) for test, _ in training.flow.known.conditions(node, part))
    plain = not training.is_tried(node, part) and all("__name__" in test for test in tests)
    return plain and training.function(node, part) in around


def threads_of_one_process(training: Training) -> Iterator[Mistake]:
    """DataParallel in a script whose ranks would each use all GPUs of the host."""
    if training.lacks(
        "DistributedDataParallel|init_process_group|init_distributed|FullyShardedDataParallel|fully_shard"
    ):
        for call, part in training.calls(frozenset({"torch.nn.DataParallel", "torch.nn.parallel.DataParallel"})):
            model = ast.unparse(call.args[0]) if call.args else "model"
            # scripts of DataParallel move the model to the first GPU, or later
            corrected = f"DistributedDataParallel({model}.to({_LOCAL_RANK}), device_ids=[{_LOCAL_RANK}])"
            owner = _assigned_to(call, part)
            corrected = f"{owner} = {corrected}" if owner else corrected
            yield _mistake("data-parallel-under-launcher", call, part, corrected, model)
            return


def _assigned_to(call: ast.Call, part: ReachablePart) -> str:
    """Return the name that a call's value gets, also where it is one of two; empty where it gets none."""
    parent = part.source.parents.get(call)
    while isinstance(parent, ast.IfExp):
        parent = part.source.parents.get(parent)
    return dotted(parent.targets[0], {}) if isinstance(parent, ast.Assign) else ""


_RULES: tuple[Callable[[Training], Iterator[Mistake]], ...] = (
    meeting_place_written_down,
    threads_of_one_process,
)


def mistakes_of(program: Program, parts: Sequence[ReachablePart], flow: Flow) -> tuple[Mistake, ...]:
    """Return the mistakes of a program, each place once."""
    if not any("torch" in part.source.text for part in parts):
        return ()
    training = Training(program, parts, flow)
    return tuple(dict.fromkeys(mistake for rule in _RULES for mistake in rule(training)))
