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

#: Bytes of GPU memory, by pid and then by GPU index.
GpuMemory = Mapping[int, Mapping[int, int]]


@dataclass(frozen=True)
class Leftovers:
    """Orphans, this user's and others'; ``gpu_memory`` is what they hold, as far as it is visible."""

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
    """Return processes whose launcher is gone, only those of ``run_id`` if given, and the GPU memory that they hold."""
    spared = within(table, os.getpid())  # never end this command itself, as in a terminal that a rank started
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
    """Return the GPU memory that these processes hold, or why NVML does not report it."""
    facts, _ = probe_nvml()
    if not isinstance(facts, NvmlFacts):
        return facts
    wanted_pids, bytes_by_gpu = set(pids), dict[int, dict[int, int]]()
    for gpu in facts.gpus:
        for process in () if isinstance(gpu.processes, Unavailable) else gpu.processes:
            if process.pid in wanted_pids:
                bytes_by_gpu.setdefault(process.pid, {})[gpu.index] = process.memory_bytes or 0
    return bytes_by_gpu


def clean(found: Leftovers, grace_s: float) -> Cleaned:
    """End this user's orphans with SIGTERM, and after ``grace_s`` seconds with SIGKILL; return how each ended.

    A process is signalled only while its pid, start time and run id are those that were found.
    """
    return Cleaned(*end_processes(found.processes, grace_s))
