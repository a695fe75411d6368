"""Watches from outside whether ranks make progress, and how long the run may take.

A run makes progress while any rank prints, reads or writes a file, sends data in a collective, makes an optimizer step
or asks for a batch. If none of these happens for the whole time-out, ``hang_report.hangs`` compares stacks taken
meanwhile.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ddplaunch.agent.guard.attempt import Attempt
from ddplaunch.agent.guard.loop import Guarding
from ddplaunch.agent.guard.rank_streams import Streams
from ddplaunch.machine.files import read_bytes
from ddplaunch.machine.processes.process_table import io_bytes_of, own_processes, starved_s

if TYPE_CHECKING:
    from ddplaunch.explain.diagnosis import Diagnosis
    from ddplaunch.explain.stacks.parse import RankStack

#: Below this share of a core a rank counts as idle: watchdogs, polls with pauses and monitors use less.
_IDLE_SHARE = 0.05
#: Below this rate a rank with its child processes counts as neither reading nor writing.
_IDLE_BYTES_PER_S = 32 << 10
#: Names of the threads in which torch and gloo send a collective's data (since torch 2.5); NCCL does not use files.
_COLLECTIVE = (b"pt_gloo_runloop", b"gloo_tcp_loop")


class Usage(NamedTuple):
    """CPU seconds and bytes that each rank with its child processes has used until ``at_s`` (time.monotonic())."""

    at_s: float
    cpu_s: Mapping[int, float]
    io_bytes: Mapping[int, int]


class Look(NamedTuple):
    """All ranks' stacks at one time, and their usage before and after taking these, which itself costs them CPU."""

    before: Usage
    stacks: tuple[RankStack, ...]
    after: Usage


def shares(looks: Sequence[Look]) -> dict[int, float]:
    """Return how much of a core each rank used between the looks; empty for fewer than two looks.

    A rank that reads or writes a lot counts as using a core.
    """
    gaps = [(earlier.after, later.before) for earlier, later in pairwise(looks)]
    seconds = sum(end.at_s - begin.at_s for begin, end in gaps)
    by_rank = {}
    for rank in looks[-1].before.cpu_s if gaps else ():
        share = sum(end.cpu_s[rank] - begin.cpu_s[rank] for begin, end in gaps) / seconds
        rate = sum(end.io_bytes[rank] - begin.io_bytes[rank] for begin, end in gaps) / seconds
        by_rank[rank] = max(share, 1.0) if rate > _IDLE_BYTES_PER_S else max(share, 0.0)
    return by_rank


def idle(used: Mapping[int, float]) -> frozenset[int]:
    """Return the ranks that use almost no CPU."""
    return frozenset(rank for rank, share in used.items() if share < _IDLE_SHARE)


def usage_of(ranks: Mapping[int, int]) -> Usage:
    """Return the usage of each rank in ``ranks`` (rank to pid) and of its session since they started.

    CPU time includes ended children, and the time that the main thread waited for a CPU on a busy machine:
    proc_pid_stat(5) fields 12 and 14 to 17, https://docs.kernel.org/scheduler/sched-stats.html. Bytes are those of
    proc_pid_io(5) plus pages that were read in (major faults).
    """
    # Not psutil: it knows neither the wait for a CPU nor the faults, its import takes 23 ms of CPU and 1.8 MiB, and the
    # guard's interpreter (``python -ISE``) has no site-packages. A sample among 96 processes: 0.13 ms, psutil 0.3 ms.
    by_pid = {pid: rank for rank, pid in ranks.items()}
    cpu_s = dict.fromkeys(ranks, 0.0)
    io_bytes = dict.fromkeys(ranks, 0)
    for stat in own_processes():
        rank = by_pid.get(stat.pid, by_pid.get(stat.session))
        if rank is not None:
            cpu_s[rank] += stat.cpu_s + stat.children_cpu_s + starved_s(stat.pid)
            io_bytes[rank] += io_bytes_of(stat.pid) + stat.major_fault_bytes
    return Usage(time.monotonic(), cpu_s, io_bytes)


