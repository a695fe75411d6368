"""Finds how a script sets up process groups, starts its own ranks, and learns its rank and its GPU."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Final

from ddplaunch.script.flow import DISPLAYS, PLACES, Flow, places_of
from ddplaunch.script.known import NAMESPACES, UNKNOWN
from ddplaunch.script.names import Function, FunctionNodes, at, dotted, keyword, last, string
from ddplaunch.script.options.fields import is_training_arguments
from ddplaunch.script.reachable import ReachablePart, calls_in, is_environ
from ddplaunch.script.script_report import FRAMEWORKS, LOCAL_WORLD, WORLD, DeclaredAt, DeclaredOption, FixedDevices
from ddplaunch.values.frozen import dataclass

_RANK_NAMES = frozenset({"RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "GROUP_RANK"})
_SETS_UP = ("init_process_group", "init_device_mesh", "init_distributed")
_SETTING_UP = re.compile(
    r"(?:torch|deepspeed)\..*init_(?:process_group|device_mesh|distributed)"
    r"|(?:.*\bdist\w*\.)?init_(?:process_group|device_mesh)"
)
# Functions of libraries that start a function once per GPU, whatever started them.
_LIBRARY_STARTERS = """
    detectron2.engine.launch fastreid.engine.launch yolox.core.launch accelerate.notebook_launcher
    ray.train.torch.TorchTrainer torch.distributed.launcher.api.elastic_launch
