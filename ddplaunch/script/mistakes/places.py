"""Mistakes in where ranks are: GPUs, ports and sizes that are written into the script, and what is left at its end."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddplaunch.script.mistakes.training import INIT, SAMPLER, Training, argument, call_text, is_plain, mistake
from ddplaunch.script.names import dotted, is_true, keyword, last, string
from ddplaunch.script.reachable import ReachablePart, is_environ
from ddplaunch.script.script_report import Mistake

_CHOOSES = (
    r"set_device|local_?rank|LOCAL_RANK|CUDA_VISIBLE_DEVICES|cuda:(?!0[\"'])|device_ids|device_index|\.device\([\"']cuda[\"'],"
    r"|torch\.cuda\.device\(|set_default_device|current_device|rank\b[^\n]*device_count|\.cuda\([^)\s]|args\.gpu"
    r"|\.to\(\w*(?:rank|gpu)"
)


def gpu_not_chosen(training: Training) -> Iterator[Mistake]:
    """``cuda`` without a number in a script that nowhere says which GPU is the rank's."""
    if not training.groups or not training.lacks(_CHOOSES):
        return
    for part in training.parts:
        for call in part.calls_of("cuda", "device", "to"):
            first = call.args[0] if len(call.args) == 1 and not call.keywords else None
            bare = last(call.func) == "cuda" and not call.args and not call.keywords
            bare = bare and dotted(call.func, part.aliases) != "torch.cuda"
            device = "" if bare else _gpu_named(first, call, part, training)
            if device is not None and training.flow.known.runs(call, part):
                corrected = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
                if device:
                    corrected = ast.unparse(call).replace(device, "cuda")
                    corrected = (
                        f'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])); {part.statement(call, corrected)}'
                    )
                yield mistake("gpu-of-all-ranks", call, part, corrected, device)
                return


def _gpu_named(node: ast.expr | None, call: ast.Call, part: ReachablePart, training: Training) -> str | None:
    """Return the GPU that ``"cuda"``, ``"cuda:0"``, or one of them ``if torch.cuda.is_available()``, is in each rank.

    "" is the current one; None where it is neither. A name is followed to what the function gave it last.
    """
    if isinstance(node, ast.Name) and last(call.func) == "to":
        node = training.last_value(node, part)
    if isinstance(node, ast.IfExp) and "is_available" in ast.unparse(node.test):
        node = node.body
    return {"cuda": "", "cuda:0": "cuda:0"}.get(string(node) or "?")


def gpu_written_down(training: Training) -> Iterator[Mistake]:
    """``device_ids=[0]``: the same GPU for all ranks."""
    for call, part in training.wraps:
        ids = argument(call, "device_ids", 1)
        if not isinstance(ids, (ast.List, ast.Tuple)) or not ids.elts:
            continue
        if all(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in ids.elts):
            corrected = part.statement(call, call_text(call, device_ids='[int(os.environ["LOCAL_RANK"])]'))
            yield mistake("gpu-of-all-ranks", call, part, corrected, ast.unparse(ids))
            return
    for call, part in training.calls(frozenset({"torch.cuda.set_device"})):
        value = call.args[0] if call.args else None
        number = isinstance(value, ast.Constant) and isinstance(value.value, int)
        named = re.fullmatch(r"cuda:\d+", string(value) or "")
        if (number or named) and training.groups and training.always(call, part):
            corrected = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
            yield mistake("gpu-of-all-ranks", call, part, corrected, ast.unparse(value) if value else "")
            return


_OF_TORCHRUN = ("MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")


def meeting_place_written_down(training: Training) -> Iterator[Mistake]:
    """An address, port, rank or size of the script's own in the place of torchrun's."""
    by_environment = False
    for call, part in training.groups:
        if is_plain(call):
            by_environment = by_environment or _by_environment(call)
            yield from () if training.tried(call, part) else _arguments(call, part)
    for part in training.parts if by_environment else ():
        for node in part.of(ast.Assign):
            assert isinstance(node, ast.Assign)
            target, said = node.targets[0], string(node.value)
            if isinstance(target, ast.Subscript) and is_environ(target.value, part) and said is not None:
                name = string(target.slice)
                if name in _OF_TORCHRUN and _comes_first(node, part, training):
                    yield _overwritten(str(name), said, node, part)


def _arguments(call: ast.Call, part: ReachablePart) -> Iterator[Mistake]:
    """Yield what a call of ``init_process_group`` says as a literal that only torchrun knows."""
    method = string(argument(call, "init_method", 1))
    if method is not None and method.startswith("tcp://"):
        corrected = call_text(call, without=("init_method", "world_size", "rank"))
        yield mistake("rendezvous-in-script", call, part, corrected, method)
        return  # an address without size and rank is refused: the corrected line leaves out all three
    for name, position in (("world_size", 3), ("rank", 4)):
        value = argument(call, name, position)
        if isinstance(value, ast.Constant) and isinstance(value.value, int) and value.value >= 0:
            corrected = call_text(call, without=("world_size", "rank"))
            yield mistake("world-size-in-script", call, part, corrected, f"{name}={value.value}")


def _overwritten(name: str, value: str, node: ast.Assign, part: ReachablePart) -> Mistake:
    codes = {"MASTER_PORT": "rendezvous-in-script", "LOCAL_RANK": "gpu-of-all-ranks"}
    corrected = f'os.environ.setdefault("{name}", "{value}")'
    return mistake(codes.get(name, "world-size-in-script"), node, part, corrected, f"{name}={value}")


