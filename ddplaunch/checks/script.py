"""Checks of the training script's source against the launch, and of the numbers that the launch gives it."""

from __future__ import annotations

import re
import shlex

from ddplaunch.checks.check import Findings, checks_in
from ddplaunch.checks.variables import launcher_of_target
from ddplaunch.planning.launch import Launch, Missing, Target
from ddplaunch.script.declared import given, is_same_value
from ddplaunch.script.script_report import NO_GROUP, DeclaredOption, ScriptReport
from ddplaunch.values.finding import error, warning
from ddplaunch.values.words import count, in_one, listed

_LOCAL_RANK_FLAGS = ("--local-rank", "--local_rank")


def script_syntax_error(script: ScriptReport) -> Findings:
    """The script does not compile in this Python.

    Every rank would start and then end in the same SyntaxError. A script for a newer Python than this interpreter
    fails in the same way. Remedy: correct the line that the finding names, or use a newer Python.
    """
    if script.syntax_error is not None:
        yield error(
            "script-syntax-error",
            f"{script.path} does not compile: {script.syntax_error}",
            why="every rank would end in this SyntaxError",
            fix=f"correct the line; `python -m py_compile {shlex.quote(script.path)}` shows it",
            where=script.path,
        )


def script_spawns_processes(script: ScriptReport, launch: Launch) -> Findings:
    """The script starts its own ranks, and torchrun would start the script once per rank.

    `mp.spawn` with one process per GPU, run by N ranks, starts N x N processes that compete for the same GPUs and
    port. Remedy: `python train.py` alone; or let the script take its rank from RANK and LOCAL_RANK and call the
    training function directly.
    """
    processes = launch.topology.nproc_per_node.value
    if script.spawns is None or processes == 1:
        return
    # A script that also reads torchrun's variables may spawn only if they are absent.
    aware = any(name in script.reads_env for name in ("LOCAL_RANK", "RANK", "TORCHELASTIC_RUN_ID"))
    starts = "starts its own processes"
    why = f"if each copy starts one process per rank, {processes} x {processes} processes share the same GPUs and port"
    if script.spawns_alone:
        starts = "sets up a process group only between processes that it starts itself"
        why = f"only these share a group: each of the {processes} copies trains alone, or starts as many on its GPUs"
    target = launch.target
    args = target.args if target else ()
    started = shlex.join(("-m", target.name, *args) if target and target.kind == "module" else (script.path, *args))
    yield (warning if aware and not script.spawns_alone else error)(
        "script-spawns-processes",
        f"{script.path} {starts}, and {processes} copies of it would run",
        why=why,
        fix=f"run it without a launcher, `MASTER_ADDR=localhost MASTER_PORT=29500 python {started}`; or replace the "
        'spawn by a call of its function with `int(os.environ["LOCAL_RANK"])`',
        where=str(script.spawns),
    )


def script_demands_local_rank(script: ScriptReport, launch: Launch) -> Findings:
    """The script needs --local-rank, which torchrun does not pass.

    torch.distributed.launch appended it to the arguments; torchrun sets LOCAL_RANK in the environment of each rank and
    passes the same arguments to all, so every rank ends with a usage error, or takes the GPU that the default names,
    the same one. Remedy: read LOCAL_RANK in the script, or put a shell in between that passes the option.
    https://docs.pytorch.org/docs/stable/elastic/run.html#transitioning-from-torch-distributed-launch-to-torchrun
    """
    options = [option for option in script.options if not set(_LOCAL_RANK_FLAGS).isdisjoint(option.flags)]
    flag = next(
        (flag for option in options for flag in option.flags if flag in _LOCAL_RANK_FLAGS), _LOCAL_RANK_FLAGS[0]
    )
    target, demanded, accepted = launch.target, script.demands_local_rank, script.takes_local_rank
    passed = target is not None and any(given(target.args, option, script.options) for option in options)
    if demanded is None and (accepted is None or passed or launch.topology.nproc_per_node.value == 1):
        return
    then = "argparse ends it with a usage error" if demanded else "by default every rank of a node takes the same GPU"
    yield (error if demanded else warning)(
        "script-demands-local-rank",
        f"{script.path} {'requires' if demanded else 'chooses its GPU by'} `{flag}`, which torchrun does not pass",
        why=f"torchrun sets LOCAL_RANK in the environment instead, and {then}",
        fix='declare it with `default=int(os.environ.get("LOCAL_RANK", 0))`'
        f"{' and without `required=True`' if demanded else ''}; or let a shell pass it: "
        f"{_shell_passes(script.path, flag, target)}",
        where=str(demanded or accepted),
    )


