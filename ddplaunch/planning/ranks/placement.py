"""Decides on which CPUs each rank of a node runs, and with how many threads.

Ranks on GPUs are bound to the NUMA nodes of their GPUs, which clearly helps. Others are left to the kernel unless the
user asks for cores of their own: a rank that is bound to CPUs that others use as well is slower than one that moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from ddplaunch.machine.facts import CpuFacts, CpuLayout
from ddplaunch.planning.launch import Placement, Target
from ddplaunch.script.declared import given, spell
from ddplaunch.script.names import last_word
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, ScriptReport
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import DEFAULT, Resolved, Source, Unavailable, value_of
from ddplaunch.values.words import count, numbers_text, ranks_text

Word: TypeAlias = Literal["auto", "none", "node", "cores"]
_NUMA_BINDING = "--numa-binding"

# The names in PyTorch's and timm's examples, Lightning and Hugging Face TrainingArguments.
_WORKER_OPTION = DeclaredOption(
    ("--num-workers", "--num_workers", "--workers", "--dataloader_num_workers", "--dataloader-num-workers"),
    DeclaredAt("", 0),
)


@dataclass(frozen=True)
class Surroundings:
    """What decides where ranks run, apart from the machine's CPUs.

    ``variables`` are the environment of the launch. ``gpus`` are the PCI addresses of the ranks'
    GPUs from NVML, None on the CPU; ``extra`` are the user's own options for torchrun. ``plugin``: the plug-in is there
    to bind ranks.
    """

    variables: Mapping[str, str]
    gpus: tuple[str, ...] | None = None
    extra: tuple[str, ...] = ()
    plugin: bool = True


def said_workers(target: Target | None) -> int | None:
    """Return the number of DataLoader workers per rank in the script's arguments; None if they do not give it."""
    values = given(target.args, _WORKER_OPTION) if target else ()
    return int(values[-1]) if values and values[-1].isascii() and values[-1].isdigit() else None


def workers_typed(report: ScriptReport | Unavailable, number: str) -> str:
    """Return the script's option with ``number`` DataLoader workers per rank; "" if it has no such option."""
    if isinstance(report, Unavailable):
        return ""
    names = {last_word(flag) for flag in _WORKER_OPTION.flags}
    worker_options = [
        option for option in report.options if option.takes_value and names & {last_word(flag) for flag in option.flags}
    ]
    return " ".join(spell(worker_options[0], number)) if worker_options else ""


def resolve_placement(
    typed: Resolved[Word] | None,
    ranks: int,
    cpu: CpuFacts | Unavailable,
    layout: CpuLayout | Unavailable,
    surroundings: Surroundings,
) -> Placement:
    """Decide on which CPUs the ``ranks`` of this node run, and with how many threads.

    Raises UsageError if the user decides it twice.
    """
    if isinstance(cpu, Unavailable):
        return Placement()
    if isinstance(layout, Unavailable):
        return _counted(Placement(), ranks, cpu, None)
    placement = _by_the_user(typed, layout, surroundings)
    if placement is None:
        placement = _by_us(value_of(typed, "auto"), ranks, layout, surroundings)
        placement = replace(
            placement, source=typed.source if typed else DEFAULT, shown=placement.shown or typed is not None
        )
    return _counted(placement, ranks, cpu, layout)


