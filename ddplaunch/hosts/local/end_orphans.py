"""Finds and ends what dead launchers left on this machine: this user's processes, and the GPU memory that they hold."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence

from ddplaunch.machine.facts import NvmlFacts
from ddplaunch.machine.nvml import probe_nvml
from ddplaunch.machine.processes.orphans import Orphans, adopts_orphans, orphans_in
from ddplaunch.machine.processes.process_table import Process, ProcessTable
from ddplaunch.machine.processes.run_processes import within
from ddplaunch.machine.processes.stop_processes import end_processes, remaining
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable

_FREED_S = 5.0  # the driver frees memory a moment after the process is gone
_PAUSE_S = 0.1
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
    """How this user's orphans ended. ``holding`` is GPU memory that NVML still counts for processes that are gone."""

    ended: tuple[Process, ...]
    killed: tuple[Process, ...]
    remaining: tuple[Process, ...]
    holding: GpuMemory


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
    ends = end_processes(found.processes, grace_s)
    return Cleaned(*ends, holding=_still_held([*ends.ended, *ends.killed], found.gpu_memory))


def _still_held(ended: Sequence[Process], held_before: GpuMemory | Unavailable) -> GpuMemory:
    """Return the memory that the driver has not freed after some seconds."""
    if isinstance(held_before, Unavailable) or not any(process.pid in held_before for process in ended):
        return {}
    end = time.monotonic() + _FREED_S
    while True:
        pids = {process.pid for process in ended} - {process.pid for process in remaining(ended)}
        held_now = gpu_memory(pids)
        if isinstance(held_now, Unavailable) or not held_now or time.monotonic() >= end:
            return {} if isinstance(held_now, Unavailable) else held_now
        time.sleep(_PAUSE_S)