def _shell_passes(path: str, flag: str, target: Target | None) -> str:
    """Return the words behind ``--`` by which a shell passes each rank its own local rank, and no other."""
    words = iter(target.args if target else ())
    arguments: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        if name != flag:
            arguments.append(word)
        elif not equals:
            next(words, None)  # its value
    start = target.before if target and target.before else ("python",)
    # in front: an argument of the user's may take all that follows
    command = f'exec {shlex.join([*start, path])} {flag} "$LOCAL_RANK" {shlex.join(arguments)}'
    return f"`-- sh -c {shlex.quote(command.strip())}`"


_OF_RANKS = re.compile(r"(?i)gpu|rank|distributed|ddp|per[ -]node")
_OF_NODES_HELP = re.compile(r"(?i)\b(?:nodes|machines|hosts)\b")


def launch_contradicted(launch: Launch, script: ScriptReport) -> Findings:
    """An argument of the script names another launch than this one.

    A world size that is too large makes all ranks wait for ones that nobody starts, one that is too small leaves ranks
    out, and with one local rank for all of them every rank takes the same GPU. Where only the script knows of several
    nodes, each node trains alone. Remedy: options of the launch before `--`; a placeholder, `--world-size
    {world_size}`, or no such argument, since torchrun sets WORLD_SIZE and LOCAL_RANK.
    """
    topology, target = launch.topology, launch.target
    if script.devices is not None and script.devices.differ(topology.nproc_per_node.value):
        name, number, place = script.devices.name, script.devices.number, script.devices.at
        ranks = count(topology.nproc_per_node.value, "rank")
        yield warning(
            "launch-contradicted",
            f"{script.path} takes {count(number, 'device')} by `{name}`, but this launch has {ranks} on each node",
            why="ranks have no device of their own, or each trains alone",
            fix=f"leave `{name}` out of the script, which follows the launch then; or `ddplaunch run {number} -- …`",
            where=str(place),
        )
    if target is None or script.spawns or topology.min_nodes != topology.nnodes.value:
        return
    typed = {
        _size_of(option): (option, value)
        for option in script.options
        for value in given(target.args, option, script.options)[-1:]
    }
    processes = topology.nproc_per_node.value
    sizes = {"world_size": topology.world_size, "nproc": processes, "nnodes": topology.nnodes.value}
    flags = [f" --{name} {shlex.quote(value)}" for name, (_, value) in typed.items() if name in _OF_NODES]
    for name, (option, value) in typed.items():
        if not re.fullmatch("[0-9]+", value):
            continue
        words = f"`{option.flags[0]} {value}` after `--`"
        kind = warning if _VARIABLES.get(name) in script.reads_env else error  # which may win over its option
        if name == "local_rank" and processes > 1:
            shell = f"let a shell pass it: {_shell_passes(script.path, option.flags[0], target)}"
            out = f"leave `{option.flags[0]} {value}` out: torchrun sets LOCAL_RANK for each rank"
            yield kind(
                "launch-contradicted",
                f"{words} is the same for all ranks of this node",
                why="each rank takes the GPU of its local rank, and all of them would take one",
                fix=shell if kind is error and target.kind == "script" else out,
                where=str(option.at),
            )
        if name == "node-rank" and int(value) >= sizes["nnodes"] and "nnodes" not in typed:
            yield kind(
                "launch-contradicted",
                f"{words}, but this launch has {count(sizes['nnodes'], 'node')}",
                why="each node would train alone",
                fix=f"`ddplaunch run {processes} --nnodes N --node-rank {value} --master-addr HOST -- …`",
                where=str(option.at),
            )
        actual = sizes.get(name, 0)
        if actual and int(value) not in (0, actual):
            nproc = value if name == "world_size" else typed.get("nproc", (option, processes))[1]
            alternative = (
                f"; or launch so many: `ddplaunch run {nproc}{''.join(flags)} -- …`" if sizes["nnodes"] == 1 else ""
            )
            has = f"{count(actual, 'node' if name == 'nnodes' else 'rank')}{' on each node' if name == 'nproc' else ''}"
            yield kind(
                "launch-contradicted",
                f"{words}, but this launch has {has}",
                why="the ranks would wait for others that nobody starts, or train without them"
                if int(value) > actual
                else "ranks are left out",
                fix=f"`{option.flags[0]} {{{name}}}`, which follows the launch{alternative}",
                where=str(option.at),
            )


