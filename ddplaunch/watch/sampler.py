"""Samples a run on this host once a second: the usage of each rank, its DataLoader workers and the host.

Fields are those of proc_pid_stat(5). The host's load comes from psutil. That of processes does not, because psutil
takes 0.10 ms where ``read_stat`` takes 0.015 ms, and gives neither the session nor the wait for a CPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from ddplaunch.machine.hardware import probe_cpu, probe_memory
from ddplaunch.machine.processes.process_table import (
    Process,
    ProcessStat,
    pids,
    read_stat,
    starved_s,
)
from ddplaunch.machine.sample import HostSample, RankSample
from ddplaunch.values.resolved import known


class RankUsage:
    """Samples the ranks of one attempt; each sample covers the time since the previous one."""

    def __init__(self, ranks: Mapping[int, Process], proc: str = "/proc") -> None:
        """``ranks`` are processes by rank. Read nothing yet."""
        self.ranks = dict(ranks)
        self.rank_by_pid: dict[int, int] = {}  # ranks and their children at the last call
        self._proc = proc
        self._used_s: dict[tuple[int, int], tuple[float, float]] = {}  # (pid, start) → (time on a CPU, waiting for one)
        self._at_s = 0.0

    def sample(self) -> tuple[RankSample, ...]:
        """Return a sample of each running rank. Processes that end while they are read count as ended."""
        now_s = time.monotonic()
        since_s = now_s - self._at_s if self._at_s else 0.0
        families = self._families()
        used_before, self._at_s = self._used_s, now_s
        self._used_s = {
            (stat.pid, stat.start_ticks): (stat.cpu_s, starved_s(stat.pid))
            for family in families.values()
            for stat in family
        }
        self.rank_by_pid = {stat.pid: rank for rank, family in families.items() for stat in family}
        percents = {
            pid: [
                max(0.0, 100 * (used - earlier) / since_s)
                for used, earlier in zip(now, used_before[pid, start], strict=True)
            ]
            for (pid, start), now in self._used_s.items()
            if since_s and (pid, start) in used_before
        }
        return tuple(self._rank(rank, family, percents) for rank, family in families.items())

    def _families(self) -> dict[int, list[ProcessStat]]:
        """Return, for each running rank, its process followed by the others in its session."""
        families: dict[int, list[ProcessStat]] = {}
        for rank, process in self.ranks.items():
            stat = read_stat(process.pid, self._proc)
            if stat is not None and stat.alive and stat.start_ticks == process.start_ticks:
                families[rank] = [stat]
        rank_by_session = {self.ranks[rank].pid: rank for rank in families}
        for pid in pids(self._proc):
            with suppress(OSError):  # the process has ended
                leader = os.getsid(pid)
                if leader != pid and leader in rank_by_session and (stat := read_stat(pid, self._proc)) and stat.alive:
                    families[rank_by_session[leader]].append(stat)
        return families

    def _rank(self, rank: int, family: list[ProcessStat], percents: Mapping[int, list[float]]) -> RankSample:
        own_stat, *workers = family
        cpu_percent, wait_percent = percents.get(own_stat.pid, (None, None))
        measured = [percents[stat.pid] for stat in workers if stat.pid in percents]
        local_rank = self.ranks[rank].number("LOCAL_RANK")
        return RankSample(
            rank=rank,
            local_rank=rank if local_rank is None else local_rank,
            pid=own_stat.pid,
            state=own_stat.state,
            cpu_percent=_rounded(cpu_percent),
            wait_percent=_rounded(wait_percent),
            rss_bytes=own_stat.rss_bytes,
            workers=len(workers),
            workers_cpu_percent=_sum(cpu for cpu, _ in measured),
            workers_wait_percent=_sum(wait for _, wait in measured),
        )


def _sum(percents: Iterable[float]) -> float | None:
    values = list(percents)
    return _rounded(sum(values)) if values else None


def _rounded(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 1)


def host_sample() -> HostSample:
    """Return the usage of this host; its CPU percentage is the mean since the last call, or since psutil's import."""
    import psutil  # takes 17 ms; `stacks` samples only ranks

    memory = known(probe_memory(), None)
    return HostSample(
        cpus=probe_cpu().usable,
        cpu_percent=psutil.cpu_percent(),
        memory_total_bytes=None if memory is None else memory.limit_bytes or memory.total_bytes,
        memory_available_bytes=None if memory is None else memory.available_bytes,
    )
