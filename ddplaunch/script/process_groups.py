"""Where a script sets up process groups, starts its own processes and reads its environment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddplaunch.script.configured import is_training_arguments
from ddplaunch.script.names import at, dotted, keyword, last, string
from ddplaunch.script.program import Program, is_main_guard
from ddplaunch.script.reachable import ReachablePart
from ddplaunch.script.report import FRAMEWORKS, DeclaredAt

_TRANSFORMERS = re.compile(r"Trainer$|TrainingArguments$|^HfArgumentParser$")
_LAUNCHERS = ("torchrun", "torch.distributed.launch", "torch.distributed.run", "accelerate launch")
_RANK_NAMES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "GROUP_RANK"})
_SETS_UP = frozenset({"init_process_group", "init_device_mesh"})


def initialisation(program: Program) -> DeclaredAt | None:
    """Return the first mention of ``init_process_group`` or ``init_device_mesh``, in a call or otherwise."""
    for source in program.sources:
        for node in source.nodes:
            if last(node) in _SETS_UP or string(node) in _SETS_UP:
                return at(node, source)
    return None


def framework(program: Program) -> tuple[str, DeclaredAt] | None:
    """Return the first imported framework that sets up process groups itself, and where."""
    for file, record in program.foreign:
        package = record.package
        if package in FRAMEWORKS:
            return package, DeclaredAt(file.shown, record.line)
        if package in ("transformers", "sentence_transformers") and _trains(record.names, file.text):
            return package, DeclaredAt(file.shown, record.line)
    return None


def _trains(names: Iterable[tuple[str, str]], text: str) -> bool:
    return any(_TRANSFORMERS.search(name) or is_training_arguments(f"trl.{name}") for name, _ in names) or (
        not names and re.search(r"\.\w*(?:Trainer|TrainingArguments)\b", text) is not None
    )


def environment_names(part: ReachablePart) -> Iterator[str]:
    """Yield the literal names of environment variables that the part reads."""
    for node in part.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_environ(node.value, part):
            name = string(node.slice)
        elif isinstance(node, ast.Call) and node.args and _looks_up(node, part):
            name = string(node.args[0])
        elif isinstance(node, ast.Compare) and any(_is_environ(item, part) for item in node.comparators):
            name = string(node.left)
        else:
            continue
        if name is not None:
            yield name


def _is_environ(node: ast.AST, part: ReachablePart) -> bool:
    return dotted(node, part.aliases) == "os.environ"


def _looks_up(call: ast.Call, part: ReachablePart) -> bool:
    if dotted(call.func, part.aliases) == "os.getenv":
        return True
    return isinstance(call.func, ast.Attribute) and call.func.attr == "get" and _is_environ(call.func.value, part)


def spawning(parts: Iterable[ReachablePart]) -> DeclaredAt | None:
    """Return where the script certainly starts its own ranks.

    None for a program that reads RANK or the like, because it may start ranks only without a launcher, and for a start
    under a condition other than a count of devices, which may be false.
    """
    parts = list(parts)
    if any(name in _RANK_NAMES for part in parts for name in environment_names(part)):
        return None
    for part in parts:
        for call in part.calls:
            if _starts_ranks(call, part) and _is_certain(call, part, set()):
                return at(call, part.source)
    return None


def _starts_ranks(call: ast.Call, part: ReachablePart) -> bool:
    name = dotted(call.func, part.aliases)
    if name in ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"):
        processes = keyword(call, "nprocs") or (call.args[2] if len(call.args) > 2 else None)
        return processes is not None and not (isinstance(processes, ast.Constant) and processes.value == 1)
    if name == "os.system" or name.startswith("subprocess."):
        texts = (string(node) for argument in call.args[:1] for node in ast.walk(argument))
        return any(text is not None and any(launcher in text for launcher in _LAUNCHERS) for text in texts)
    return False


def _is_certain(node: ast.AST, part: ReachablePart, seen: set[str]) -> bool:
    """Return whether ``node`` runs under no condition but the main guard and counts of devices."""
    parents = part.source.parents
    child, parent = node, parents.get(node)
    while parent is not None:
        if isinstance(parent, (ast.Try, ast.IfExp, ast.While, ast.For, ast.Lambda, ast.ExceptHandler, ast.ClassDef)):
            return False
        if isinstance(parent, ast.If) and not (is_main_guard(parent) and child in parent.body):
            if child not in parent.body or not _counts_devices(parent.test):
                return False
        elif isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if _may_return_before(child, parent.body) or parent.name in seen:
                return False
            return _is_called_for_certain(parent.name, part, seen | {parent.name})
        child, parent = parent, parents.get(parent)
    return True


def _is_called_for_certain(name: str, part: ReachablePart, seen: set[str]) -> bool:
    calls = [call for call in part.calls if isinstance(call.func, ast.Name) and call.func.id == name]
    return any(_is_certain(call, part, seen) for call in calls)


def _may_return_before(statement: ast.AST, body: list[ast.stmt]) -> bool:
    before = body[: body.index(statement)] if isinstance(statement, ast.stmt) and statement in body else []
    return any(isinstance(node, ast.Return) for item in before if isinstance(item, ast.If) for node in ast.walk(item))


def _counts_devices(test: ast.expr) -> bool:
    return any(last(node) in ("device_count", "is_available") for node in ast.walk(test)) or (
        isinstance(test, ast.Compare) and re.fullmatch(r"n_?gpus?|num_gpus|gpu_count", last(test.left)) is not None
    )
