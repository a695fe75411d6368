"""Finds and ends what dead launchers left on this machine: this user's processes, and the GPU memory that they hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ddplaunch.machine.facts import NvmlFacts
from ddplaunch.machine.nvml import probe_nvml
from ddplaunch.machine.processes.orphans import Orphans, adopts_orphans, orphans_in
from ddplaunch.machine.processes.process_table import Process, ProcessTable
from ddplaunch.machine.processes.run_processes import within
from ddplaunch.machine.processes.stop_processes import end_processes
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable

#: Bytes of GPU memory by GPU index, by pid.
GpuMemory = Mapping[int, Mapping[int, int]]


@dataclass(frozen=True)
class Leftovers:
    """Orphans, this user's and others'; ``gpu_memory`` is what they hold, as far as can be seen."""

    own: tuple[Orphans, ...]
    others: tuple[Orphans, ...]
    gpu_memory: GpuMemory | Unavailable

    @property
    def processes(self) -> tuple[Process, ...]:
        """All processes of this user's orphans."""
        return tuple(process for group in self.own for process in group.processes)


@dataclass(frozen=True)
class Cleaned:
    """How this user's orphans ended."""

    ended: tuple[Process, ...]
    killed: tuple[Process, ...]
    remaining: tuple[Process, ...]


def leftovers(table: ProcessTable, uid: int, run_id: str | None = None) -> Leftovers:
    """Look for processes whose launcher is gone, of one run if ``run_id`` names it, and for what they hold."""
    spared = within(table, os.getpid())  # a shell in a terminal that a rank started, say
    groups = [
        group
        for group in orphans_in(table, adopts_orphans)
        if run_id in (None, group.run_id) and spared.isdisjoint(process.pid for process in group.processes)
    ]
    own_groups = tuple(group for group in groups if group.processes[0].uid == uid)
    other_groups = tuple(group for group in groups if group.processes[0].uid != uid)
    pids = [process.pid for group in groups for process in group.processes]
    memory: GpuMemory | Unavailable = gpu_memory(pids) if pids else {}
    return Leftovers(own_groups, other_groups, memory)


def gpu_memory(pids: Iterable[int]) -> GpuMemory | Unavailable:
    """Return the GPU memory of these processes, or why NVML does not tell."""
    facts, _ = probe_nvml(details=True)
    if not isinstance(facts, NvmlFacts):
        return facts
    wanted_pids, bytes_by_gpu = set(pids), dict[int, dict[int, int]]()
    for gpu in facts.gpus:
        for process in () if isinstance(gpu.processes, Unavailable) else gpu.processes:
            if process.pid in wanted_pids:
                bytes_by_gpu.setdefault(process.pid, {})[gpu.index] = process.memory_bytes or 0
    return bytes_by_gpu


def clean(found: Leftovers, grace_s: float) -> Cleaned:
    """End this user's orphans: SIGTERM, after ``grace_s`` seconds SIGKILL.

    Each signal goes to a process whose pid, start time and run id are still those that were found.
    """
    return Cleaned(*end_processes(found.processes, grace_s))