_SIZES = {
    "world-size": "world_size",
    "local-rank": "local_rank",
    "nproc": "nproc",
    "nproc-per-node": "nproc",
    "ngpus-per-node": "nproc",
    "num-machines": "nnodes",
    "machine-rank": "node-rank",
}
_OF_NODES = ("nnodes", "node-rank", "master-addr", "master-port")
_VARIABLES = {"world_size": "WORLD_SIZE", "nproc": "LOCAL_WORLD_SIZE", "local_rank": "LOCAL_RANK"}


def _size_of(option: DeclaredOption) -> str:
    """Return which number of the launch an option says, its size or a place in it; empty for none."""
    spelled = {flag.lstrip("-").replace("_", "-") for flag in option.flags}
    name = next((_SIZES.get(flag, flag) for flag in spelled if flag in (*_SIZES, *_OF_NODES)), "")
    of_nodes = name == "world_size" and _OF_NODES_HELP.search(option.help)  # of a script for one process per node
    of_data = spelled == {"nproc"} and not _OF_RANKS.search(option.help)
    return name if option.takes_value and not of_nodes and not of_data else ""


def script_never_initialises(script: ScriptReport, launch: Launch) -> Findings:
    """The script sets up no process group and uses no framework that would.

    Each rank would train a separate model on all of the data: N times the work for nothing. The check stays silent if
    part of the source cannot be read. Remedy: `torch.distributed.init_process_group()` and DistributedDataParallel, or
    one process.
    """
    if launch.topology.world_size == 1 or not script.complete or script.syntax_error is not None:
        return
    if launch.target is not None and launcher_of_target(launch.target) is not None:
        return  # which is an error, and a launcher's own source says nothing of the script that it would start
    if dict(script.doubts).get("world_size") != NO_GROUP or script.spawns is not None:
        return
    yield warning(
        "script-never-initialises",
        f"{script.path} sets up no process group and imports no framework that does",
        why=f"each of the {launch.topology.world_size} ranks would train a model of its own on all of the data",
        fix="call `torch.distributed.init_process_group()` and wrap the model in DistributedDataParallel, or run one "
        "process: `ddplaunch run 1 -- …`",
        where=script.path,
    )


def distributed_switch_off(script: ScriptReport, launch: Launch) -> Findings:
    """An option of the script keeps it from setting up a process group.

    Some scripts only call `init_process_group` if a switch such as `--distributed` was passed, or if an option has
    another value than its default. Without it each rank trains a model of its own on all of the data. Remedy: pass it
    after `--`.
    """
    world = launch.topology.world_size
    if script.switched_off is None or world == 1:
        return
    args = launch.target.args if launch.target else ()
    passed = {flag for option in script.options if given(args, option, script.options) for flag in option.flags}
    switches = [flag for flag in script.switches if flag not in passed]
    named = listed([f"`{flag}`" for flag in switches or script.switches], last=" or ")
    fix = f"pass {named} after `--` as the script wants it for several processes"
    if not switches:
        fix = f"leave {named} out, or give it another value"
    # One literal value would be that of all ranks.
    local_rank_flag = next((flag for flag in switches if flag in _LOCAL_RANK_FLAGS), "")
    if local_rank_flag and launch.target is not None and launch.target.kind == "script":
        fix = f"let a shell pass each rank its own: {_shell_passes(script.path, local_rank_flag, launch.target)}"
    yield warning(
        "distributed-switch-off",
        f"{script.switched_off} sets up the process group, but not with these values of "
        + listed([f"`{flag}`" for flag in script.switches]),
        why=f"each of the {world} ranks would train a model of its own on all of the data",
        fix=fix,
        where=str(script.switched_off),
    )


def option_given_twice(script: ScriptReport, launch: Launch) -> Findings:
    """One of the script's numbers is passed twice with different values.

    argparse and similar parsers silently take the last one. The check only looks at options that stand for a number of
    the plan: others may collect values on purpose. Remedy: keep one.
    """
    for option in script.options:
        if option.meaning is None or launch.target is None:
            continue
        values = given(launch.target.args, option, script.options)
        if not all(is_same_value(values[0], value) for value in values):
            yield error(
                "option-given-twice",
                f"`{option.flags[0]}` is given {len(values)} times, with {' and '.join(dict.fromkeys(values))}",
                why=f"the script silently takes the last one, {values[-1]}",
                fix=f"keep one of them after `--`: `{option.flags[0]} {shlex.quote(values[-1])}`",
                where=str(option.at),
            )


_LARGE_FACTOR = 8.0  # one server of eight GPUs is the smallest configuration in Goyal et al. 2017


