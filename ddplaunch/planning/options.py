"""Everything a user can say about a launch: one typed field per flag, with its help and its reader.

The command line, profiles, ``submit`` and the launch on other hosts take their flags from the fields of ``Options``: a
new flag is one new field. Flags and profile are merged as they were typed (``Said``); ``parse_options`` reads the
result once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, Literal, TypeAlias

from ddplaunch.planning.flag import (
    DeviceWord,
    Flag,
    Kind,
    NodeRange,
    NprocWord,
    Processes,
    Ranks,
    Reader,
    host_and_port,
    of_the_script,
    read_assignment,
    read_count,
    read_device,
    read_limit,
    read_lr_scaling,
    read_memory,
    read_modules,
    read_name,
    read_nccl_level,
    read_nodes,
    read_nproc,
    read_on_hang,
    read_placement,
    read_ranks,
    read_run_id,
    read_size,
    read_start,
)
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved

#: The typed values by name of the flag: a ``Resolved``, or a tuple of them for a flag that may be repeated.
Said: TypeAlias = Mapping[str, Any]

#: The groups of `--help`; `--help GROUP` takes the first word of a group in lower case.
SIZE, NUMBERS, NETWORK = "Size and devices", "Numbers", "Network"
ENVIRONMENT, CHECKING, SHOWING = "Environment and torchrun", "Checks, data and records", "Console and capture"


def _flag(panel: str, text: str, metavar: str = "", read: Reader | None = None, example: str = "", **more: Any) -> Any:
    """Return a field for a flag. ``more`` may hold the flag's ``kind`` ("text" by default), ``name`` and ``offers``.

    ``name`` is needed only where the flag's name is not the field's.
    """
    kind: Kind = more.pop("kind", "text")
    flag = Flag(more.pop("name", ""), kind, panel, text, metavar, example=example, read=read, **more)
    return field(default=() if kind == "many" else None, metadata={"flag": flag})


def _integer(panel: str, text: str, read: Reader | None = None, example: str = "", metavar: str = "N") -> Any:
    return _flag(panel, text, metavar, read, example, kind="integer")


def _number(panel: str, text: str, example: str = "") -> Any:
    return _flag(panel, text, "X", None, example, kind="number")


def _switch(panel: str, text: str, kind: Kind = "pair") -> Any:
    return _flag(panel, text, kind=kind)


def _many(panel: str, text: str, metavar: str, read: Reader | None = None, example: str = "", **more: Any) -> Any:
    return _flag(panel, text, metavar, read, example, kind="many", **more)


def _duration(panel: str, name: str, text: str) -> Any:
    return _flag(panel, text, "TIME", read_limit, "10m", name=name)


@dataclass(frozen=True)
class Options:
    """The options of a launch, each value with its source; None means "not said". The order is that of ``--help``.

    ``NxM`` sets ``nnodes`` to N and ``nproc`` to M.
    """

    nproc: Resolved[Processes] | None = _flag(
        "",
        "Processes per node: 4, auto (every visible GPU), or NxM (N nodes of M).",
        "NPROC",
        read_nproc,
        kind="argument",
        offers=("auto", "1", "2", "4", "8"),
    )
    gpus: Resolved[str] | None = _flag(
        SIZE, "0,1,3 (as nvidia-smi counts), UUIDs, or free:4 to reserve 4 idle ones.", "LIST"
    )
    device: Resolved[DeviceWord] | None = _flag(SIZE, "auto, cuda or cpu.", "KIND", read_device)
    nnodes: Resolved[NodeRange] | None = _flag(SIZE, "Nodes, or MIN:MAX.", "N", read_nodes)
    placement: Resolved[Literal["auto", "none", "node", "cores"]] | None = _flag(
        SIZE,
        "CPU pinning: node (of the GPU), cores (own ones), none or auto [auto: node].",
        "HOW",
        read_placement,
    )
    memory_bytes: Resolved[int] | None = _flag(
        SIZE,
        "Memory limit per CPU rank, e.g. 4GiB.",
        "SIZE",
        read_memory,
        "4GiB",
        name="memory",
    )
    batch_size: Resolved[int] | None = _integer(NUMBERS, "Samples per process and forward pass.")
    accum: Resolved[int] | None = _integer(
        NUMBERS, "Gradient accumulation: forward passes per optimizer step.", example="4"
    )
    global_batch_size: Resolved[int] | None = _integer(
        NUMBERS, "Samples per optimizer step over all processes.", example="64"
    )
    base_lr: Resolved[float] | None = _number(NUMBERS, "Learning rate to scale from.", "1e-4")
    base_batch_size: Resolved[int] | None = _integer(
        NUMBERS, "Effective batch size at which --base-lr was tuned [that of one process]."
    )
    lr: Resolved[float] | None = _number(NUMBERS, "Final learning rate, never scaled.", "1e-4")
    lr_scaling: Resolved[str] | None = _flag(NUMBERS, "linear, sqrt or none [linear].", "RULE", read_lr_scaling)
    lr_max_factor: Resolved[float] | None = _number(NUMBERS, "Largest factor that scaling may apply.", "4")
    base_warmup: Resolved[int] | None = _integer(NUMBERS, "Warmup steps, scaled like --base-lr.", example="500")
    warmup: Resolved[int] | None = _integer(NUMBERS, "Final warmup steps, never scaled.", example="500")
    dataset_size: Resolved[int] | None = _integer(
        NUMBERS, "Samples in the training set: gives steps per epoch.", example="50000"
    )
    forward: Resolved[bool] | None = _switch(NUMBERS, "Pass the numbers to the script's own options [yes].")
    batch_option: Resolved[str] | None = _flag(
        NUMBERS,
        "The script's option for the batch, and whose: batch-size:total (rank, node, total, step); or none.",
        "NAME",
        of_the_script("rank", "node", "total", "step"),
        "batch-size:total",
    )
    accum_option: Resolved[str] | None = _flag(
        NUMBERS, "The script's option for the accumulation, or none.", "NAME", of_the_script(), "grad-accum"
    )
    lr_option: Resolved[str] | None = _flag(
        NUMBERS,
        "The script's option for the learning rate: lr:final, or lr:base if the script scales it; or none.",
        "NAME",
        of_the_script("final", "base"),
        "lr:final",
    )
    warmup_option: Resolved[str] | None = _flag(
        NUMBERS,
        "The script's option for the warmup in steps, or none.",
        "NAME",
        of_the_script("steps"),
        "warmup-steps",
    )
    data: tuple[Resolved[str], ...] = _many(
        CHECKING, "A file or directory that must be readable (repeatable).", "PATH", read_name, "/data/train"
    )
    output: tuple[Resolved[str], ...] = _many(
        CHECKING, "A file or directory that must be writable (repeatable).", "PATH", read_name, "out"
    )
    node_rank: Resolved[int] | None = _integer(NETWORK, "This node's rank, from 0.", read_count, "0", "K")
    master_addr: Resolved[str] | None = _flag(
        NETWORK, "Address of the node with rank 0.", "ADDR", read_name, "10.0.0.5"
    )
    master_port: Resolved[int] | None = _integer(
        NETWORK, "Port of the rendezvous [a free one on one node].", None, "29500", "PORT"
    )
    socket_ifname: Resolved[str] | None = _flag(
        NETWORK, "Network interface for NCCL and gloo.", "NAME", read_name, "eth0"
    )
    nccl_debug: Resolved[str] | None = _flag(
        NETWORK, "NCCL_DEBUG: WARN, INFO, TRACE [WARN].", "LEVEL", read_nccl_level, "INFO"
    )
    env: tuple[Resolved[tuple[str, str]], ...] = _many(
        ENVIRONMENT, "Set a variable for the ranks (repeatable).", "K=V", read_assignment
    )
    max_restarts: Resolved[int] | None = _integer(
        ENVIRONMENT, "Restarts of the ranks after a failure [0].", read_count, "3"
    )
    restart_always: Resolved[bool] | None = _switch(
        ENVIRONMENT, "Restart as torchrun does, also after what would fail alike, such as a missing module.", "switch"
    )
    grace_s: Resolved[float] | None = _flag(
        ENVIRONMENT,
        "Time that ranks get to save when they are told to end [30s].",
        "TIME",
        example="60",
        kind="duration",
        name="grace",
    )
    timeout_s: Resolved[float] | None = _duration(
        ENVIRONMENT, "timeout", "End the run after this time: 90s, 10m, 2h; exit status 124."
    )
    start: Resolved[Literal["auto", "cold", "warm"]] | None = _flag(
        ENVIRONMENT,
        "cold, warm (fork the ranks from a process that has torch) or auto: warm with a CPU build of torch [auto].",
        "HOW",
        read_start,
    )
    preload: Resolved[tuple[str, ...]] | None = _flag(
        ENVIRONMENT,
        "With --start warm: modules to import before the ranks fork.",
        "NAMES",
        read_modules,
        "torchvision,transformers",
    )
    torchrun_arg: tuple[Resolved[str], ...] = _many(
        ENVIRONMENT, "Any other option of the installed torchrun.", "ARG", read_name, "--monitor-interval=1"
    )
    ignore: tuple[Resolved[str], ...] = _many(CHECKING, "Skip this check (repeatable).", "CODE", offers="checks")
    checks: Resolved[bool] | None = _switch(CHECKING, "Check before launching [yes].")
    run_id: Resolved[str] | None = _flag(CHECKING, "Name of the run [time and a random part].", "ID", read_run_id)
    run_dir: Resolved[str] | None = _flag(CHECKING, "Where records go [.ddplaunch].", "DIR", read_name, "runs")
    show: Resolved[Ranks] | None = _flag(
        SHOWING, "Ranks whose output is shown: 0, 0,3 or all [0].", "RANKS", read_ranks, "0,3", offers=("0", "all")
    )
    verbose: Resolved[bool] | None = _switch(
        SHOWING, "Show torchrun's own messages too; in doctor, why checks were skipped.", "switch"
    )
    quiet: Resolved[bool] | None = _switch(SHOWING, "Say only what is wrong.")
    capture: Resolved[bool] | None = _switch(SHOWING, "Record every rank's output, and explain a failure [yes].")
    log_max_bytes: Resolved[int] | None = _flag(
        SHOWING,
        "Log size limit per rank (512M, 4G, none); the middle is dropped [4G].",
        "SIZE",
        read_size,
        "4G",
        name="log_max_size",
    )
    hang_timeout_s: Resolved[float] | None = _duration(
        SHOWING,
        "hang_timeout",
        "If no rank moves for this long, name the one that the others wait for: 10m.",
    )
    on_hang: Resolved[Literal["report", "stop"]] | None = _flag(
        SHOWING, "report, or stop: end the run, exit status 124 [report].", "WHAT", read_on_hang
    )
    stacks: Resolved[bool] | None = _switch(
        SHOWING, "Let ranks show where they are, for `ddplaunch stacks` and after a time-out [yes]."
    )
    observe: Resolved[bool] | None = _switch(
        SHOWING, "Compare the first optimizer steps with the plan, from inside the ranks [yes]."
    )
    prove: Resolved[bool] | None = _switch(
        SHOWING, "Measure in the first three steps if gradients are the mean over ranks (one node).", "switch"
    )
    debug: Resolved[int] | None = _integer(SHOWING, "The rank that waits for a debugger: debugpy, port 5678.")
    phases: Resolved[bool] | None = _switch(
        SHOWING, "Measure where each step's time goes, live in `top`; name a late rank or host.", "switch"
    )


def flags_of_options() -> dict[str, Flag]:
    """Return every flag by the name of its field, in the order of ``--help``."""
    flags: dict[str, Flag] = {field.name: field.metadata["flag"] for field in fields(Options) if field.metadata}
    return {name: flag._replace(name=flag.name or name) for name, flag in flags.items()}


def parse_options(said: Said) -> Options:
    """Return the options for the merged flags and profile. Raises UsageError for the first impossible value."""
    values: dict[str, Any] = {}
    for name, flag in flags_of_options().items():
        item = said.get(flag.name)
        if item is not None:
            values[name] = tuple(map(flag.parsed, item)) if flag.kind == "many" else flag.parsed(item)
    if "master_addr" in values:
        values = host_and_port(values.pop("master_addr")) | values
    _separate_nodes(values, said)
    if "on_hang" in said and "hang_timeout" not in said:
        raise usage(
            "`--on-hang` without `--hang-timeout`",
            why="it says what happens when no rank moves, and that is not watched",
            fix=f"`--hang-timeout 10m --on-hang {said['on_hang'].value}`",
            where=str(said["on_hang"].source),
        )
    return Options(**values)


def _separate_nodes(values: dict[str, Any], said: Said) -> None:
    """Move the nodes of ``NxM`` into ``nnodes``. Raises UsageError if ``--nnodes`` says another number."""
    nproc: Resolved[NprocWord] | None = values.get("nproc")
    if nproc is None:
        return
    nodes, processes = nproc.value
    values["nproc"] = Resolved(processes, nproc.source)
    if nodes is None:
        return
    nnodes: Resolved[NodeRange] = values.setdefault("nnodes", Resolved(NodeRange(nodes, nodes), nproc.source))
    if nnodes.value.most != nodes:
        raise usage(
            f"`{said['nproc'].value}` says {nodes} nodes, `--nnodes` says {nnodes.value.most}",
            why="both set the number of nodes",
            fix=f"`ddplaunch run {nodes}x{processes} …` without `--nnodes`",
        )
