"""Reads Slurm's variables of the job, step and task, compressed lists of nodes and tasks included.

https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

from ddplaunch.planning.flag import NodeRange
from ddplaunch.planning.inside.place_in_job import PlaceInJob, first_number, place, share_of, visible_entries
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import count

LIMIT = 100_000  # hosts; Slurm's own MAX_SLURM_NODES is 65536
_PART = re.compile(r"([^\[\],]*)\[([0-9,-]+)\]|([^\[\],]+)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")
_REPEATED = re.compile(r"([0-9]{1,7})(?:\(x([0-9]{1,7})\))?\Z")


def expand_hosts(text: str) -> tuple[str, ...] | None:
    """Return the hosts of a node list in Slurm's order, or None for a list that is malformed or too long.

    Leading zeros are kept: ``gpu[08-10]`` is gpu08, gpu09, gpu10 (https://slurm.schedmd.com/slurm.conf.html, NodeName).
    """
    hosts: list[str] = []
    for word in _split(text.strip()):
        spelled = _expand_one(word)
        if spelled is None or len(hosts) + len(spelled) > LIMIT:
            return None
        hosts.extend(spelled)
    return tuple(hosts)


def repeated_counts(text: str) -> tuple[int, ...] | None:
    """Return one number for each node of ``2(x3),1`` (SLURM_TASKS_PER_NODE): 2, 2, 2, 1; None if malformed."""
    counts: list[int] = []
    for word in text.strip().split(","):
        match = _REPEATED.match(word)
        times = int(match[2] or 1) if match else 0
        if match is None or times == 0 or len(counts) + times > LIMIT:
            return None
        counts.extend([int(match[1])] * times)
    return tuple(counts)


def _split(text: str) -> Iterator[str]:
    """Split at the commas that are not in brackets."""
    depth, start = 0, 0
    for position, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _expand_one(word: str) -> list[str] | None:
    pieces: list[list[str]] = []
    position = 0
    while position < len(word):
        match = _PART.match(word, position)
        if match is None:
            return None
        position = match.end()
        if match[3] is not None:
            pieces.append([match[3]])
            continue
        numbers = _numbers(match[2])
        if numbers is None:
            return None
        pieces.append([match[1] + number for number in numbers])
    spelled = ["".join(parts) for parts in islice(product(*pieces), LIMIT + 1)]
    return spelled if pieces and len(spelled) <= LIMIT else None


def _numbers(text: str) -> list[str] | None:
    numbers: list[str] = []
    for word in text.split(","):
        match = _RANGE.match(word)
        if match is None:
            return None
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < LIMIT - len(numbers):
            return None
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers


_SPECIAL_STEPS = 4294967000  # batch script, interactive and extern steps have ids at the end of 32 bits
_PER_TASK = re.compile(r"gpu:(?:per_task|single):([0-9]{1,4})")
_FIRST_PORT, _PORTS = 15000, 10000  # below the ephemeral ports, which start at 32768


@dataclass(frozen=True)
class Slurm:
    """This process's place in a Slurm job.

    ``step`` is None outside of a step: in a batch script or the shell of ``salloc``; nodes and tasks are then the
    job's. ``tasks_here`` are the tasks on this node. ``on_node`` is False in a shell on a login node. ``array_task`` is
    ``ARRAY_TASK``, as squeue names a job of an array.
    """

    job: str
    step: int | None
    nodes: int
    node_list: str
    node_rank: int
    tasks: int
    task: int
    tasks_here: int
    local_task: int
    gpus_on_node: int | None
    cpus_per_task: int | None
    on_node: bool
    restarts: int = 0
    array_task: str = ""

    @property
    def by_task(self) -> bool:
        """Whether several tasks share a node, so that each task counts as a node for torchrun."""
        return self.tasks > self.nodes

    @property
    def label(self) -> str:
        """``12.0`` for a step, as sacct writes it, or ``12`` for a job."""
        return self.job if self.step is None else f"{self.job}.{self.step}"


def read_slurm(environ: Mapping[str, str]) -> Slurm | None:
    """Return the place in a Slurm job, or None outside of one.

    A shell that ``srun --pty`` started runs once, whatever the number of tasks, so it counts as outside of a step.
    """
    job = environ.get("SLURM_JOB_ID", "").strip()
    if not job.isdigit():
        return None
    step = first_number(environ, "SLURM_STEP_ID", "SLURM_STEPID")
    if step is not None and (step >= _SPECIAL_STEPS or "SLURM_PTY_PORT" in environ):
        step = None
    kind = "STEP" if step is not None else "JOB"
    nodes = first_number(environ, f"SLURM_{kind}_NUM_NODES", "SLURM_NNODES") or 1
    node_rank = first_number(environ, "SLURM_NODEID") or 0
    tasks = (first_number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if step is not None else None) or nodes
    tasks_here = _tasks_here(environ, step, nodes, node_rank, tasks)
    return Slurm(
        job=job,
        step=step,
        nodes=nodes,
        node_list=environ.get(f"SLURM_{kind}_NODELIST", ""),
        node_rank=node_rank,
        tasks=tasks,
        task=first_number(environ, "SLURM_PROCID") or 0,
        tasks_here=tasks_here,
        local_task=first_number(environ, "SLURM_LOCALID") or 0,
        gpus_on_node=_gpus_on_node(environ, tasks_here),
        cpus_per_task=_cpus_per_task(environ, tasks_here),
        on_node="SLURMD_NODENAME" in environ,
        restarts=first_number(environ, "SLURM_RESTART_COUNT") or 0,
        array_task=array_task(environ),
    )


def _tasks_here(environ: Mapping[str, str], step: int | None, nodes: int, node_rank: int, tasks: int) -> int:
    if step is None:
        return 1
    counts = repeated_counts(environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", ""))
    if counts is not None and node_rank < len(counts):
        return counts[node_rank]
    return max(1, tasks // nodes)


def array_task(environ: Mapping[str, str]) -> str:
    """Return ``ARRAY_TASK``, "" outside of a job array; in an array one task's SLURM_JOB_ID is also the array's id."""
    array, task = first_number(environ, "SLURM_ARRAY_JOB_ID"), first_number(environ, "SLURM_ARRAY_TASK_ID")
    return "" if array is None or task is None else f"{array}_{task}"


def _gpus_on_node(environ: Mapping[str, str], tasks_here: int) -> int | None:
    """Return how many GPUs the job or step has on this node; the variable for it depends on how they were requested.

    With ``--gpus-per-task`` the lists hold only the GPUs of this task (seen with 22.05).
    """
    per_task = _PER_TASK.match(environ.get("SLURMD_TRES_BIND", ""))
    if per_task and tasks_here > 1:
        return max(first_number(environ, "SLURM_GPUS_ON_NODE") or 0, int(per_task[1]) * tasks_here)
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        listed = environ.get(name, "").strip()
        if listed:
            return len(listed.split(","))
    return first_number(environ, "SLURM_GPUS_ON_NODE")


def _cpus_per_task(environ: Mapping[str, str], tasks_here: int) -> int | None:
    cpus_per_task = first_number(environ, "SLURM_CPUS_PER_TASK")
    if cpus_per_task:
        return cpus_per_task
    on_node = first_number(environ, "SLURM_CPUS_ON_NODE")
    return max(1, on_node // tasks_here) if on_node else None


def find_slurm(environ: Mapping[str, str]) -> PlaceInJob | None:
    """Return this process's place in a Slurm job, None outside of one.

    With one task per node, the task's torchrun is a node with one rank per GPU. With several tasks per node, torchrun
    counts each task as a node with the task's own GPUs, so a task with one GPU is one rank. Its LOCAL_RANK is 0, which
    is right, because the task sees only its own GPU.
    """
    slurm = read_slurm(environ)
    if slurm is None:
        return None
    nproc, devices = _processes(slurm, environ)
    values: dict[str, tuple[Any, str]] = {"nproc": nproc}
    if slurm.step is not None:
        suffix = f"-r{slurm.restarts}" if slurm.restarts else ""
        values["run_id"] = (f"slurm-{slurm.label}{suffix}", "SLURM_JOB_ID and SLURM_STEP_ID")
    if slurm.step is not None and slurm.tasks > 1:
        hosts = expand_hosts(slurm.node_list) or (None,)
        nodes = slurm.tasks if slurm.by_task else slurm.nodes
        values |= {
            "nnodes": (NodeRange(nodes, nodes), "SLURM_NTASKS" if slurm.by_task else "SLURM_NNODES"),
            "node_rank": (slurm.task, "SLURM_PROCID") if slurm.by_task else (slurm.node_rank, "SLURM_NODEID"),
            "master_addr": (hosts[0], "SLURM_STEP_NODELIST"),
            "master_port": _port(slurm, environ),
        }
    return place("Slurm", describe_slurm(slurm), devices, **values)


def describe_slurm(slurm: Slurm) -> str:
    """Return ``Slurm job 12.0: node 1 of 2 (vn[1-2]), 4 GPUs and 16 CPUs here``."""
    parts = [f"{slurm.nodes} nodes ({slurm.node_list})" if slurm.nodes > 1 else slurm.node_list]
    if slurm.step is not None and slurm.nodes > 1:
        parts[0] = f"node {slurm.node_rank} of {parts[0]}"
    if slurm.by_task:
        parts.append(f"task {slurm.task} of {slurm.tasks}")
    if slurm.gpus_on_node is not None:
        parts.append(f"{count(slurm.gpus_on_node, 'GPU')} on this node")
    if slurm.cpus_per_task is not None:
        parts.append(f"{count(slurm.cpus_per_task, 'CPU')} a task")
    array = f" (array {slurm.array_task})" if slurm.array_task else ""
    return f"Slurm job {slurm.label}{array}: {', '.join(part for part in parts if part)}"


def _processes(slurm: Slurm, environ: Mapping[str, str]) -> tuple[tuple[int | None, str], tuple[str, ...]]:
    """Return the number of ranks of this task and who says so, and its own GPUs if other tasks see the same GPUs."""
    entries = visible_entries(environ)
    if slurm.step is None and not slurm.on_node:
        return (None, ""), ()  # the shell of salloc on a login node has none of the job's GPUs
    if slurm.by_task:
        shared = entries is not None and len(entries) == slurm.gpus_on_node
        devices = share_of(entries or (), slurm.local_task, slurm.tasks_here) if shared else ()
        count = len(devices) if devices else len(entries or ()) if not shared else 1
        return (max(1, count), f"task {slurm.task} of {slurm.tasks}"), devices
    if slurm.gpus_on_node and (entries is None or len(entries) == slurm.gpus_on_node):
        return (slurm.gpus_on_node, "SLURM_GPUS_ON_NODE"), ()
    return (None, ""), ()  # CUDA_VISIBLE_DEVICES was narrowed, so its entries are counted


def _port(slurm: Slurm, environ: Mapping[str, str]) -> tuple[int, str]:
    """Return a port of this job's own: a reserved one (``srun --resv-ports``), else one computed from the job id."""
    reserved = environ.get("SLURM_STEP_RESV_PORTS", "").partition("-")[0].partition(",")[0]
    if reserved.isdigit() and 0 < int(reserved) < 65536:
        return int(reserved), "SLURM_STEP_RESV_PORTS"
    shift = (int(slurm.job) * 13 + (slurm.step or 0)) % _PORTS
    return _FIRST_PORT + shift, f"by job and step {slurm.label}"
