"""Checks of the training script's source against the launch, and of the numbers that the launch gives it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import PurePath

from ddplaunch.checks.check import Check, declare
from ddplaunch.launch.launch import Launch, Target
from ddplaunch.script.declared import given
from ddplaunch.script.report import ScriptReport
from ddplaunch.values.finding import Finding, error, warning

_LAUNCHERS = ("torchrun", "torchx", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun", "srun", "ddplaunch")
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner",
    "ddplaunch",
)
_LOCAL_RANK_FLAGS = ("--local-rank", "--local_rank")


def script_syntax_error(script: ScriptReport) -> Iterator[Finding]:
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


def script_spawns_processes(script: ScriptReport, launch: Launch) -> Iterator[Finding]:
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
    yield (warning if aware else error)(
        "script-spawns-processes",
        f"{script.path} starts its own processes, and {processes} copies of it would run",
        why=f"if each copy starts one process per rank, up to {processes} x {processes} processes share the same GPUs "
        "and port",
        fix=f"run it without a launcher, `python {shlex.quote(script.path)}`; or replace the spawn by a call of its "
        'function with `int(os.environ["LOCAL_RANK"])`',
        where=str(script.spawns),
    )


def script_demands_local_rank(script: ScriptReport, launch: Launch) -> Iterator[Finding]:
    """The script requires --local-rank, which torchrun does not pass.

    torch.distributed.launch appended it to the arguments; torchrun sets LOCAL_RANK in the environment of each rank and
    passes the same arguments to all, so every rank ends with a usage error. Remedy: read LOCAL_RANK in the script, or
    put a shell in between that passes the option.
    https://docs.pytorch.org/docs/stable/elastic/run.html#transitioning-from-torch-distributed-launch-to-torchrun
    """
    if script.demands_local_rank is None:
        return
    spellings = [flag for option in script.options for flag in option.flags if flag in _LOCAL_RANK_FLAGS]
    flag = spellings[0] if spellings else _LOCAL_RANK_FLAGS[0]
    target = launch.target
    arguments = shlex.join(["python", script.path, *(target.args if target else ())])
    command = shlex.quote(f'exec {arguments} {flag} "$LOCAL_RANK"')
    yield error(
        "script-demands-local-rank",
        f"{script.path} requires `{flag}`, which torchrun does not pass",
        why="torchrun sets LOCAL_RANK in the environment instead, and argparse ends the script with a usage error",
        fix=f'declare it with `default=int(os.environ.get("LOCAL_RANK", 0))` and without `required=True`; or let a '
        f"shell pass it: `-- sh -c {command}`",
        where=str(script.demands_local_rank),
    )


def script_never_initialises(script: ScriptReport, launch: Launch) -> Iterator[Finding]:
    """The script sets up no process group and uses no framework that would.

    Each rank would train a separate model on all of the data: N times the work for nothing. The check stays silent if
    part of the source cannot be read. Remedy: `torch.distributed.init_process_group()` and DistributedDataParallel, or
    one process.
    """
    if launch.topology.world_size == 1 or not script.complete or script.syntax_error is not None:
        return
    if script.framework is not None or script.initialises is not None or script.spawns is not None:
        return
    yield warning(
        "script-never-initialises",
        f"{script.path} sets up no process group and imports no framework that does",
        why=f"each of the {launch.topology.world_size} ranks would train a model of its own on all of the data",
        fix="call `torch.distributed.init_process_group()` and wrap the model in DistributedDataParallel, or run one "
        "process: `ddplaunch run 1 -- …`",
        where=script.path,
    )


def option_given_twice(script: ScriptReport, launch: Launch) -> Iterator[Finding]:
    """One of the script's numbers is passed twice with different values.

    argparse and similar parsers silently take the last one. The check only looks at options that stand for a number of
    the plan: others may collect values on purpose. Remedy: keep one.
    """
    for option in script.options:
        if option.meaning is None or not option.takes_value or launch.target is None:
            continue
        values = given(launch.target.args, option, script.options)
        if len({_number(value) for value in values}) > 1:
            yield error(
                "option-given-twice",
                f"`{option.flags[0]}` is given {len(values)} times, with {' and '.join(dict.fromkeys(values))}",
                why=f"the script silently takes the last one, {values[-1]}",
                fix=f"keep one of them behind `--`: `{option.flags[0]} {shlex.quote(values[-1])}`",
                where=str(option.at),
            )


def _number(value: str) -> float | str:
    """Return ``value`` for comparison: 0.001 and 1e-3 are equal."""
    try:
        return float(value)
    except ValueError:
        return value


def script_is_launcher(launch: Launch) -> Iterator[Finding]:
    """The program for the ranks is itself a launcher.

    Each rank would start a launcher, and each launcher all ranks again: N x N processes, or ranks that wait for each
    other at the same port. Remedy: put the training script behind `--`.
    """
    if launch.target is None or (found := _launcher(launch.target)) is None:
        return
    name, rest = found
    script = next((position for position, item in enumerate(rest) if item.endswith(".py")), None)
    behind = shlex.join(rest[script:]) if script is not None else "train.py"
    yield error(
        "script-is-launcher",
        f"every rank would run `{name}`, which is a launcher",
        why="each rank would start all ranks again",
        fix=f"put the training script behind `--`: `ddplaunch run {launch.topology.nproc_per_node.value} -- {behind}`",
        where="--",
    )


def _launcher(target: Target) -> tuple[str, tuple[str, ...]] | None:
    """Return the launcher's name and arguments, also behind ``python -m``; None if the target is no launcher."""
    name = PurePath(target.name).name
    if target.kind == "module":
        return (target.name, target.args) if target.name in _LAUNCHER_MODULES else None
    if name in _LAUNCHERS:
        return name, target.args
    if name.startswith("python") and target.args[:1] == ("-m",) and target.args[1:2]:
        return (target.args[1], target.args[2:]) if target.args[1] in _LAUNCHER_MODULES else None
    return None