def _by_environment(call: ast.Call) -> bool:
    """Return whether a call takes the meeting place from the environment."""
    method = argument(call, "init_method", 1)
    return is_plain(call) and keyword(call, "store") is None and (method is None or string(method) == "env://")


def _comes_first(node: ast.AST, part: ReachablePart, training: Training) -> bool:
    """Return whether every rank certainly runs an assignment: under no condition, in what all ranks call."""
    if not training.always(node, part):
        return False
    function = training.flow.function_of(node, part)
    if function is None:
        return True
    callers = training.callers(function, part)
    return bool(callers) and any(_comes_first(call, where, training) for call, where in callers or ())


def threads_of_one_process(training: Training) -> Iterator[Mistake]:
    """DataParallel in a script whose ranks would each use all GPUs of the host."""
    if not training.lacks(
        "DistributedDataParallel|init_process_group|init_distributed|FullyShardedDataParallel|fully_shard"
    ):
        return
    names = frozenset({"torch.nn.DataParallel", "torch.nn.parallel.DataParallel"})
    for call, part in training.calls(names):
        model = ast.unparse(call.args[0]) if call.args else "model"
        gpu = 'int(os.environ["LOCAL_RANK"])'  # scripts of DataParallel move the model to the first GPU, or later
        corrected = f"DistributedDataParallel({model}.to({gpu}), device_ids=[{gpu}])"
        yield mistake("data-parallel-under-launcher", call, part, part.statement(call, corrected), model)
        return


# What sends gradients or weights from rank to rank, or may do so.
_SENDS = (
    r"(?im)^(?!\s*(?:from|import)\b)[^\n#]*(?:parallel\b|DDP|fsdp|fully_?shard|reduce|gather|broadcast|averag|isend|irecv|\bsend\("
    r"|\brecv\(|all_to_all|pipelin|sync|redundancy)|deepspeed|horovod|\bapex|accelerat|megatron|colossal"
)


def unaveraged(training: Training) -> Iterator[Mistake]:
    """Ranks in a process group that divide the data, and whose gradients nothing averages."""
    if not training.groups or not any(training.calls(SAMPLER)) or not training.lacks(_SENDS):
        return
    for part in training.parts:
        for call in part.calls_of("backward"):
            if not call.args and training.flow.known.runs(call, part):
                corrected = 'model = DistributedDataParallel(model, device_ids=[int(os.environ["LOCAL_RANK"])])'
                yield mistake("gradients-not-averaged", call, part, corrected)
                return


def group_left(training: Training) -> Iterator[Mistake]:
    """A process group that nobody destroys."""
    if not training.groups or not training.lacks("destroy_process_group|os\\._exit|destroy\\(|cleanup_distributed"):
        return
    for call, part in training.calls(INIT):
        if not _never_ends(training.function(call, part)):
            own = ast.unparse(call.func) if part is training.parts[0] else "torch.distributed.init_process_group"
            corrected = own.replace("init_process_group", "destroy_process_group") + "()"
            yield mistake("group-not-destroyed", call, part, corrected)
        return


def _never_ends(function: ast.AST) -> bool:
    """Return whether a loop in ``function`` is left by an exception alone: no line comes after it."""
    return any(
        isinstance(each, ast.While)
        and isinstance(each.test, ast.Constant)
        and bool(each.test.value)
        and not any(isinstance(inner, (ast.Break, ast.Return)) for inner in ast.walk(each))
        for each in ast.walk(function)
    )


_NORM = re.compile(
    r"torch\.nn\.(?:modules\.batchnorm\.)?BatchNorm[123]d|torchvision\.models\.(?:resnet\.)?(?:wide_)?resnet\d+\w*"
)


def norm_of_one_rank(training: Training) -> Iterator[Mistake]:
    """BatchNorm over the samples of one rank."""
    if not training.wraps or not training.lacks("SyncBatchNorm|sync_?bn|syncbn|convert_syncbn|GroupNorm"):
        return
    wrap, home = training.wraps[0]
    for part in training.parts:
        for call in part.calls:
            name = dotted(call.func, part.aliases)
            if name.startswith(("torch.nn.", "torchvision.")) and _NORM.fullmatch(name):
                model = ast.unparse(wrap.args[0]) if wrap.args else "model"
                corrected = f"{model} = torch.nn.SyncBatchNorm.convert_sync_batchnorm({model})"
                yield mistake("batch-norm-of-one-rank", wrap, home, corrected, name.rpartition(".")[2])
                return


_ALL_USED = re.compile(
    r"torchvision\.models\.(?:resnet\.)?(?:wide_)?resne[tx]t?\d+\w*|torch\.nn\.(?:Linear|Sequential)"
)


def unused_searched(training: Training) -> Iterator[Mistake]:
    """``find_unused_parameters=True`` for a model that uses all of them."""
    for call, part in training.wraps:
        if not is_true(keyword(call, "find_unused_parameters")) or not call.args:
            continue
        model = call.args[0]
        if _uses_all(model, part, training):
            corrected = part.statement(call, call_text(call, without=("find_unused_parameters",)))
            yield mistake("unused-parameters-searched", call, part, corrected, ast.unparse(model))


def _uses_all(node: ast.AST, part: ReachablePart, training: Training, depth: int = 4) -> bool:
    """Return whether a model is one of torchvision's, or a plain sequence of layers, moved or not."""
    if depth == 0:
        return False
    if isinstance(node, ast.Call):
        if _ALL_USED.fullmatch(dotted(node.func, part.aliases)):
            return True
        moved = isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cuda")
        return moved and _uses_all(node.func.value, part, training, depth - 1)  # type: ignore[attr-defined]
    value = training.last_value(node, part)
    return value is not None and _uses_all(value, part, training, depth - 1)
