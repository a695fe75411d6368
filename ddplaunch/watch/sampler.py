"""Takes samples of a run on this host: what each rank, its DataLoader workers and the host use, once a second.

A process that is no rank's is read once, then known by its absence from the ranks' sessions. Fields are those of
proc_pid_stat(5) and proc_pid_status(5). The host's counters come from psutil, those of processes do not: for what
``read_stat`` takes 0.015 ms, psutil takes 0.10 ms, and it knows neither the session nor the wait for a CPU.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.machine.files import look_beside, names, read_bytes
from ddplaunch.machine.hardware import probe_cpu, probe_memory
from ddplaunch.machine.processes.process_table import ProcessStat, pids, read_stat, read_variable
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import known
from ddplaunch.watch.gpu_usage import GpuOfRank, GpuUsage
from ddplaunch.watch.samples import HostSample, Progress, RankIdentity, RankSample, Sample

_PSS_EVERY_S = 10.0
_PSS_MAX_S = 0.02  # the kernel walks the page tables under a lock that the process's own mmap(2) wants too
_NO_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd)\d*")  # stacked on disks, or none: they would count twice
_IO = (b"read_bytes:", b"write_bytes:")
_ProgressOf = Callable[[], dict[int, Progress]]


class Sampler:
    """One attempt's ranks, the GPUs and this host. ``progress`` tells what the ranks' output says of their steps."""

    def __init__(
        self,
        ranks: Sequence[RankIdentity],
        attempt: int,
        host: str,
        progress: _ProgressOf,
        gpus: GpuUsage,
    ) -> None:
        """Read nothing yet."""
        self._attempt, self._host_name = attempt, host
        self._ranks, self._host = RankUsage(ranks), HostUsage()
        self._gpus, self._places = gpus, GpuOfRank(ranks)
        self._progress = progress

    def sample(self) -> Sample:
        """Return what is now; no ranks in it means that none runs any more."""
        ranks = self._ranks.sample()
        reading = self._gpus.sample()
        progress = self._progress()
        placed, gpus = self._places.place(ranks, reading, self._ranks.members)
        return Sample(
            at_s=round(time.time(), 3),
            name=self._host_name,
            attempt=self._attempt,
            host=self._host.sample(),
            ranks=tuple(_with_steps(rank, progress.get(rank.rank)) for rank in placed),
            gpus=gpus,
            no_gpus=reading.reason,
        )


def _with_steps(rank: RankSample, progress: Progress | None) -> RankSample:
    if progress is None:
        return rank
    phases: dict[str, Any] = {f"{name}_percent": share for name, share in progress.phases.items()}
    return replace(rank, step=progress.step, step_rate=progress.rate, loss=progress.loss, **phases)


@dataclass(frozen=True)
class _Used:
    """What a process has used so far."""

    cpu_s: float
    wait_s: float | None

    def since(self, before: _Used | None, span_s: float) -> tuple[float | None, float | None]:
        """Return percent of the time on a CPU, and waiting for one."""
        if before is None or not span_s:
            return None, None
        waited = None if self.wait_s is None or before.wait_s is None else self.wait_s - before.wait_s
        cpu = _rounded(100 * (self.cpu_s - before.cpu_s) / span_s)
        return cpu, None if waited is None else _rounded(100 * waited / span_s)


class RankUsage:
    """Reads the ranks of one attempt; each call tells what was used since the call before."""

    def __init__(self, ranks: Sequence[RankIdentity], proc: str = "/proc") -> None:
        """Read nothing yet."""
        self._proc = proc
        self.ranks = tuple(ranks)
        self._by_pid = {rank.pid: rank for rank in ranks}
        self._strangers: set[int] = set()
        self._used: dict[tuple[int, int], _Used] = {}  # by pid and start
        self._io: dict[int, dict[bytes, int]] = {}
        self._at_s = 0.0
        self._pss: dict[int, int] = {}
        self._pss_due_s = 0.0
        self._omp = {rank.pid: _omp_threads(rank.pid, proc) for rank in ranks}
        self.members: dict[int, int] = {}  # pid → rank, of the ranks and their children, as of the last call

    def sample(self) -> tuple[RankSample, ...]:
        """Return the ranks that still run. Processes that end while they are read count as ended."""
        now_s = time.monotonic()
        since_s = now_s - self._at_s if self._at_s else 0.0
        families = self._families()
        used: dict[tuple[int, int], _Used] = {}
        self._read_pss(families, now_s)
        found = [self._rank(rank, families[rank.pid], since_s, used) for rank in self.ranks if rank.pid in families]
        self._used, self._at_s = used, now_s
        self.members = {pid: self._by_pid[leader].rank for leader, family in families.items() for pid in family}
        return tuple(found)

    def _families(self) -> dict[int, dict[int, ProcessStat]]:
        """Return, for each rank that runs, its processes: those whose session it leads.

        Ranks that were forked (``--start-method fork``) lead none: theirs are those that they forked in turn.
        """
        families: dict[int, dict[int, ProcessStat]] = {}
        leader_of: dict[int, int] = {}
        present = set(pids(self._proc))
        self._strangers &= present
        for pid in sorted(present - self._strangers, key=lambda pid: (pid not in self._by_pid, pid)):
            rank = self._by_pid.get(pid)
            stat = read_stat(pid, self._proc)
            if stat is None or not stat.alive:
                continue
            if rank is not None:
                if stat.start_ticks == rank.start_ticks:
                    families[pid], leader_of[pid] = {pid: stat}, pid
                continue
            leader = stat.session if stat.session in families else leader_of.get(stat.parent)
            if leader is not None and stat.session != pid:
                families[leader][pid], leader_of[pid] = stat, leader
            else:
                self._strangers.add(pid)
        return families

    def _rank(
        self, rank: RankIdentity, family: dict[int, ProcessStat], since_s: float, used: dict[tuple[int, int], _Used]
    ) -> RankSample:
        cpu, wait = {}, {}
        for pid, stat in family.items():
            key = (pid, stat.start_ticks)
            used[key] = now = _Used(stat.cpu_s, _wait_s(f"{self._proc}/{pid}/schedstat"))
            cpu[pid], wait[pid] = now.since(self._used.get(key), since_s)
        own = family[rank.pid]
        workers = [pid for pid in family if pid != rank.pid]
        read_s, write_s = self._io_rates(rank.pid, since_s)
        return RankSample(
            rank=rank.rank,
            local_rank=rank.local_rank,
            pid=rank.pid,
            state=own.state,
            cpu_percent=cpu[rank.pid],
            rss_bytes=own.rss_bytes,
            anon_bytes=_anon_bytes(f"{self._proc}/{rank.pid}/status"),
            pss_bytes=self._pss.get(rank.pid),
            threads=own.threads,
            omp_threads=self._omp.get(rank.pid),
            workers=len(workers),
            workers_cpu_percent=_sum(cpu[pid] for pid in workers),
            workers_rss_bytes=sum(family[pid].rss_bytes for pid in workers),
            wait_percent=wait[rank.pid],
            workers_wait_percent=_sum(wait[pid] for pid in workers),
            read_bytes_s=read_s,
            write_bytes_s=write_s,
        )

    def _io_rates(self, pid: int, since_s: float) -> tuple[float | None, float | None]:
        """Return what the rank itself caused to be read from and written to disks, proc_pid_io(5)."""
        now = _pairs(f"{self._proc}/{pid}/io", _IO)
        if len(now) < len(_IO):  # another user's, or gone
            return None, None
        before, self._io[pid] = self._io.get(pid), now
        if before is None or not since_s:
            return None, None
        read, written = (round((now[name] - before[name]) / since_s) for name in _IO)
        return read, written

    def _read_pss(self, families: dict[int, dict[int, ProcessStat]], now_s: float) -> None:
        """Read the proportional sizes now and then, and give up where that takes the kernel long."""
        if now_s < self._pss_due_s:
            return
        self._pss_due_s = now_s + _PSS_EVERY_S
        for leader, family in families.items():
            began_s = time.thread_time()
            sizes = [_pairs(f"{self._proc}/{pid}/smaps_rollup", (b"Pss:",)).get(b"Pss:") for pid in family]
            self._pss.pop(leader, None)
            if sizes and None not in sizes:
                self._pss[leader] = 1024 * sum(size for size in sizes if size is not None)
            if time.thread_time() - began_s > _PSS_MAX_S * len(family):
                self._pss, self._pss_due_s = {}, float("inf")
                return


def _anon_bytes(path: str) -> int | None:
    """Return what belongs to the process alone but for forks: heaps and tensors, not libraries and mapped files."""
    kib = _pairs(path, (b"RssAnon:",)).get(b"RssAnon:")
    return None if kib is None else kib * 1024


def _omp_threads(pid: int, proc: str) -> int | None:
    first = (read_variable(pid, b"OMP_NUM_THREADS", proc) or b"").split(b",")[0].strip()  # a list: nested regions
    return int(first) if first.isdigit() and len(first) < 6 else None


def _pairs(path: str, names: tuple[bytes, ...]) -> dict[bytes, int]:
    """Return the numbers behind these words, each at the beginning of a line."""
    found = {}
    for line in (read_bytes(path) or b"").splitlines():
        words = line.split()
        if len(words) > 1 and words[0] in names and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found


def _wait_s(path: str) -> float | None:
    """Return how long the main thread waited for a CPU so far: https://docs.kernel.org/scheduler/sched-stats.html."""
    words = (read_bytes(path) or b"").split()
    return int(words[1]) / 1e9 if len(words) > 1 and words[1].isdigit() else None


