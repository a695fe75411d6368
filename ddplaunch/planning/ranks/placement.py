"""Decides on which CPUs each rank of a node runs, and with how many threads.

Ranks are bound where it is plain that it helps them, and left to the kernel in doubt: a rank that is bound to the wrong
CPUs, or to some that others use as well, is slower than one that the kernel moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal, TypeAlias

from ddplaunch.machine.facts import CpuFacts, CpuLayout, NumaNode
from ddplaunch.planning.launch import Placement, Target
from ddplaunch.planning.options import Options
from ddplaunch.script.declared import given, spell
from ddplaunch.script.names import last_word
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, ScriptReport
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import DEFAULT, Resolved, Source, Unavailable, value_of
from ddplaunch.values.words import count, numbers_text, ranks_text

Word: TypeAlias = Literal["auto", "none", "node", "cores"]
NUMA_BINDING = "--numa-binding"

_ROOM = 4  # CPUs for a rank with DataLoader workers that nobody has counted: fewer on its node, and it is left alone
#: Of a rank on the CPU: what loads data and communicates needs a place beside what computes. With one core each, on two
#: busy ones, ranks that were bound took longer in 11 of 15 pairs of runs, by a fifth in the median.
_LEAST_CORES = 2
_BUSY = 1 / 4  # of the cores: where so many other threads compute, ranks are left to move out of their way
_LEAST_SHARE = 7 / 8  # of all cores, where ranks keep within nodes that do not divide evenly among them
#: Variables by which OpenMP puts the n-th thread of every process on the n-th CPU of a list, and how a list shows.
_LISTS = {"GOMP_CPU_AFFINITY": "", "KMP_AFFINITY": "explicit", "OMP_PLACES": "{"}

# The names in PyTorch's and timm's examples, Lightning and Hugging Face TrainingArguments.
_WORKER_OPTION = DeclaredOption(
    ("--num-workers", "--num_workers", "--workers", "--dataloader_num_workers", "--dataloader-num-workers"),
    DeclaredAt("", 0),
)


@dataclass(frozen=True)
class Surroundings:
    """What decides where ranks run, beside the machine's CPUs.

    ``variables`` are the environment of the launch, each with its source. ``gpus`` are the PCI addresses of the ranks'
    GPUs as NVML tells them, None on the CPU; ``workers`` are the DataLoader workers of a rank, None if nobody said.
    ``extra`` are the user's words to torchrun; ``plugin`` is whether the
    plug-in is there to bind ranks. ``taken`` is a clause on another run that has bound its ranks here.
    """

    variables: Mapping[str, tuple[str, Source]]
    gpus: tuple[str, ...] | None = None
    workers: int | None = None
    extra: tuple[str, ...] = ()
    plugin: bool = True
    taken: str = ""


def said_workers(options: Options, target: Target | None) -> int | None:
    """Return the DataLoader workers per rank from ``--workers`` or the script's arguments; None if neither has them."""
    if options.workers is not None:
        return options.workers.value
    values = given(target.args, _WORKER_OPTION) if target else ()
    return int(values[-1]) if values and values[-1].isascii() and values[-1].isdigit() else None


def workers_typed(report: ScriptReport | Unavailable, number: str) -> str:
    """Return the words by which a script takes so many DataLoader workers per rank; "" of one that takes none."""
    if isinstance(report, Unavailable):
        return ""
    names = {last_word(flag) for flag in _WORKER_OPTION.flags}
    own = [each for each in report.options if each.takes_value and names & {last_word(flag) for flag in each.flags}]
    return " ".join(spell(own[0], number)) if own else ""


