"""Everything a user can say about a launch: one typed field per flag, with its help and its reader.

The command line, profiles, ``submit`` and the launch on other hosts take their flags from the fields of ``Options``: a
new flag is one new field. Flags and profile are merged as they were typed (``Said``); ``parse_options`` reads the
result once.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, Literal, TypeAlias

from ddplaunch.launch.flag import (
    Flag,
    Kind,
    NodeRange,
    NprocWord,
    Processes,
    Ranks,
    Reader,
    read_address,
    read_assignment,
    read_count,
    read_device,
    read_duration,
    read_limit,
    read_modules,
    read_name,
    read_nccl_level,
    read_nodes,
    read_nproc,
    read_on_hang,
    read_ranks,
    read_start,
)
from ddplaunch.scaling.numbers import LrScaling
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source

#: What was typed, by name of the flag: a ``Resolved``, or a tuple of them for a flag that may be repeated.
Said: TypeAlias = Mapping[str, Any]

SIZE, NUMBERS, INPUTS = "Size and devices", "Numbers", "Inputs"
NETWORK, ENVIRONMENT, CHECKING = "Network", "Environment and torchrun", "Checking and records"
SHOWING = "Console and capture"


def _flag(panel: str, text: str, metavar: str = "", read: Reader | None = None, example: str = "", **more: Any) -> Any:
    """Return a field for a flag. ``kind`` is "text" unless given; ``name`` is the flag's where the field's differs."""
    kind: Kind = more.pop("kind", "text")
    flag = Flag(more.pop("name", ""), kind, panel, text, metavar, example=example, read=read)
    return field(default=() if kind == "many" else None, metadata={"flag": flag})


def _integer(panel: str, text: str, read: Reader | None = None, example: str = "", metavar: str = "N") -> Any:
    return _flag(panel, text, metavar, read, example, kind="integer")


def _number(panel: str, text: str, example: str = "") -> Any:
    return _flag(panel, text, "X", None, example, kind="number")


def _switch(panel: str, text: str, kind: Kind = "pair") -> Any:
    return _flag(panel, text, kind=kind)


def _many(panel: str, text: str, metavar: str, read: Reader | None = None, example: str = "") -> Any:
    return _flag(panel, text, metavar, read, example, kind="many")


def _duration(panel: str, name: str, text: str, read: Reader = read_duration, example: str = "") -> Any:
    return _flag(panel, text, "TIME", read, example, name=name)


@dataclass(frozen=True)
class Options:
    """What was said about a launch, each value with its source; None is "not said". The order is that of ``--help``.

    ``nnodes`` is also what ``NxM`` says; ``nproc`` is M then.
    """

    nproc: Resolved[Processes] | None = _flag(
        "",
        "Processes per node: 4, auto (every visible GPU), or NxM (N nodes of M).",
        "NPROC",
        read_nproc,
        kind="argument",
    )
    gpus: Resolved[str] | None = _flag(
        SIZE, "0,1,3 (as nvidia-smi counts), UUIDs, or free:4 to reserve 4 idle ones.", "LIST"
    )
    device: Resolved[str] | None = _flag(SIZE, "auto, cuda or cpu.", "KIND", read_device)
    nnodes: Resolved[NodeRange] | None = _flag(SIZE, "Nodes, or MIN:MAX.", "N", read_nodes)
    batch_size: Resolved[int] | None = _integer(NUMBERS, "Samples per process and forward pass.")
    accum: Resolved[int] | None = _integer(
        NUMBERS, "Gradient accumulation: forward passes per optimizer step.", example="4"
    )
    global_batch_size: Resolved[int] | None = _integer(
        NUMBERS, "Samples per optimizer step over all processes.", example="64"
    )
    base_lr: Resolved[float] | None = _number(NUMBERS, "Learning rate to scale from.")
    base_batch_size: Resolved[int] | None = _integer(
        NUMBERS, "Effective batch size at which --base-lr was tuned [that of one process]."
    )
    lr: Resolved[float] | None = _number(NUMBERS, "Final learning rate, never scaled.")
    lr_scaling: Resolved[LrScaling] | None = _flag(NUMBERS, "linear, sqrt or none [linear].", "RULE")
    lr_max_factor: Resolved[float] | None = _number(NUMBERS, "Largest factor that scaling may apply.", "4")
    base_warmup: Resolved[int] | None = _integer(NUMBERS, "Warmup steps, scaled like --base-lr.", example="500")
    dataset_size: Resolved[int] | None = _integer(
        NUMBERS, "Samples in the training set: gives steps per epoch.", example="50000"
    )
    forward: Resolved[bool] | None = _switch(NUMBERS, "Fill in the options that the script declares [yes].")
    data: tuple[Resolved[str], ...] = _many(
        INPUTS, "A file or directory that must be readable (repeatable).", "PATH", read_name, "/data/train"
    )
    output: tuple[Resolved[str], ...] = _many(
        INPUTS, "A file or directory that must be writable (repeatable).", "PATH", read_name, "out"
    )
    workers: Resolved[int] | None = _integer(INPUTS, "DataLoader workers per process, for the checks.", read_count, "4")
    node_rank: Resolved[int] | None = _integer(NETWORK, "This node's rank, from 0.", read_count, "0", "K")
    master_addr: Resolved[str] | None = _flag(
        NETWORK, "Address of the node with rank 0.", "ADDR", read_address, "10.0.0.5"
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
    nccl_ib: Resolved[bool] | None = _switch(NETWORK, "Use InfiniBand or not [if a port is up].")
    env: tuple[Resolved[tuple[str, str]], ...] = _many(
        ENVIRONMENT, "Set a variable for the ranks (repeatable).", "K=V", read_assignment
    )
    env_file: tuple[Resolved[str], ...] = _many(
        ENVIRONMENT, "Set the variables of a file of K=V lines.", "FILE", read_name, "train.env"
    )
    max_restarts: Resolved[int] | None = _integer(
        ENVIRONMENT, "Restarts of the ranks after a failure [0].", read_count, "3"
    )
    relaunch: Resolved[int] | None = _integer(
        ENVIRONMENT, "Start a failed run again if it made progress, up to N times [0].", read_count, "3"
    )
    relaunch_after_s: Resolved[float] | None = _duration(
        ENVIRONMENT,
        "relaunch_after",
        "Relaunch only if the run lasted this long, or --output has a newer checkpoint [60].",
    )
    relaunch_wait_s: Resolved[float] | None = _duration(
        ENVIRONMENT, "relaunch_wait", "Pause before the first relaunch; doubles each time [10]."
    )
    grace_s: Resolved[float] | None = _flag(
        ENVIRONMENT,
        "Seconds that ranks get to save when they are told to end [30].",
        "SECONDS",
        read_count,
        "60",
        kind="number",
        name="grace",
    )
    timeout_s: Resolved[float] | None = _duration(
        ENVIRONMENT, "timeout", "End the run after this time: 90s, 10m, 2h; exit status 124.", read_limit, "10m"
    )
    start: Resolved[Literal["cold", "warm"]] | None = _flag(
        ENVIRONMENT,
        "cold, warm (fork the ranks from a process that has torch) or auto [auto: cold].",
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
    ignore: tuple[Resolved[str], ...] = _many(CHECKING, "Skip this check (repeatable).", "CODE")
    checks: Resolved[bool] | None = _switch(CHECKING, "Check before launching [yes].")
    run_id: Resolved[str] | None = _flag(CHECKING, "Name of the run [time and a random part].", "ID")
    run_dir: Resolved[str] | None = _flag(CHECKING, "Where records go [.ddplaunch].", "DIR", read_name, "runs")
    show: Resolved[Ranks] | None = _flag(
        SHOWING, "Ranks whose output is shown: 0, 0,3 or all [0].", "RANKS", read_ranks, "0,3"
    )
    verbose: Resolved[bool] | None = _switch(SHOWING, "Show torchrun's own messages too.", "switch")
    capture: Resolved[bool] | None = _switch(SHOWING, "Record every rank's output, and explain a failure [yes].")
    hang_timeout_s: Resolved[float] | None = _duration(
        SHOWING,
        "hang_timeout",
        "If no rank moves for this long, name the one that the others wait for: 10m.",
        read_limit,
        "10m",
    )
    on_hang: Resolved[Literal["report", "stop"]] | None = _flag(
        SHOWING, "report, or stop: end the run, exit status 124 [report].", "WHAT", read_on_hang
    )
    stacks: Resolved[bool] | None = _switch(
        SHOWING, "Make `ddplaunch stacks` work without py-spy [on if a time-out is set]."
    )
    trace: Resolved[str] | None = _flag(
        SHOWING, "Write how long each phase of the launch took: FILE.svg or FILE.json.", "FILE"
    )
    record_metrics: Resolved[bool] | None = _switch(
        SHOWING, "Record what ranks and GPUs use, for `top --replay` and `top --plot`.", "switch"
    )


def flags_of_options() -> dict[str, Flag]:
    """Return every flag by the name of its field, in the order of ``--help``."""
    found: dict[str, Flag] = {each.name: each.metadata["flag"] for each in fields(Options)}
    return {name: flag._replace(name=flag.name or name) for name, flag in found.items()}


def parse_options(said: Said) -> Options:
    """Return what the merged flags and profile mean. Raises UsageError for the first value that no launch can have."""
    values: dict[str, Any] = {}
    for name, flag in flags_of_options().items():
        item = said.get(flag.name)
        if item is not None:
            values[name] = tuple(map(flag.parsed, item)) if flag.kind == "many" else flag.parsed(item)
    _separate_nodes(values, said)
    options = Options(**values)
    _refuse_lonely(options, said)
    return options


def _separate_nodes(values: dict[str, Any], said: Said) -> None:
    """Put the nodes of ``NxM`` into ``nnodes``. Raises UsageError where ``--nnodes`` says another number."""
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


def _refuse_lonely(options: Options, said: Said) -> None:
    """Raise UsageError for a flag that means nothing without another one."""
    if options.on_hang is not None and options.hang_timeout_s is None:
        raise usage(
            "`--on-hang` without `--hang-timeout`",
            why="it says what happens when no rank moves, and that is not watched",
            fix=f"`--hang-timeout 10m --on-hang {options.on_hang.value}`",
            where=str(options.on_hang.source),
        )
    for name in ("relaunch_after", "relaunch_wait"):
        if options.relaunch is None and name in said:
            flag = "--" + name.replace("_", "-")
            raise usage(
                f"`{flag}` without `--relaunch`",
                why="it says when a failed run is launched again, and that was not asked for",
                fix=f"`--relaunch 3 {flag} {said[name].value}`",
                where=str(said[name].source),
            )


_EXPECTED = {"integer": "an integer", "number": "a number", "switch": "true or false", "pair": "true or false"}
_EXAMPLES = {"env": '["NAME=VALUE"]', "nproc": '"auto"', "gpus": '"0,1"', "lr-scaling": '"sqrt"'}
_EXAMPLES_OF_KIND = {"integer": "8", "number": "1e-4", "switch": "true", "pair": "true"}


def said_in_table(table: Mapping[str, Any], where: str) -> Said:
    """Return what a table of the project's configuration says, each value with source "profile".

    A key is the flag without the leading dashes. Raises UsageError for an unknown key (with the near miss) and for a
    value of the wrong type.
    """
    flags = {flag.name: flag for flag in flags_of_options().values()}
    said: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in flags:
            raise _unknown("key", key, [known.replace("_", "-") for known in flags], where)
        if name in said:
            spelled = name.replace("_", "-")
            raise usage(
                f"`{spelled}` is set twice",
                why="`-` and `_` spell the same key",
                fix=f"keep one of `{spelled}` and `{name}` in {where}",
                where=where,
            )
        source, kind = Source("profile", where), flags[name].kind
        if kind == "many":
            items = value if isinstance(value, list) else [value]
            said[name] = tuple(Resolved(_scalar(key, item, kind, where), source) for item in items)
        else:
            said[name] = Resolved(_scalar(key, value, kind, where), source)
    return said


def _scalar(key: str, value: object, kind: Kind, where: str) -> object:
    wanted = {"integer": int, "number": float, "switch": bool, "pair": bool}.get(kind, str)
    if wanted in (float, str) and isinstance(value, int) and not isinstance(value, bool):
        return wanted(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        expected, example = _EXPECTED.get(kind, "text"), _EXAMPLES.get(key, _EXAMPLES_OF_KIND.get(kind, '"text"'))
        raise usage(
            f"`{key} = {value!r}` is not {expected}",
            why=f"`{key}` takes {expected}",
            fix=f"correct it in {where}, as in `{key} = {example}`",
            where=where,
        )
    return value


def said_in_profile(document: Mapping[str, Any], name: str | None, where: str) -> Said:
    """Merge the document's own keys with those of the named profile, which wins.

    Raises UsageError if the profile does not exist.
    """
    profiles = _table_of_tables(document.get("profiles", {}), where)
    base = said_in_table({key: value for key, value in document.items() if key != "profiles"}, where)
    if name is None:
        return base
    if name not in profiles:
        raise _unknown("profile", name, list(profiles), where)
    return merge(said_in_table(profiles[name], f"{where}, {name}"), base)


def _table_of_tables(profiles: object, where: str) -> Mapping[str, Mapping[str, Any]]:
    wrong = "profiles" if not isinstance(profiles, Mapping) else None
    if isinstance(profiles, Mapping):
        wrong = next((f"profiles.{name}" for name, table in profiles.items() if not isinstance(table, Mapping)), None)
    if not isinstance(profiles, Mapping) or wrong is not None:
        raise usage(
            f"`{wrong}` is not a table",
            why="each profile is a section with keys of its own",
            fix="write `[profiles.big]`, and below it `batch-size = 8`",
            where=where,
        )
    return profiles


def merge(first: Said, second: Said) -> dict[str, Any]:
    """Return ``first`` completed by ``second``; repeatable flags are joined, those of ``first`` last.

    What ``first`` says also takes away from ``second`` what would contradict it, so that a flag wins over a profile.
    """
    merged = {name: value for name, value in second.items() if name not in _displaced(first, second)}
    for name, value in first.items():
        merged[name] = (*merged.get(name, ()), *value) if isinstance(value, tuple) else value
    return merged


def _displaced(first: Said, second: Said) -> set[str]:
    """Return the flags of ``second`` that cannot stand beside those of ``first``."""
    names: set[str] = set()
    if "lr" in first:
        names |= {"base_lr"}
        if "base_warmup" not in first and "base_warmup" not in second:  # nothing is left that could be scaled
            names |= {"base_batch_size", "lr_scaling", "lr_max_factor"}
    if "base_lr" in first:
        names.add("lr")
    if "gpus" in first:
        names.add("device")
    if "device" in first and first["device"].value == "cpu":
        names.add("gpus")
    if "nnodes" in first and "nproc" in second and "x" in second["nproc"].value:
        names.add("nproc")
    return names


def _unknown(what: str, name: str, known: list[str], where: str) -> UsageError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    listed = ", ".join(f"`{item}`" for item in sorted(known)) or "none"
    return usage(
        f"unknown {what} `{name}`",
        why=f"{where} may hold: {listed}",
        fix=f"did you mean `{near[0]}`?" if near else f"use one of those, or remove `{name}`",
        where=where,
    )