class RankWork:
    """Counts that change only while ranks make progress: file reads and writes, collectives' data, steps, batches."""

    def __init__(self) -> None:
        """Know no rank yet."""
        self.moved_s = 0.0  # when a rank was last seen to make progress
        self._seen: dict[int, tuple[int, ...]] = {}
        self._memories: dict[int, tuple[int, int]] = {}  # by a rank's pid: its interpreter's pid, and a descriptor

    def look(self, pids: Iterable[int], *, counts: bool = True) -> None:
        """Note whether any rank made progress since the last look; ``counts`` False: ignore it, we caused it."""
        before, self._seen = self._seen, {pid: self._look(pid) for pid in pids}
        if counts and any(pid in before and before[pid] != now for pid, now in self._seen.items()):
            self.moved_s = time.monotonic()

    def steps(self, pids: Iterable[int]) -> int:
        """Return the highest number of an optimizer step of any rank, 0 if there was none or they are not counted."""
        return max((self._counted(pid)[0] for pid in pids), default=0)

    def find(self, pids: Collection[int]) -> None:
        """Open the shared memory in which ranks count steps, once it exists: an interpreter takes a while to start."""
        for pid in self._memories.keys() - set(pids):
            os.close(self._memories.pop(pid)[1])
        if len(self._memories) == len(pids):
            return
        from ddplaunch.hosts.local.rank_stacks import open_memory

        for pid in pids:
            if pid not in self._memories and (found := open_memory(pid)) is not None:
                self._memories[pid] = found

    def _look(self, pid: int) -> tuple[int, ...]:
        """Return a rank's counts; bytes are those of main thread and collectives, as other threads may poll forever."""
        rank_pid, _ = self._memories.get(pid, (pid, None))
        threads = (f"{rank_pid}/task/{thread}" for thread in (rank_pid, *_collective_threads(rank_pid)))
        return (*self._counted(pid), sum(map(io_bytes_of, threads)))

    def _counted(self, pid: int) -> tuple[int, int]:
        data = os.pread(self._memories[pid][1], 16, 0) if pid in self._memories else b""
        return int.from_bytes(data[:8], sys.byteorder), int.from_bytes(data[8:], sys.byteorder)


def _collective_threads(pid: int) -> list[str]:
    """Return the ids of the threads in which collectives run."""
    try:
        names = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return []
    return [name for name in names if (read_bytes(f"/proc/{pid}/task/{name}/comm") or b"").startswith(_COLLECTIVE)]


_LOOKS, _MOST_LOOKS = 4, 8  # samples of stacks: per time-out, and the most that are compared


