"""A launch over several hosts, decided from what the hosts reported: its size, and the options of each host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddplaunch.machine.facts import Facts, NetworkFacts, Route
from ddplaunch.planning.flag import NodeRange, Processes
from ddplaunch.planning.options import Options
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source, value_of

#: Variables of this shell that the hosts get too. Others may be about this host alone (its devices, paths or place in a
#: job) and stay here; `--env` adds any that are needed.
_PREFIXES = (
    *("NCCL_", "GLOO_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "UCX_", "UCC_", "FI_", "RCCL_", "NVSHMEM_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "HSA_", "OMP_", "MKL_", "KMP_", "HF_", "TRANSFORMERS_", "TOKENIZERS_"),
    *("WANDB_", "MLFLOW_", "COMET_", "TRITON_", "XLA_", "HYDRA_", "LC_"),
)
_NAMES = frozenset({"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONWARNINGS", "LD_LIBRARY_PATH", "LANG", "TERM", "TZ"})
_NAMED = 16
_STAY = frozenset({"CUDA_VISIBLE_DEVICES", "TORCH_ELASTIC_WORKER_IDENTITY"})


@dataclass(frozen=True)
class HostReport:
    """What one host reported about itself. ``name`` is its name as given to ssh. Its clock is ``clock_ahead_s`` ahead
    of this host's, give or take ``clock_unsure_s``. ``script`` is the script's digest, "missing", or None if it was not
    looked for. ``sources`` are the files that the script imports from its own tree, each with a digest or "missing";
    ``sources_here`` are the same on the launcher's host.
    """

    name: str
    facts: Facts
    ddplaunch: str
    plugin: str | None = None
    cwd: str = ""
    cwd_problem: str | None = None
    script_name: str | None = None
    script: str | None = None
    machine: str = ""
    clock_ahead_s: float = 0.0
    clock_unsure_s: float = 0.0
    sources: tuple[tuple[str, str], ...] = ()
    sources_here: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Meeting:
    """Where the hosts meet: rank 0's address that all of them reached, and its free port.

    ``local`` is each host's own address on the route there, in the order of the hosts.
    """

    address: str
    port: int
    local: tuple[str, ...] = ()

    def route(self, node: int, network: NetworkFacts) -> Route:
        """Return how the host with this node rank reaches the meeting."""
        address = self.local[node]
        name = next((interface.name for interface in network.interfaces if address in interface.addresses), None)
        return Route(self.address, name, address, node == 0)


def names_text(names: Sequence[str]) -> str:
    """Return the names separated by commas; if there are very many, only the first ones and the last."""
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMED // 2])} … {names[-1]} ({len(names)} hosts)"


def forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this shell that every host gets."""
    return {
        name: value
        for name, value in environ.items()
        if (name in _NAMES or name.startswith(_PREFIXES)) and name not in _STAY
    }


def sized(options: Options, names: Sequence[str], slots: Sequence[int | None]) -> Options:
    """Return the options with the number of nodes and, if the list of hosts gives slots, of processes per node.

    Raises UsageError if numbers contradict each other or differ between hosts.
    """
    processes: Processes = value_of(options.nproc, "auto")
    if options.nnodes is not None and options.nnodes.value != (len(names), len(names)):
        fewest, most = options.nnodes.value
        wanted = most if fewest == most else f"{fewest} to {most}"
        raise usage(
            f"{wanted} nodes, but {len(names)} hosts: {names_text(names)}",
            why="each host gets one node rank, and a launch over ssh begins with all of them",
            fix=f"`ddplaunch run {len(names)}x{processes} …`; `--exclude HOST` leaves a host out",
            where=str(options.nnodes.source),
            code="hosts-not-nodes",
        )
    slots_by_name = {name: number for name, number in zip(names, slots, strict=True) if number is not None}
    source = options.nproc.source if options.nproc else Source("flag", "--hosts")
    if processes == "auto" and slots_by_name:
        processes = _common(slots_by_name, len(names))
    if processes != "auto":
        _refuse_few_slots(processes, slots_by_name, options)
    nnodes = Resolved(NodeRange(len(names), len(names)), source)
    return replace(options, nproc=Resolved(processes, source), nnodes=nnodes)


def _common(slots_by_name: Mapping[str, int], hosts: int) -> int:
    numbers = sorted(set(slots_by_name.values()))
    if len(numbers) == 1:
        return numbers[0]
    shown = ", ".join(f"{name}: {number}" for name, number in slots_by_name.items())
    raise usage(
        f"hosts have different numbers of slots: {shown}",
        why="every host runs the same number of ranks",
        fix=f"`ddplaunch run {hosts}x{numbers[0]} …`, or leave out the hosts with fewer",
        where=tuple(slots_by_name),
        code="slots-uneven",
    )


def _refuse_few_slots(processes: int, slots: Mapping[str, int], options: Options) -> None:
    small = {name: number for name, number in slots.items() if number < processes}
    if small:
        raise usage(
            f"{processes} processes on each host, but {', '.join(f'{name} has {small[name]}' for name in small)} slots",
            why="the list of hosts says how many processes each takes",
            fix=f"`{min(small.values())}` in the place of `{processes}`, or correct the list",
            where=str(options.nproc.source) if options.nproc else tuple(small),
            code="slots-exceeded",
        )


def part(options: Options, node: int, meeting: Meeting, run_id: str) -> Options:
    """Return the options for the host with node rank ``node``: its own rank, and the address and port to meet at."""
    source = Source("flag", "--hosts")
    detected, master_addr = Source("detected", "all hosts reach it"), options.master_addr
    return replace(
        options,
        node_rank=Resolved(node, source),
        master_addr=Resolved(meeting.address, master_addr.source if master_addr else detected),
        master_port=Resolved(meeting.port, options.master_port.source if options.master_port else detected),
        run_id=Resolved(run_id, options.run_id.source if options.run_id else source),
    )


def options_from_plain(data: Mapping[str, Any]) -> Options:
    """Return the options that ``codec.plain`` turned into ``data``. Raises KeyError or TypeError for other data."""
    values: dict[str, Any] = {}
    for name, value in data.items():
        if value is not None:
            values[name] = tuple(map(_resolved, value)) if isinstance(value, list) else _resolved(value)
    if "nnodes" in values:
        values["nnodes"] = replace(values["nnodes"], value=NodeRange(*values["nnodes"].value))
    return Options(**values)


def _resolved(data: Mapping[str, Any]) -> Resolved[Any]:
    value = data["value"]
    return Resolved(tuple(value) if isinstance(value, list) else value, Source(**data["source"]))