_LARGE_FACTOR = 8.0  # one server of eight GPUs is the smallest configuration in Goyal et al. 2017


def dataset_smaller_than_batch(launch: Launch) -> Iterator[Finding]:
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
    yield warning(
        "dataset-smaller-than-batch",
        f"the dataset has {samples} samples, one effective batch {batch}",
        why="with `drop_last=True` an epoch has no step; otherwise samples are repeated to fill up the ranks",
        fix=f"`--batch-size {fits} --accum 1` makes one step of {fits * world} samples on {world} ranks"
        if fits
        else f"run at most {samples} processes with `--batch-size 1`",
        where=str(numbers.dataset_size.source),
    )


def lr_factor_large(launch: Launch) -> Iterator[Finding]:
    """The learning rate is scaled linearly by 8 or more, without a warmup.

    Goyal et al. 2017 (arXiv:1706.02677) showed linear scaling for SGD with a gradual warmup over five epochs; without
    it the first steps diverge or end in a worse minimum. Remedy: `--base-warmup`, a cap with `--lr-max-factor`, or
    `--lr-scaling sqrt`, the usual rule for Adam-like optimizers.
    """
    numbers = launch.numbers
    if numbers.lr_factor is None or numbers.lr_factor.value < _LARGE_FACTOR or numbers.base_warmup is not None:
        return
    if numbers.lr is None or numbers.lr_scaling is None or numbers.lr_scaling.value != "linear":
        return
    factor = numbers.lr_factor.value
    yield warning(
        "lr-factor-large",
        f"the learning rate is {factor:g} times the base one, {numbers.lr.value:g}, with no warmup",
        why="linear scaling was shown for SGD with a warmup over the first epochs (Goyal et al. 2017); without one "
        "the first steps may diverge",
        fix="name the warmup steps of the base run with `--base-warmup`, cap the factor with `--lr-max-factor 4`, or "
        "pass `--lr-scaling sqrt` for Adam-like optimizers",
        where=str(numbers.lr_factor.source),
    )


# The options that give each number of the plan, in the order in which the numbers are reported.
_GIVEN_BY = {
    "batch_size": ("batch_size", "global_batch_size"),
    "accum": ("accum",),
    "lr": ("lr", "base_lr"),
    "warmup_steps": ("base_warmup",),
}
_INSTEAD = {"batch_size": "global_batch_size"}  # a script that takes the global batch divides it by the ranks
_COMPUTED = {"batch_size": "batch size {}", "lr": "learning rate {}", "warmup_steps": "warmup of {} steps"}


def number_not_received(launch: Launch, script: ScriptReport) -> Iterator[Finding]:
    """The script will not see a number that was given.

    Numbers reach a script through a placeholder in its arguments, an option that it declares, or the environment
    (`DDPLAUNCH_BATCH_SIZE`, `ddplaunch.current()`). Without any of these it trains with its own numbers, whatever the
    plan shows. The check stays silent if part of the source cannot be read. Remedy: a placeholder such as
    `{batch_size}` in an argument, an option in the script, or `ddplaunch.current()`.
    """
    if not script.complete or script.syntax_error is not None or _reads_plan(script):
        return
    received = {item.number for item in launch.passed} | {option.meaning for option in script.options}
    for number, options in _GIVEN_BY.items():
        option = next((name for name in options if getattr(launch.options, name) is not None), None)
        if option is None or number in received or _INSTEAD.get(number) in received:
            continue
        resolved, given_as = getattr(launch.numbers, number), getattr(launch.options, option)
        if resolved is None or (number == "accum" and resolved.value == 1):
            continue
        flag = f"`--{option.replace('_', '-')} {given_as.value}`"
        unseen = flag if option == number else f"the {_COMPUTED[number].format(resolved.value)} from {flag}"
        yield warning(
            "number-not-received",
            f"{script.path} will not see {unseen}: it has no such option",
            why=f"its arguments hold no `{{{number}}}` and it reads no `DDPLAUNCH_*` either, so it trains with "
            "a number of its own",
            fix=f"pass it in an argument, as in `--{number.replace('_', '-')} {{{number}}}` behind `--`, or read "
            f"`ddplaunch.current().{number}` in the script",
            where=str(given_as.source),
        )


def _reads_plan(script: ScriptReport) -> bool:
    return any(name.startswith("DDPLAUNCH_") for name in script.reads_env) or any(
        item.package == "ddplaunch" for item in script.imports
    )


CHECKS: tuple[Check, ...] = (
    declare("script", script_syntax_error),
    declare("script", script_is_launcher),
    declare("script", script_spawns_processes),
    declare("script", script_demands_local_rank),
    declare("script", script_never_initialises),
    declare("script", option_given_twice),
    declare("numbers", dataset_smaller_than_batch),
    declare("numbers", lr_factor_large),
    declare("numbers", number_not_received),
)