class HangWatch:
    """One run's time-outs: ``hang_timeout_s`` and ``timeout_s`` of the settings, in seconds."""

    def __init__(
        self, run: Guarding, streams: Streams, host: str, began_s: float, stop: Callable[[Diagnosis], None]
    ) -> None:
        """Begin to watch; the run's time counts from ``began_s`` (epoch), also for a replaced guard.

        ``stop`` ends the run.
        """
        self._run, self._streams, self._host, self._stop = run, streams, host, stop
        settings, now_s = run.settings, time.monotonic()
        if settings.timeout_s is not None:
            at_s = now_s + settings.timeout_s - max(0.0, time.time() - began_s)
            run.loop.at(at_s, lambda: run.aside(self._end_in_time, "the time limit could not be kept"))
        self._hang_s = settings.hang_timeout_s or math.inf
        self._every_s = min(15.0, max(0.1, self._hang_s / 40))
        if settings.hang_timeout_s is not None:
            run.loop.at(now_s, self._tick)
        self._attempt: Attempt | None = None
        self._began_s = now_s
        self._told_s: float | None = None
        self._work = RankWork()
        self._looks: list[Look] = []
        self._look_s = 0.0

    def _tick(self) -> None:
        """Measure progress, and compare stacks if there was none for half of the time-out."""
        self._measure()
        now_s = time.monotonic()
        if not self._pids() or self._silent_s() < self._hang_s / 2:
            self._looks.clear()
        elif self._told_s is None and now_s >= self._look_s:
            self._look_s = now_s + self._hang_s / _LOOKS
            self._run.aside(self._look, "ranks could not be looked at")
            return
        self._run.loop.at(now_s + self._every_s, self._tick)

    def _silent_s(self) -> float:
        """Return for how many seconds no rank has made progress."""
        if self._streams.without is not None:
            return 0.0  # their output is not seen, so they may be printing
        return time.monotonic() - max(self._began_s, self._streams.heard_s, self._work.moved_s)

    def _pids(self) -> dict[int, int]:
        return self._attempt.pids() if self._attempt else {}

    def _measure(self) -> None:
        attempt = self._run.latest()
        if attempt and not attempt.owners:
            attempt = None
        if attempt is not self._attempt:
            self._attempt, self._began_s, self._told_s = attempt, time.monotonic(), None
        pids = self._pids()
        self._work.find(pids.values())
        self._work.look(pids.values())
        if self._told_s is not None and time.monotonic() - self._silent_s() > self._told_s:
            self._told_s = None  # the run makes progress again, and a new hang is reported again
            if attempt and not attempt.ordered_to_end:  # else they only print how they are ended
                attempt.hung = ()

    # Called in a thread: stacks take seconds, and ranks' output must not wait for them

    def _look(self) -> None:
        try:
            self._compare()
        finally:
            self._run.loop.at(time.monotonic() + self._every_s, self._tick)

    def _compare(self) -> None:
        """Sample stacks once more; report or stop a hang if nothing has changed for the whole time-out."""
        from ddplaunch.agent.guard.hang_report import IDLE_LOOKS, describe, hangs, take, warning_of, write_stacks
        from ddplaunch.ui.speech import finding_text
        from ddplaunch.ui.terminal import Terminal

        pids = self._pids()
        self._work.look(pids.values())
        silent_s, before = self._silent_s(), usage_of(pids)
        stacks = take(pids)
        self._work.look(pids.values(), counts=False)  # writing their stacks is not progress
        alike = self._looks if self._looks and self._looks[-1].before.cpu_s.keys() == pids.keys() else []
        self._looks = [*alike, Look(before, stacks, usage_of(pids))][-_MOST_LOOKS:]
        used, steps = shares(self._looks[-IDLE_LOOKS:]), self._work.steps(pids.values())
        attempt, seen = self._attempt, [look.stacks for look in self._looks]
        if attempt is None or silent_s < self._hang_s or not hangs(seen, idle(used), stepped=steps > 0):
            return
        diagnosis = describe(stacks, attempt.ranks, silent_s, used, steps, self._host, self._folder())
        if self._silent_s() < silent_s or self._run.latest() is None:
            return
        stacks_file = write_stacks(stacks, self._run.settings.node_directory)
        self._told_s = time.monotonic()
        if self._run.settings.on_hang == "stop":
            self._stop(diagnosis)
        else:
            attempt.hung = (warning_of(diagnosis, stacks_file),)
            self._run.say(finding_text(*attempt.hung, Terminal.of(sys.stderr)))

    def _end_in_time(self) -> None:
        from ddplaunch.agent.guard.hang_report import take, time_is_up, write_stacks

        self._measure()
        stacks = take(self._pids())
        write_stacks(stacks, self._run.settings.node_directory)
        self._stop(time_is_up(stacks, self._run.settings.timeout_s or 0.0, self._folder()))

    def _folder(self) -> str | None:
        """Return the folder of the attempt's output, None without one."""
        node = self._run.settings.node_directory
        return f"{node}/attempt-{self._attempt.number}" if self._attempt and node else None