def _counted(placement: Placement, ranks: int, cpu: CpuFacts, layout: CpuLayout | None) -> Placement:
    """Return ``placement`` with the number of threads per rank: one for each core of its own or of its share.

    There are never more threads than the CPU quota allows. Two threads that compute on one physical core slow each
    other down, so hyper-threads are not counted.
    """
    share = max(1, cpu.usable // ranks)
    usable = cpu.usable if layout is None else min(len(layout.cores), cpu.usable)
    if placement.cores and placement.cores <= share:
        cores = count(placement.cores, "physical core")
        reason = f"each rank has {cores} of its own" if placement.apart else f"a rank's share of its node is {cores}"
        return replace(placement, threads=placement.cores, reason=reason)
    what = "usable CPUs" if usable == cpu.usable else "usable physical cores"
    reason = f"{usable} {what} / {count(ranks, 'process')}; unset, torchrun would say 1"
    return replace(placement, threads=max(1, usable // ranks), reason=reason)


def _by_the_user(typed: Resolved[Word] | None, layout: CpuLayout, surroundings: Surroundings) -> Placement | None:
    """Return the placement that the user, Slurm or a program that started ddplaunch has decided; None if none has.

    A process with fewer CPUs than its cpuset allows was bound; ``node`` and ``cores`` place ranks within these CPUs.
    https://slurm.schedmd.com/srun.html#OPT_cpu-bind
    """
    binding = next(
        (word for word in surroundings.extra if word.partition("=")[0].replace("_", "-") == _NUMA_BINDING), None
    )
    if binding is not None and typed is not None:
        raise usage(
            f"`--placement {typed.value}` and `--torchrun-arg {binding}`",
            why="both say on which CPUs ranks run",
            fix="keep one of them",
            where=str(typed.source),
        )
    if typed is not None and typed.value == "none":
        return Placement(text="left to the kernel", source=typed.source, shown=True)
    if binding is not None:
        return Placement(text=f"as torchrun's `{binding}` says", source=Source("flag", "--torchrun-arg"), shown=True)
    allocated = surroundings.variables.get("SLURM_CPUS_ON_NODE") == str(len(layout.cpus))
    if len(layout.cpus) >= layout.allowed or allocated or value_of(typed, "auto") in ("node", "cores"):
        return None  # a job that has all of its CPUs on the node was not bound
    who, source = "what started ddplaunch (`taskset`, `numactl`)", Source("environment", "CPU affinity")
    if "SLURM_JOB_ID" in surroundings.variables:
        who, source = "Slurm", Source("Slurm", "--cpu-bind")
    text = f"CPUs {numbers_text(layout.cpus)} of {layout.online}, bound by {who}"
    return Placement(text=text, source=source, shown=True)


def _by_us(word: Word, ranks: int, layout: CpuLayout, surroundings: Surroundings) -> Placement:
    """Return ddplaunch's own placement; ``text`` says why ranks are not bound (if a user may expect it), and whether
    not all CPUs are usable.
    """
    homes = [layout.cores] * ranks if surroundings.gpus is None else _near_gpus(ranks, layout, surroundings.gpus)
    if surroundings.gpus is None and word != "cores":
        result: Placement | str = "" if word == "auto" else "ranks on the CPU have no GPU to be near to"
    elif word != "cores" and len(layout.nodes) == 1:
        result = "" if word == "auto" else "the machine has one NUMA node"
    elif isinstance(homes, str):
        result = homes
    elif not surroundings.plugin:
        result = "without capture nobody is there to do it"
    else:
        result = _apart(homes) if word == "cores" else _together(homes, layout)
    if isinstance(result, str):
        result = Placement(text=f"not bound: {result}", shown=len(layout.nodes) > 1) if result else Placement()
    if len(layout.cpus) < layout.online:
        limit = f"{len(layout.cpus)} of {layout.online} CPUs are usable"
        result = replace(result, text=f"{result.text}; {limit}" if result.text else limit, shown=True)
    return replace(result, shown=result.shown or bool(result.cpus))


#: The physical cores on which a rank may run.
_Cores: TypeAlias = Sequence[tuple[int, ...]]


def _near_gpus(ranks: int, layout: CpuLayout, gpus: Sequence[str]) -> list[_Cores] | str:
    """Return for each rank the cores of its GPU's NUMA node, or a clause on why they are not known."""
    nodes = {node.index: node for node in layout.nodes}
    if len(nodes) == 1:
        return [layout.cores] * ranks
    if len(gpus) < ranks:
        return f"NVML shows {count(len(gpus), 'GPU')} for {count(ranks, 'rank')}"
    homes: list[_Cores] = []
    for rank, gpu in enumerate(gpus[:ranks]):
        home = layout.gpu_nodes.get(gpu)
        if home is None:
            return f"the kernel does not tell the NUMA node of rank {rank}'s GPU"
        if home not in nodes or not nodes[home].cores:
            return f"rank {rank}'s GPU is on NUMA node {home}, of which no CPU may be used"
        homes.append(nodes[home].cores)
    return homes


def _together(homes: Sequence[_Cores], layout: CpuLayout) -> Placement:
    """Give each rank all CPUs of its GPU's node."""
    texts = []
    for node in layout.nodes:
        if node.cores in homes:
            ranks = ranks_text([rank for rank, cores in enumerate(homes) if cores == node.cores])
            texts.append(f"{ranks} on NUMA node {node.index}")
    least = min(len(cores) // homes.count(cores) for cores in homes)
    return Placement(cpus=_texts(homes), cores=least, text=f"{', '.join(texts)}, as their GPUs")


def _apart(homes: Sequence[_Cores]) -> Placement | str:
    """Give each rank cores of its own from its home, or return why not. They are neighbours, which share caches."""
    sets: list[_Cores] = []
    for rank, cores in enumerate(homes):
        ranks, earlier = homes.count(cores), homes[:rank].count(cores)
        if len(cores) < ranks:
            return f"{count(len(cores), 'physical core')} for {count(ranks, 'rank')}"
        sets.append(cores[earlier * len(cores) // ranks : (earlier + 1) * len(cores) // ranks])
    least = min(map(len, sets))
    text = f"each of {count(len(sets), 'rank')} on {count(least, 'physical core')} of its own"
    return Placement(cpus=_texts(sets), apart=True, cores=least, text=text)


def _texts(sets: Sequence[_Cores]) -> tuple[str, ...]:
    return tuple(numbers_text(sorted(cpu for core in cores for cpu in core)) for cores in sets)