def dataset_smaller_than_batch(launch: Launch) -> Findings:
    """The dataset is smaller than one effective batch.

    With `drop_last=True` an epoch then has no step at all, and the training ends without having trained; without it the
    sampler repeats samples to fill up the ranks. Remedy: a smaller batch, less accumulation or fewer processes.
    """
    numbers = launch.numbers
    if numbers.dataset_size is None or numbers.global_batch_size is None:
        return
    samples, batch = numbers.dataset_size.value, numbers.global_batch_size.value
    if samples >= batch:
        return
    world = launch.topology.world_size
    fits = samples // world
    if not _reaches(launch, "batch_size"):
        fix = f"a batch of at most {fits} per process, in the script itself" if fits else f"at most {samples} processes"
    elif fits:
        accum = " --accum 1" if numbers.accum is not None and _reaches(launch, "accum") else ""
        fix = f"`--batch-size {fits}{accum}` makes one step of {fits * world} samples on {world} ranks"
    else:
        fix = f"run at most {samples} processes with `--batch-size 1`"
    yield warning(
        "dataset-smaller-than-batch",
        f"the dataset has {samples} samples, one effective batch {batch}",
        why="with `drop_last=True` an epoch has no step; otherwise samples are repeated to fill up the ranks",
        fix=fix,
        where=str(numbers.dataset_size.source),
    )


def _reaches(launch: Launch, number: str) -> bool:
    """Return whether a flag for the number changes what the script trains with; in a plan without script it may."""
    return launch.target is None or number in launch.receives


def lr_factor_large(launch: Launch) -> Findings:
    """The learning rate is scaled linearly by 8 or more, without a warmup.

    Goyal et al. 2017 (arXiv:1706.02677) showed linear scaling for SGD with a gradual warmup over five epochs; without
    it the first steps diverge or end in a worse minimum. Remedy: `--base-warmup`, a cap with `--lr-max-factor`, or
    `--lr-scaling sqrt`, the usual rule for Adam-like optimizers.
    """
    numbers = launch.numbers
    if numbers.lr_factor is None or numbers.lr_factor.value < _LARGE_FACTOR:
        return
    if numbers.base_warmup is not None or numbers.warmup_steps is not None:
        return
    if numbers.lr_scaling is None or numbers.lr_scaling.value != "linear":
        return
    if numbers.lr is None:
        return
    factor = numbers.lr_factor.value
    warmup = "name the warmup steps of the base run with `--base-warmup`, " if _reaches(launch, "warmup_steps") else ""
    yield warning(
        "lr-factor-large",
        f"the learning rate is {factor:g} times the base one, {numbers.lr.value:g}, with no warmup",
        why="linear scaling was shown for SGD with a warmup over the first epochs (Goyal et al. 2017); without one "
        "the first steps may diverge",
        fix=f"{warmup}cap the factor with `--lr-max-factor 4`, or pass `--lr-scaling sqrt` for Adam-like optimizers",
        where=str(numbers.lr_factor.source),
    )


_NUMBER = {
    "batch_size": "the batch size {}",
    "accum": "the accumulation of {}",
    "lr": "the learning rate {}",
    "warmup_steps": "the warmup of {} steps",
}


def number_not_received(launch: Launch, script: ScriptReport) -> Findings:
    """The script will not see a number that was given.

    Numbers reach a script through a placeholder in its arguments, an option that it declares, or the environment
    (`DDPLAUNCH_BATCH_SIZE`, `ddplaunch.current()`). Without any of these it trains with its own numbers, whatever the
    plan shows. Remedy: a placeholder such as `{batch_size}` in an argument, an option in the script, or
    `ddplaunch.current()`.
    """
    groups: dict[str, list[Missing]] = {}
    for missing in launch.not_received.values():
        groups.setdefault(missing.reason.rpartition(", and ")[2], []).append(missing)
    for reason, group in groups.items():
        numbers = [_NUMBER[each.number].format(each.value) for each in group]
        reasons = dict.fromkeys(each.reason.rpartition(", and ")[0] for each in group)
        why = ", and ".join(filter(None, (", ".join(filter(None, reasons)), reason)))
        if len(group) > 1:
            why = why.replace(" for it", " for them")
        yield warning(
            "number-not-received",
            f"{script.path} will not see {listed(numbers, len(numbers), last=' and ')}",
            why=why,
            fix=in_one([each.fix for each in group]),
        )


_NUMBERS = (dataset_smaller_than_batch, lr_factor_large, number_not_received)
CHECKS = checks_in(globals(), "script", numbers=_NUMBERS)