def waited_s(pid: int, proc: str = "/proc") -> float:
    """Return how long the threads that a process has now waited for a CPU so far, all together."""
    folder = f"{proc}/{pid}/task"
    return sum(_wait_s(f"{folder}/{name}/schedstat") or 0.0 for name in names(folder))


def _sum(percents: Iterable[float | None]) -> float | None:
    known = [each for each in percents if each is not None]
    return _rounded(sum(known)) if known else None


def _rounded(value: float) -> float:
    return round(max(0.0, value), 1)


class HostUsage:
    """Reads the counters; each call tells what happened since the call before."""

    def __init__(self, root: str = "/") -> None:
        """Read nothing yet but what does not change."""
        self._root = root.rstrip("/")
        self._cpus = probe_cpu(Path(root)).usable
        self._before: dict[str, float] = {}
        self._at_s = 0.0
        self._disks: dict[str, bool] = {}

    def sample(self) -> HostSample:
        """Return the state now and the rates since the last call."""
        now_s = time.monotonic()
        counters = self._counters()
        grown = {name: value - self._before[name] for name, value in counters.items() if name in self._before}
        since_s = now_s - self._at_s
        self._before, self._at_s = counters, now_s
        memory = known(probe_memory(Path(self._root or "/")), None)
        return HostSample(
            cpus=self._cpus,
            cpu_percent=round(100 * grown["busy"] / grown["all"], 1) if grown.get("all") else None,
            memory_total_bytes=None if memory is None else memory.limit_bytes or memory.total_bytes,
            memory_available_bytes=None if memory is None else memory.available_bytes,
            received_bytes_s=_rate(grown.get("received"), since_s),
            sent_bytes_s=_rate(grown.get("sent"), since_s),
            disk_read_bytes_s=_rate(grown.get("read"), since_s),
            disk_write_bytes_s=_rate(grown.get("written"), since_s),
        )

    def _counters(self) -> dict[str, float]:
        look_beside()
        try:
            import psutil  # 17 ms, once: `stacks` and the guard need only the ranks
        except ImportError:  # brought to a host of another kind
            return {}

        found: dict[str, float] = {}
        with suppress(OSError, ValueError):  # idle and iowait are not busy, guests are part of user: proc_stat(5)
            ticks = psutil.cpu_times()[:8]
            found |= {"all": sum(ticks), "busy": sum(ticks) - sum(ticks[3:5])}
        with suppress(OSError, ValueError):
            networks = psutil.net_io_counters(pernic=True, nowrap=False)
            outside = [each for name, each in networks.items() if name != "lo"]
            found["received"] = sum(each.bytes_recv for each in outside)
            found["sent"] = sum(each.bytes_sent for each in outside)
        with suppress(OSError, ValueError, NotImplementedError):
            disks = psutil.disk_io_counters(perdisk=True, nowrap=False)
            whole = [each for name, each in disks.items() if self._is_disk(name)]
            found["read"] = sum(each.read_bytes for each in whole)
            found["written"] = sum(each.write_bytes for each in whole)
        return found

    def _is_disk(self, name: str) -> bool:
        """Whether it is a whole disk: partitions are not in /sys/block."""
        if name not in self._disks:
            whole = os.path.isdir(f"{self._root}/sys/block/{name}")  # noqa: PTH112 - called for each new name
            self._disks[name] = whole and _NO_DISK.fullmatch(name) is None
        return self._disks[name]


def _rate(grown: float | None, since_s: float) -> float | None:
    return round(grown / since_s) if grown is not None and grown >= 0 and since_s > 0 else None