"""
_LIBRARIES = _LIBRARY_STARTERS.split()
# The last names of what can start ranks.
_STARTERS = ("spawn", "start_processes", "Process", *(name.rpartition(".")[2] for name in _LIBRARIES))
# Others set up a group only in processes that they start, or by another launcher.
_JOINING = FRAMEWORKS - {"detectron2", "horovod", "monai", "ray", "ultralytics"} | {
    "transformers",
    "sentence_transformers",
}
# What joins the ranks of a launch when it is used, by its name in one of these packages.
_JOINS = re.compile(
    r"\w*Trainer|\w*TrainingArguments|Accelerator|PartialState|Fabric|Runner"
    r"|init\w*|launch\w*|prepare_training_environment"
)
# What has an annotation, or is one: it uses nothing.
_ANNOTATED = (ast.arg, ast.AnnAssign, ast.Subscript, ast.BinOp, *FunctionNodes)
_DEVICES = re.compile(r"(?i)n_?gpus?|num_gpus|gpu_count|(?:gpu|device)s|(?:gpu|device)_ids|device_count|world_size")


_OF_DEVICES = re.compile(rf"device_count|is_available|^[\w.]*\b(?:{_DEVICES.pattern[4:]})\s*[<>=]")


# Fields of ``ddplaunch.current()`` that are numbers of the plan.
_ASKED = ("batch_size", "global_batch_size", "accum", "lr", "warmup_steps")


# Nodes that hand a value on, to where it is not followed.
_HANDING_ON = (ast.Return, ast.Call, ast.keyword)
# Functions that record what they get, as in ``wandb.config.update(ddplaunch.current().asdict())``.
_RECORDING = DISPLAYS | {"update", "init", "log_params", "log_hyperparams", "dump", "dumps"}


def current_numbers(flow: Flow) -> tuple[str, ...]:
    """Return the numbers that the program reads from ``ddplaunch.current()``; all if that cannot be followed."""
    if not any("ddplaunch" in file.text for file in flow.program.files.values()):
        return ()
    found = set()
    for part in flow.parts:
        for node in part.of(ast.Attribute, ast.Name, ast.Call):
            if not _is_plan(node, part, flow) or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
                continue
            over = part.parent(node)
            field = over.attr if isinstance(over, ast.Attribute) else ""
            function = last(_function_over(part.parent(over) if over and field else node, part))
            # a name, and a function of the program, are followed
            stays = not field and (flow.is_own(function) or not isinstance(over, _HANDING_ON))
            if field not in ("", "asdict"):
                found.add(field)
            elif not stays and function not in _RECORDING:
                return _ASKED
    return tuple(name for name in _ASKED if name in found)


def _is_plan(node: ast.AST, part: ReachablePart, flow: Flow, depth: int = 5) -> bool:
    if isinstance(node, ast.Call):
        return dotted(node.func, part.aliases) == "ddplaunch.current"
    return depth > 0 and any(_is_plan(value, where, flow, depth - 1) for value, where in flow.bound(node, part)[:6])


def _function_over(node: ast.AST | None, part: ReachablePart) -> ast.expr | None:
    """Return what is called with ``node`` as an argument."""
    parent = part.parent(node) if node is not None else None
    parent = part.parent(parent) if isinstance(parent, ast.keyword) else parent
    return parent.func if isinstance(parent, ast.Call) and parent.func is not node else None


@dataclass(frozen=True)
class GroupSetUp:
    """How a script starts ranks and sets up their process group.

    ``joined``: the ranks of a launch meet in what was read. ``spawns`` is where the script starts its own ones;
    ``alone`` if its process group is set up nowhere else. ``off`` is where it would set one up if the ``switches``,
    options, had other values.
    """

    spawns: DeclaredAt | None = None
    alone: bool = False
    off: DeclaredAt | None = None
    switches: tuple[str, ...] = ()
    joined: bool = False


def ranks_of(outside: Outside, options: Sequence[DeclaredOption], reads_env: Collection[str]) -> GroupSetUp:
    """Return where the script starts its own ranks, or which options keep it from setting up a process group."""
    parts, flow = outside.parts, outside.flow
    certain = next((place for place in outside.spawns if _is_certain(*place, outside)), None)
    set_ups = _set_ups(parts)
    obstacles = [outside.obstacle(call, part) for call, part in set_ups]
    alone = None not in obstacles
    aware = not _RANK_NAMES.isdisjoint(reads_env)
    if certain is not None and (alone or not aware):
        return GroupSetUp(at(certain[0], certain[1].source), alone)
    frames = (node for part in parts for node in _joining(part, bool(set_ups)))
    sets_rank = any(
        isinstance(node.ctx, ast.Store) and string(node.slice) == "RANK" and is_environ(node.value, part)
        for part in parts
        for node in part.of(ast.Subscript)
    )
    # a group with a rank of the script's own or of another launcher's, not with the one in the environment
    own = not aware and (sets_rank or all(keyword(call, "rank") is not None for call, _ in set_ups))
    places = (*(() if own else set_ups), *frames)
    joined = any(outside.obstacle(node, part, unread=True) is None for node, part in places)
    if joined or not alone:
        return GroupSetUp(joined=joined and certain is None)
    if _SPAWN in obstacles:
        call, part = outside.spawns[0]
        return GroupSetUp(at(call, part.source), True)
    if outside.spawns:
        return GroupSetUp()  # what would set up a group may start ranks too
    for (call, part), obstacle in zip(set_ups, obstacles, strict=True):
        of_one = ast.unparse(keyword(call, "world_size") or call) == "1"  # each rank by itself: no group of the launch
        test, where = obstacle or _SPAWN
        if where is not None and not of_one:
            behind = flow.known.options_behind(test, where)
            found = [each for each in options if each.dest in behind and flow.known.turns(each.dest, test, where)]
            found = [option for option in found if not option.required] or found  # a required option is given anyway
            switches = tuple(dict.fromkeys(f"{option.after_flag} {option.flags[0]}".strip() for option in found))
            if switches:
                return GroupSetUp(off=at(call, part.source), switches=switches)
    return GroupSetUp()


# What chooses whether anything trains, not whether its ranks meet.
_WHAT_RUNS = re.compile(r"(?i)mode\b|command|phase|eval")


def _unread_before(node: ast.AST, part: ReachablePart, flow: Flow) -> ast.expr | None:
    """Return what was not read and decides if ``node`` runs: a condition on a key or a flag, a table of classes."""
    around = part.parent(node)
    if isinstance(around, ast.Dict):
        return around
    return next(
        (
            test
            for test, _ in flow.known.conditions(node, part)
            if flow.known.decide(test, part) is None and not _WHAT_RUNS.search(ast.unparse(test))
            for name in ast.walk(test)
            for key in (name, *(value for value, _ in flow.bound(name, part)))
            if _is_unread(key, part, flow)
        ),
        None,
    )


def _is_unread(key: ast.AST, part: ReachablePart, flow: Flow) -> bool:
    """Return whether this is a key of a configuration, or a flag with several values, as for what is installed."""
    values = [value for value, _ in flow.bound(key, part)]
    if last(getattr(key, "value", None)).rpartition("_")[2] not in NAMESPACES:  # or in `train_config`
        return values != [] and all(isinstance(value, ast.Constant) for value in values)
    copied = all(last(value) == last(key) != "" for value in values)  # at most
    return copied and not flow.made_of(key, part)  # type: ignore[arg-type]  # a name


def device_from_option(flow: Flow, option: DeclaredOption) -> DeclaredAt | None:
    """Return where the script takes its GPU from ``option``, a local rank, if nothing but arguments gives its value."""
    if flow.known.option(option.dest) is UNKNOWN or flow.assigned(option.dest):
        return None
    for call, part in calls_in(flow.parts, "set_device", "device", "cuda", "to", "DistributedDataParallel", "DDP"):
        chosen = [keyword(call, "device_ids")] if last(call.func) in ("DistributedDataParallel", "DDP") else call.args
        nodes = (node for item in chosen if item is not None for node in ast.walk(item))
        named = (node for node in nodes if isinstance(node, (ast.Name, ast.Attribute)))
        if any(flow.made_of(node, part) == frozenset({option.dest}) for node in named) and flow.known.runs(call, part):
            return at(call, part.source)
    return None


def _set_ups(parts: Sequence[ReachablePart]) -> list[tuple[ast.Call, ReachablePart]]:
    """Return the calls that set up groups; a method of something else of that name may join nothing."""
    calls = calls_in(parts, *_SETS_UP)
    return [(call, part) for call, part in calls if _SETTING_UP.fullmatch(dotted(call.func, part.aliases))]


def _joining(part: ReachablePart, own: bool) -> Iterator[tuple[ast.expr, ReachablePart]]:
    """Yield where what joins ranks is named; DeepSpeed joins none of its own where the script sets up a group."""
    packages = {bound: name for bound, name in part.aliases.items() if name.partition(".")[0] in _JOINING}
    for node in part.of(ast.Name) if packages else ():
        if node.id not in packages:
            continue
        inner: ast.expr = node
        name, outer = packages[node.id], part.parent(node)
        while isinstance(outer, ast.Attribute) and not _JOINS.fullmatch(name.rpartition(".")[2]):
            name, inner, outer = f"{name}.{outer.attr}", outer, part.parent(outer)
        # made elsewhere then, with devices that are not seen
        handed_on = isinstance(outer, (ast.Call, ast.Tuple)) and getattr(outer, "func", None) is not inner
        joins = (_JOINS.fullmatch(name.rpartition(".")[2]) and not handed_on) or is_training_arguments(name)
        if joins and not isinstance(outer, _ANNOTATED) and not (own and name.startswith("deepspeed.")):
            yield node, part


_Obstacle = tuple[ast.expr, ReachablePart | None]
_SPAWN: Final[_Obstacle] = (ast.Constant("started by the script itself"), None)


class Outside:
    """Follows a node up to what calls it, other than processes that the script starts."""

    def __init__(self, flow: Flow) -> None:
        """Find what starts ranks."""
        self.parts, self.flow = flow.parts, flow
        starters = calls_in(flow.parts, *_STARTERS)
        self.spawns = [place for place in starters if _starts_ranks(*place)]
        self.targets = {id(node) for call, _ in self.spawns for item in _arguments(call) for node in ast.walk(item)}

    def obstacle(
        self, node: ast.AST, part: ReachablePart, seen: frozenset[int] = frozenset(), unread: bool = False
    ) -> _Obstacle | None:
        """Return a condition that keeps ``node`` from running in a rank, ``_SPAWN``, or None if it may run.

        With ``unread`` what was not read may keep it from running too.
        """
        test = self.flow.known.obstacle(node, part)
        if test is None and unread:
            test = _unread_before(node, part, self.flow)
        if test is not None:
            return test, part
        function = self.flow.function_of(node, part)
        if function is None:
            return None
        found: list[_Obstacle] = []
        started = False
        for reference, where in self.references(function, part) if id(function) not in seen else ():
            reason = self.obstacle(reference, where, seen | {id(function)}, unread)
            own = id(reference) in self.targets
            if reason is None and not own:
                return None
            started = started or reason is None
            found.append(reason if reason is not None and not own else _SPAWN)
        if started:
            return _SPAWN
        return next((reason for reason in found if reason is not _SPAWN), found[0] if found else None)

    def is_certain(
        self, node: ast.expr, part: ReachablePart, devices: bool = False, seen: frozenset[int] = frozenset()
    ) -> bool:
        """Return whether ``node`` runs in each rank: under no condition that is open, in a function that is called.

        With ``devices`` counts of devices may be conditions.
        """
        function = self.flow.function_of(node, part)
        returns = (each for each in ast.walk(function or node) if isinstance(each, ast.Return))
        if any(each.lineno < node.lineno for each in returns) or not all(
            self.flow.known.decide(test, part) is wanted
            or (devices and wanted and _OF_DEVICES.search(ast.unparse(test)))
            for test, wanted in self.flow.known.conditions(node, part)
        ):
            return False
        return function is None or any(
            isinstance(where.parent(name), ast.Call) and self.is_certain(name, where, devices, seen | {id(function)})
            for name, where in self.references(function, part)
            if id(function) not in seen and id(name) not in self.targets
        )

    def needed_variables(self) -> Iterator[tuple[str, DeclaredAt]]:
        """Yield the variables of the environment that ranks need by ``os.environ["NAME"]``, and nothing sets."""
        text = "\n".join(file.text for file in self.flow.program.files.values())
        given = re.findall(r"(?:\[|default\()['\"](\w+)['\"](?:, |\] = )", text)
        sets_more = re.search(r"dotenv|putenv|environ(\.update|\W* = )", text)
        for part in self.parts if "environ" in text and not sets_more else ():
            for node in part.of(ast.Subscript):
                name = string(node.slice) or ""
                read = name and isinstance(node.ctx, ast.Load) and is_environ(node.value, part)
                sure = read and name not in given and not part.around(node, ast.Try, ast.BoolOp, ast.Lambda)
                if sure and self.is_certain(node, part):
                    yield name, at(node, part.source)

    def references(self, function: Function, part: ReachablePart) -> Iterator[tuple[ast.expr, ReachablePart]]:
        """Yield the names that may stand for ``function``, other than those in its own body."""
        parent = part.parent(function)
        name = parent.name if isinstance(parent, ast.ClassDef) and function.name.startswith("__") else function.name
        return (
            (node, where) for node, where in self._named[name] if self.flow.function_of(node, where) is not function
        )

    @cached_property
    def _named(self) -> dict[str, list[tuple[ast.expr, ReachablePart]]]:
        named: dict[str, list[tuple[ast.expr, ReachablePart]]] = defaultdict(list)
        for part in self.parts:
            for node in part.of(ast.Name, ast.Attribute):
                if type(node.ctx) is ast.Load:  # type: ignore[attr-defined]  # of names and attributes
                    named[last(node)].append((node, part))
        return named


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(item.value for item in call.keywords)]


# Under torchrun Lightning takes as many devices as there are ranks, or ends.
_LIGHTNING = ("lightning", "pytorch_lightning")
_EVERY_DEVICE = (None, -1, "auto")


def devices_of(outside: Outside) -> Iterator[FixedDevices]:
    """Yield what fixes how many devices are used, with this number, 0 if it is not certain, and where.

    That is a trainer of Lightning, the script's own CUDA_VISIBLE_DEVICES, or a model that is spread over all GPUs.
    """
    flow = outside.flow
    for part in outside.parts:
        calls = part.calls_of("Trainer", "Fabric", "from_argparse_args")
        trainers = [each for each in calls if dotted(each.func, part.aliases).partition(".")[0] in _LIGHTNING]
        named = (
            (item.arg or "**", item.value, call)
            for call in trainers
            for item in call.keywords
            if item.arg in (None, "devices", "gpus", "num_nodes")
        )
        every = (("**", each, each) for each in trainers if last(each.func) == "from_argparse_args")
        others = (
            (name, value, node)
            for node in part.of(*PLACES)
            for name, sink, value in places_of(node)
            if re.fullmatch(r"environ CUDA_VISIBLE_DEVICES|.+ device_map", f"{sink} {name}")
        )
        for name, value, node in (*named, *every, *others):
            devices = flow.known.value(value, part)
            fits_any = devices in _EVERY_DEVICE or (name, devices) == ("num_nodes", 1)
            if name == "device_map":  # transformers spreads a model over the GPUs of all ranks
                fits_any = devices != "auto"
            fixed = any(isinstance(each, ast.Constant) for each, _ in flow.bound(value, part))
            by_launch = fits_any or not (fixed or flow.made_of(value, part).isdisjoint((WORLD, LOCAL_WORLD)))
            # actors of ray have processes of their own
            if not by_launch and "ray.remote" not in part.source.text and outside.obstacle(node, part) is None:
                beside = outside.obstacle(node, part, unread=True) or "LightningCLI" in part.source.text
                yield FixedDevices(name, 0 if beside else _number_of(devices, name), at(node, part.source))


def _number_of(devices: object, name: str) -> int:
    """Return how many devices ``2`` or ``[0, 1]`` are, or the variable's ``"0,1"``; 0 if that is not known."""
    if name == "num_nodes":
        return 0
    if isinstance(devices, str):
        return devices.count(",") + 1 if name == "CUDA_VISIBLE_DEVICES" else 0
    return len(devices) if isinstance(devices, tuple) else devices if type(devices) is int else 0


def _starts_ranks(call: ast.Call, part: ReachablePart) -> bool:
    name = dotted(call.func, part.aliases)
    if name in ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"):
        processes = keyword(call, "nprocs") or (call.args[2] if len(call.args) > 2 else None)
        return processes is not None and ast.unparse(processes) != "1"
    if last(call.func) == "Process" and keyword(call, "target") is not None:
        return part.around(call, ast.For) is not None
    return name in _LIBRARIES and bool(_arguments(call))


def _is_certain(call: ast.Call, part: ReachablePart, outside: Outside) -> bool:
    """Return whether the main guard and counts of devices are the only conditions of a call; True for libraries."""
    loop = part.around(call, ast.For)
    # not a loop as `for rank in range(n_gpus)`
    other = loop and not any(_DEVICES.fullmatch(last(node)) for node in ast.walk(loop.iter))
    return dotted(call.func, part.aliases) in _LIBRARIES or (not other and outside.is_certain(call, part, devices=True))
