"""Mistakes in how data and checkpoints are loaded: samplers, their epochs, seeds, where tensors go."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddplaunch.script.mistakes.training import (
    LOADER,
    SAMPLER,
    Training,
    argument,
    call_text,
    is_plain,
    mentions,
    mistake,
    several_processes,
)
from ddplaunch.script.names import FunctionNodes, dotted, is_true, keyword, last, string
from ddplaunch.script.reachable import ReachablePart
from ddplaunch.script.script_report import Mistake

# What a program has that divides its data in another way than by DistributedSampler.
_DIVIDES = (
    r"(?m)^(?!\s*(?:from|import)\b)[^\n#]*[Ss]ampler|IterableDataset|IterDataPipe|\bshard|split_dataset_by_node|webdataset|DataPipe|ffcv|\bdali\b|Subset\b"
    r"|random_split|num_replicas|\[\s*\w*rank\s*:|\* *\w*rank\b|\brank *\*|rank\s*::|//\s*\w*(?:world_size|num_tasks)"
    r"|%\s*\w*(?:world_size|num_tasks)"
)
_EVALUATION = re.compile(r"(?i)val|test|eval|dev\b|infer|query|gallery|memory|bank|feature|knn|calib")
_EPOCH = re.compile(r"(?i)_?(?:i_?|cur(?:rent)?_?|this_)?epochs?(?:_(?:num|idx|i|id|index))?|ep")


def undivided(training: Training) -> Iterator[Mistake]:
    """A DataLoader for the training of a model in DistributedDataParallel that gives every rank all samples."""
    if not training.wraps or not training.lacks(_DIVIDES):
        return
    for call, part in training.calls(LOADER):
        given = {item.arg for item in call.keywords}
        if not is_plain(call) or len(call.args) > 2 or given & {"sampler", "batch_sampler"}:
            continue
        owner = _target(call, part)
        dataset = call.args[0] if call.args else keyword(call, "dataset")
        if dataset is None or not is_true(keyword(call, "shuffle")) or mentions(dataset, re.compile("(?i)rank|world")):
            continue
        if _EVALUATION.search(owner) or mentions(dataset, _EVALUATION) or not _is_trained_on(call, part, training):
            continue
        text = ast.unparse(dataset)
        corrected = call_text(call, without=("shuffle",), sampler=f"DistributedSampler({text})")
        corrected = part.statement(call, corrected)
        yield mistake("data-not-divided", call, part, corrected, text)
        return


def _is_trained_on(call: ast.Call, part: ReachablePart, training: Training) -> bool:
    """Return whether the function around has the wrapped model too, or is no evaluation by its name."""
    function = training.function(call, part)
    return not (isinstance(function, FunctionNodes) and _EVALUATION.search(function.name))


def _target(call: ast.Call, part: ReachablePart) -> str:
    """Return what a call is assigned to, as text; empty where it is not."""
    parent = part.source.parents.get(call)
    while isinstance(parent, ast.IfExp):
        parent = part.source.parents.get(parent)
    return ast.unparse(parent.targets[0]) if isinstance(parent, ast.Assign) else ""


def same_order(training: Training) -> Iterator[Mistake]:
    """A DistributedSampler of a training over epochs that nobody tells of the epoch."""
    samplers = list(training.calls(SAMPLER)) if training.groups else []
    if not samplers or not training.lacks(r"set_epoch|class\s+\w*Sampler\b"):
        return
    loop = _loop_over_epochs(training)
    for call, part in samplers if loop is not None else ():
        owner, shuffle = _target(call, part), keyword(call, "shuffle")
        function = training.function(call, part)
        name = function.name if isinstance(function, FunctionNodes) else ""
        if (isinstance(shuffle, ast.Constant) and not shuffle.value) or not (owner.isidentifier() or "." in owner):
            continue
        if shuffle is not None and not isinstance(shuffle, ast.Constant):
            continue
        if any(_EVALUATION.search(text) for text in (owner, name)) or any(mentions(a, _EVALUATION) for a in call.args):
            continue
        if not is_plain(call) or not _is_sampler_of_training(owner, training):
            continue
        assert loop is not None
        node, home, epoch = loop
        at = f"{home.source.shown}:{node.lineno}"
        seen = home is part and training.function(node, home) in (function, home.source.tree)
        named = owner if seen or "." in owner else _sampler_in(node)
        yield mistake("sampler-epoch-not-set", call, part, f"{named}.set_epoch({epoch})", f"{owner} {at}")
        return


def _sampler_in(loop: ast.For) -> str:
    """Return the sampler as a loop that does not see its name can say it: by the DataLoader that the loop names."""
    names = [each.id for each in ast.walk(loop) if isinstance(each, ast.Name) and "load" in each.id.lower()]
    known = dict.fromkeys(name for name in names if not _EVALUATION.search(name))
    return f"{next(iter(known))}.sampler" if len(known) == 1 else "loader.sampler"


def _is_sampler_of_training(owner: str, training: Training) -> bool:
    """Return whether a DataLoader gets this sampler, and none that is for an evaluation does."""
    own = owner.rpartition(".")[2]
    loaders = [
        (call, part)
        for part in training.parts
        for call in part.calls_of("DataLoader", "BatchSampler", "__init__")
        if last(argument(call, "sampler", 0)) == own and (last(call.func) != "__init__" or _of_loader(call, part))
    ]
    return bool(loaders) and not any(_EVALUATION.search(_target(call, part)) for call, part in loaders)


def _of_loader(call: ast.Call, part: ReachablePart) -> bool:
    """Return whether ``super().__init__()`` stands in a class that is a DataLoader."""
    parent = part.source.parents.get(call)
    while parent is not None and not isinstance(parent, ast.ClassDef):
        parent = part.source.parents.get(parent)
    return isinstance(parent, ast.ClassDef) and any(dotted(base, part.aliases) in LOADER for base in parent.bases)


_COUNTS = frozenset({"range", "trange", "tqdm", "enumerate", "count"})


def _loop_over_epochs(training: Training) -> tuple[ast.For, ReachablePart, str] | None:
    """Return the loop over more than one epoch around a training, with the name of the epoch."""
    for part in training.parts:
        for node in part.of(ast.For):
            assert isinstance(node, ast.For)
            targets = node.target.elts[:1] if isinstance(node.target, ast.Tuple) else [node.target]
            if last(getattr(node.iter, "func", None)) not in _COUNTS or not isinstance(targets[0], ast.Name):
                continue
            if _EPOCH.fullmatch(targets[0].id):
                return node, part, targets[0].id
    return None


def shuffled_beside_sampler(training: Training) -> Iterator[Mistake]:
    """``shuffle=True`` beside a sampler that is certainly there: a ValueError of the DataLoader."""
    for call, part in training.calls(LOADER):
        sampler = keyword(call, "sampler")
        if sampler is None or not is_true(keyword(call, "shuffle")):
            continue
        known = isinstance(sampler, ast.Call) or _only_samplers(sampler, part, training)
        if known:
            corrected = part.statement(call, call_text(call, without=("shuffle",)))
            yield mistake("shuffle-with-sampler", call, part, corrected, ast.unparse(sampler))
            return


def _only_samplers(node: ast.expr, part: ReachablePart, training: Training) -> bool:
    """Return whether a name has one value that is a DistributedSampler, under no condition of its own."""
    bound = training.flow.bound(node, part)
    if len(bound) != 1 or not isinstance(node, ast.Name):
        return False
    value, where = bound[0]
    outer = {id(test) for test, _ in training.conditions(node, part)}
    inner = {id(test) for test, _ in training.conditions(value, where)}
    return isinstance(value, ast.Call) and dotted(value.func, where.aliases) in SAMPLER and inner <= outer


_AUGMENTS = re.compile(r"\.Random(?!Sampler|State)\w+\(|RandAugment|AutoAugment|ColorJitter|TrivialAugment")


def same_seeds(training: Training) -> Iterator[Mistake]:
    """One seed for the random augmentation of all ranks."""
    seeds = list(training.calls(frozenset({"torch.manual_seed"}))) if training.wraps and training.groups else []
    if not seeds or not training.lacks(
        r"(?i)seed[^\n]*(?:rank|gpu)|(?:rank|gpu)[^\n]*seed|worker_init_fn|\.Generator\("
    ):
        return
    if not any(_AUGMENTS.search(file.text) for file in training.program.files.values()):
        return
    for call, part in seeds:
        if len(call.args) != 1 or not training.always(call, part):
            continue
        seed = ast.unparse(call.args[0])
        if isinstance(call.args[0], (ast.Constant, ast.Name, ast.Attribute)):
            yield mistake("seed-of-all-ranks", call, part, f'torch.manual_seed({seed} + int(os.environ["RANK"]))', seed)
            return


def loaded_to_first_gpu(training: Training) -> Iterator[Mistake]:
    """A checkpoint that every rank loads to the GPU which wrote it."""
    if not training.groups or not training.wraps or not training.lacks("set_default_device|set_default_tensor_type"):
        return
    for call, part in training.calls(frozenset({"torch.load"})):
        if len(call.args) != 1 or not is_plain(call) or keyword(call, "map_location") is not None:
            continue
        if not _has_other_way(call, part) and _is_checkpoint(call, part, training) and _saves_whole_state(training):
            yield mistake("load-without-map-location", call, part, call_text(call, map_location='"cpu"'))
            return


def _has_other_way(call: ast.Call, part: ReachablePart) -> bool:
    """Return whether a condition around the call has another load with ``map_location``: ranks may go there."""
    at: ast.AST = call
    while (above := part.source.parents.get(at)) is not None:
        at = above
        if isinstance(at, (ast.If, ast.IfExp)) and any(
            isinstance(each, ast.Call) and keyword(each, "map_location") is not None for each in ast.walk(at)
        ):
            return True
    return False


def _is_checkpoint(call: ast.Call, part: ReachablePart, training: Training) -> bool:
    """Return whether what is loaded goes into ``load_state_dict``."""
    parent = part.source.parents.get(call)
    name = ast.unparse(parent.targets[0]) if isinstance(parent, ast.Assign) else ""
    for each in ast.walk(training.function(call, part)):
        if isinstance(each, ast.Call) and last(each.func) == "load_state_dict" and each.args:
            value = each.args[0]
            if value is call or (name and re.match(rf"{re.escape(name)}\b", ast.unparse(value))):
                return True
    return False


def _saves_whole_state(training: Training) -> bool:
    """Return whether the program writes checkpoints itself, from models that are on GPUs."""
    for part in training.parts:
        for call in part.calls_of("save"):
            if dotted(call.func, part.aliases) == "torch.save" and call.args and ".cpu()" not in ast.unparse(call):
                return any(re.search(r"\.cuda\(|cuda", each.source.text) for each in training.parts)
    return False


_PARTS_OF_STATE = ("load_state_dict", "state_dict")


def prefixed(training: Training) -> Iterator[Mistake]:
    """The state of a wrapped model, saved with ``module.`` before each name and loaded into a model without."""
    if not training.wraps:
        return
    if not training.lacks(
        r"module\.|replace\(.module|consume_prefix|strict\s*=\s*False|\.module\b|FullyShardedDataParallel"
    ):
        return
    for part in training.parts:
        for call in part.calls_of("state_dict"):
            function = call.func
            if (
                not isinstance(function, ast.Attribute)
                or call.args
                or call.keywords
                or not _goes_to_a_file(call, part, training)
            ):
                continue
            if _is_wrapped(function.value, part, training) and not _loads_into_wrapped(training):
                name = ast.unparse(function.value)
                yield mistake("state-dict-prefixed", call, part, f"{name}.module.state_dict()", name)
                return


def _is_wrapped(node: ast.AST, part: ReachablePart, training: Training) -> bool:
    from ddplaunch.script.mistakes.training import DDP

    value = training.last_value(node, part)
    return (
        isinstance(value, ast.Call)
        and dotted(value.func, part.aliases) in DDP
        and all(
            "__name__" in ast.unparse(test) or several_processes(test, wanted)
            for test, wanted in training.conditions(value, part)
        )
    )


def _goes_to_a_file(call: ast.Call, part: ReachablePart, training: Training) -> bool:
    """Return whether a state is saved: in a call, by a name, or by a function of the program."""
    value: ast.AST = call
    parent = part.source.parents.get(call)
    while isinstance(parent, (ast.Dict, ast.keyword)):
        value, parent = parent, part.source.parents.get(parent)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        return _is_saved(parent.targets[0].id, training.function(call, part), part)
    if not isinstance(parent, ast.Call) or dotted(parent.func, part.aliases) == "torch.save":
        return isinstance(parent, ast.Call)
    found = training.called(parent, part)
    if found is None or value not in parent.args:
        return False
    function, home = found
    names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
    position = parent.args.index(value) + ("self" in names[:1])
    return position < len(names) and _is_saved(names[position], function, home)


def _is_saved(name: str, function: ast.AST, part: ReachablePart) -> bool:
    """Return whether ``function`` gives what a name stands for to ``torch.save``."""
    return any(
        isinstance(each, ast.Call)
        and dotted(each.func, part.aliases) == "torch.save"
        and bool(each.args)
        and last(each.args[0]) == name
        for each in ast.walk(function)
    )


def loaded_unprefixed(training: Training) -> Iterator[Mistake]:
    """The state of the model within, loaded into its wrapper: its names lack the ``module.`` that is wanted."""
    if not training.wraps or not training.lacks(r"[\"']module\.|add_prefix|strict\s*=\s*False|load_state_dict\s*="):
        return
    saved = set(_saved_states(training))
    for part in training.parts:
        for call in part.calls_of("load_state_dict"):
            if not isinstance(call.func, ast.Attribute) or len(call.args) != 1 or not is_plain(call):
                continue
            key = _key_loaded(call.args[0], part, training)
            wanted = {within for name, within in saved if name == key}
            if key is not None and wanted == {True} and _is_wrapped(call.func.value, part, training):
                name = ast.unparse(call.func.value)
                corrected = f"{name}.module.load_state_dict({ast.unparse(call.args[0])})"
                yield mistake("state-dict-prefixed", call, part, corrected, f"{name} loads")
                return


def _saved_states(training: Training) -> Iterator[tuple[str, bool]]:
    """Yield under which key of its checkpoints a program saves a state, and whether it is of ``x.module``."""
    for part in training.parts:
        for call in part.calls_of("state_dict"):
            if isinstance(call.func, ast.Attribute) and _goes_to_a_file(call, part, training):
                parent = part.source.parents.get(call)
                key = ""
                if isinstance(parent, ast.Dict):
                    key = next(
                        (string(k) or "?" for k, v in zip(parent.keys, parent.values, strict=True) if v is call), "?"
                    )
                elif isinstance(parent, ast.keyword):
                    key = parent.arg or "?"
                yield key, last(call.func.value) == "module"


def _key_loaded(node: ast.expr, part: ReachablePart, training: Training) -> str | None:
    """Return the key of the checkpoint that a loaded state comes from, "" for a whole one, None if it is neither."""
    key = ""
    if isinstance(node, ast.Subscript):
        key, node = string(node.slice) or "?", node.value
    value = node if isinstance(node, ast.Call) else training.last_value(node, part)
    is_load = isinstance(value, ast.Call) and dotted(value.func, part.aliases) == "torch.load"
    return key if is_load else None


def _loads_into_wrapped(training: Training) -> bool:
    """Return whether the program loads into what it has wrapped, or where nobody can tell."""
    return any(
        _is_wrapped(call.func.value, part, training)
        for part in training.parts
        for call in part.calls_of("load_state_dict")
        if isinstance(call.func, ast.Attribute)
    )