def resolve_placement(
    asked: Resolved[Word] | None,
    ranks: int,
    cpu: CpuFacts | Unavailable,
    layout: CpuLayout | Unavailable,
    around: Surroundings,
) -> Placement:
    """Decide on which CPUs the ``ranks`` of this node run, and with how many threads.

    Raises UsageError where the user says it twice.
    """
    if isinstance(cpu, Unavailable):
        return Placement()
    if isinstance(layout, Unavailable):
        return _counted(Placement(), ranks, cpu, None)
    found = _by_the_user(asked, layout, around)
    if found is None:
        found = _by_us(value_of(asked, "auto"), ranks, cpu, layout, around)
        found = replace(found, source=asked.source if asked else DEFAULT, shown=found.shown or asked is not None)
    return _counted(found, ranks, cpu, layout)


def _counted(found: Placement, ranks: int, cpu: CpuFacts, layout: CpuLayout | None) -> Placement:
    """Add the threads of each rank: one for each core that it has, or has a share of; never more than the quota has.

    Two threads that compute on one physical core get in each other's way, so hyper-threads are not counted.
    """
    share = max(1, cpu.usable // ranks)
    usable = cpu.usable if layout is None else min(len(layout.cores), cpu.usable)
    if found.cores and found.cores <= share:
        cores = count(found.cores, "physical core")
        reason = f"each rank has {cores} of its own" if found.apart else f"a rank's share of its node is {cores}"
        return replace(found, threads=found.cores, reason=reason)
    what = "usable CPUs" if usable == cpu.usable else "usable physical cores"
    reason = f"{usable} {what} / {count(ranks, 'process')}; unset, torchrun would say 1"
    return replace(found, threads=max(1, usable // ranks), reason=reason)


def _by_the_user(asked: Resolved[Word] | None, layout: CpuLayout, around: Surroundings) -> Placement | None:
    """Return what the user, Slurm or a program in front of ddplaunch has decided; None if that is nothing.

    Who has fewer CPUs than the cpuset leaves was bound by somebody; ``node`` and ``cores`` place ranks within these.
    https://slurm.schedmd.com/srun.html#OPT_cpu-bind
    """
    theirs = next((word for word in around.extra if word.partition("=")[0].replace("_", "-") == NUMA_BINDING), None)
    if theirs is not None and asked is not None:
        raise usage(
            f"`--placement {asked.value}` and `--torchrun-arg {theirs}`",
            why="both say on which CPUs ranks run",
            fix="keep one of them",
            where=str(asked.source),
        )
    if asked is not None and asked.value == "none":
        text = ", ".join(filter(None, ("left to the kernel", _limit(layout, around))))
        return Placement(text=text, source=asked.source, shown=True)
    if theirs is not None:
        return Placement(text=f"as torchrun's `{theirs}` says", source=Source("flag", "--torchrun-arg"), shown=True)
    for name, mark in _LISTS.items():
        value, source = around.variables.get(name, ("", DEFAULT))
        if value and mark in value:
            return Placement(text=f"as {name}={value} says", source=source, shown=True)
    if _limited_by(layout, around) != "affinity" or value_of(asked, "auto") in ("node", "cores"):
        return None
    who, source = "what started ddplaunch (`taskset`, `numactl`)", Source("environment", "CPU affinity")
    if around.variables.get("SLURM_CPU_BIND_TYPE", ("none", DEFAULT))[0] not in ("", "none"):
        who, source = "Slurm's `--cpu-bind`", Source("Slurm", "--cpu-bind")
    elif "SLURM_JOB_ID" in around.variables:
        who, source = "Slurm", Source("Slurm")
    text = f"CPUs {numbers_text(layout.cpus)} of {layout.online}, bound by {who}"
    return Placement(text=text, source=source, shown=True)


def _limited_by(layout: CpuLayout, around: Surroundings) -> str:
    """Return what leaves these CPUs to the launch: all that a job has of the node are no choice among them."""
    if len(layout.cpus) >= layout.allowed:
        return "cpuset"
    allocated = around.variables.get("SLURM_CPUS_ON_NODE", ("", DEFAULT))[0]
    return "Slurm" if allocated == str(len(layout.cpus)) else "affinity"


def _limit(layout: CpuLayout, around: Surroundings) -> str:
    """Return how many of the machine's CPUs there are for the launch, and why not more; "" for all of them."""
    if len(layout.cpus) >= layout.online:
        return ""
    return f"{len(layout.cpus)} of {layout.online} CPUs by {_limited_by(layout, around)}"


def _by_us(word: Word, ranks: int, cpu: CpuFacts, layout: CpuLayout, around: Surroundings) -> Placement:
    """Bind the ranks, or say in ``text`` why not and which CPUs there are; empty where nobody would expect it."""
    if around.gpus is None:
        found = _on_cpus(word, ranks, cpu, layout)
    else:
        found = _near_gpus(word, ranks, layout, around)
    if isinstance(found, Placement):
        if found.apart and around.taken:
            found = around.taken
        elif not around.plugin:
            found = "without capture nobody is there to do it"
    if isinstance(found, str):
        shown = len(layout.nodes) > 1 or found == around.taken
        found = Placement(text=f"not bound: {found}", shown=shown) if found else Placement()
    if limit := _limit(layout, around):
        found = replace(found, text=f"{found.text}; {limit}" if found.text else limit, shown=True)
    return replace(found, shown=found.shown or bool(found.cpus))


def _near_gpus(word: Word, ranks: int, layout: CpuLayout, around: Surroundings) -> Placement | str:
    """Return the CPUs near each rank's GPU, or a clause on why ranks are not bound."""
    several, gpus = len(layout.nodes) > 1, around.gpus or ()
    if not several and word != "cores":
        return "" if word == "auto" else "the machine has one NUMA node"
    if len(gpus) < ranks and several:
        return f"NVML shows {count(len(gpus), 'GPU')} for {count(ranks, 'rank')}"
    nodes = {node.index: node for node in layout.nodes}
    near = []
    for rank in range(ranks):
        home = layout.gpu_nodes.get(gpus[rank]) if several else layout.nodes[0].index
        if home is None:
            return f"the kernel does not tell the NUMA node of rank {rank}'s GPU"
        if home not in nodes or not nodes[home].cores:
            return f"rank {rank}'s GPU is on NUMA node {home}, of which no CPU may be used"
        near.append(nodes[home])
    if word == "cores":
        return _apart_near(near)
    need = 1 if word == "node" else _ROOM if around.workers is None else 1 + around.workers
    return _together_near(near, layout, need)


def _together_near(near: Sequence[NumaNode], layout: CpuLayout, need: int) -> Placement | str:
    """Give each rank all CPUs of its GPU's node; of its socket if the node has fewer than ``need`` for a rank."""
    for kind in ("node", "socket"):
        keys = [node.index if kind == "node" else node.package for node in near]
        homes = {key: _of_home(kind, key, layout) for key in keys}
        if any(sum(len(node.cpus) for node in home) < need * keys.count(key) for key, home in homes.items()):
            continue
        cpus = tuple(numbers_text(sorted(cpu for node in homes[key] for cpu in node.cpus)) for key in keys)
        if kind == "socket" and len({node.package for node in layout.nodes}) == 1:
            break
        return Placement(
            cpus=cpus,
            cores=min(sum(len(node.cores) for node in home) // keys.count(key) for key, home in homes.items()),
            text=_near_text("NUMA node" if kind == "node" else "socket", keys),
        )
    return f"the NUMA nodes of the GPUs have fewer than {need} CPUs for each rank"


def _of_home(kind: str, key: int, layout: CpuLayout) -> list[NumaNode]:
    return [node for node in layout.nodes if key == (node.index if kind == "node" else node.package)]


def _near_text(word: str, keys: Sequence[int]) -> str:
    """Return ``ranks 0-3 on NUMA node 0, ranks 4-7 on NUMA node 1, as their GPUs``."""
    homes = sorted(set(keys))
    if len(homes) > 2:
        return f"each rank on the {word} of its GPU ({len(homes)} of them)"
    ranks = {key: ranks_text([rank for rank, each in enumerate(keys) if each == key]) for key in homes}
    return ", ".join(f"{ranks[key]} on {word} {key}" for key in homes) + ", as their GPUs"


def _apart_near(near: Sequence[NumaNode]) -> Placement | str:
    """Divide the cores of each node among the ranks whose GPUs are near it."""
    sets: list[Sequence[tuple[int, ...]]] = [()] * len(near)
    for node in near:
        ranks = [rank for rank, each in enumerate(near) if each == node]
        if len(node.cores) < len(ranks):
            return f"NUMA node {node.index} has {count(len(node.cores), 'core')} for {count(len(ranks), 'rank')}"
        for rank, part in zip(ranks, _parts(node.cores, len(ranks)), strict=True):
            sets[rank] = part
    return _apart(sets)


def _on_cpus(word: Word, ranks: int, cpu: CpuFacts, layout: CpuLayout) -> Placement | str:
    """Divide the cores among ranks that compute on them, or return a clause on why not."""
    if ranks == 1:
        return "" if word == "auto" else "there is one rank, and all CPUs are its own"
    if word == "node" and len(layout.nodes) == 1:
        return "the machine has one NUMA node"
    cores = len(layout.cores)
    least = _LEAST_CORES if word == "auto" else 1
    if cores < ranks * least:
        return f"{count(cores, 'physical core')} for {count(ranks, 'rank')}"
    if word == "auto" and cpu.usable < cpu.affinity:
        return f"others use these CPUs as well, as the quota of {cpu.quota_cpus:g} says"
    if word == "auto" and layout.running >= max(2, _BUSY * cores):
        return f"{layout.running} threads of others compute here at the moment"
    sets = _within_nodes(ranks, layout)
    if isinstance(sets, str):
        return sets
    if word != "node":
        return _apart(sets)
    homes = [[node for node in layout.nodes if set(node.cores) & set(part)] for part in sets]
    cpus = tuple(numbers_text(sorted(cpu for node in home for cpu in node.cpus)) for home in homes)
    return Placement(cpus=cpus, cores=min(map(len, sets)), text="each rank on one NUMA node, or a part of them alone")


def _within_nodes(ranks: int, layout: CpuLayout) -> list[Sequence[tuple[int, ...]]] | str:
    """Divide all cores so that no rank lies across nodes, unless it has them whole; a clause where that wastes some."""
    nodes = sorted((node for node in layout.nodes if node.cores), key=lambda each: (each.package, each.index))
    sets = _parts(layout.cores, ranks)
    touched = [[node for node in nodes if set(node.cores) & set(part)] for part in sets]
    if all(
        len(home) == 1 or sum(len(node.cores) for node in home) == len(part)
        for home, part in zip(touched, sets, strict=True)
    ):
        return sets
    held = dict.fromkeys(range(len(nodes)), 0)
    for _ in range(ranks):  # each to the node that has most for one more
        best = max(held, key=lambda number: len(nodes[number].cores) / (held[number] + 1))
        held[best] += 1
    least = min((len(nodes[number].cores) // many for number, many in held.items() if many), default=0)
    if not least or least * ranks < _LEAST_SHARE * len(layout.cores):
        return f"{count(ranks, 'rank')} do not divide {count(len(nodes), 'NUMA node')} evenly"
    return [part for number, many in held.items() if many for part in _parts(nodes[number].cores, many)]


def _parts(cores: Sequence[tuple[int, ...]], number: int) -> list[Sequence[tuple[int, ...]]]:
    """Divide neighbouring cores, which share caches, into ``number`` parts; the first ones get what is left over."""
    size, more = divmod(len(cores), number)
    starts = [each * size + min(each, more) for each in range(number + 1)]
    return [cores[first:last] for first, last in pairwise(starts)]


def _apart(sets: Sequence[Sequence[tuple[int, ...]]]) -> Placement:
    least = min(map(len, sets))
    cpus = tuple(numbers_text(sorted(cpu for core in part for cpu in core)) for part in sets)
    text = f"each of {count(len(sets), 'rank')} on {count(least, 'physical core')} of its own"
    return Placement(cpus=cpus, apart=True, cores=least, text=text)
