"""The ranks of one attempt: when each started and ended, and how.

A pidfd tells of an end without asking for it (pidfd_open(2)), in the order of the ends. torchrun looks every 0.1 s;
until it does, the rank is a zombie, and /proc shows its status.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddplaunch.agent.guard.sweep import Owner
from ddplaunch.agent.protocol import Failure, Rank
from ddplaunch.machine.files import boot_id
from ddplaunch.machine.processes.process_table import read_stat
from ddplaunch.machine.processes.stop_processes import status_of_reaped
from ddplaunch.records.first_failure import SeenEnd, ended_by, first_to_fail

if TYPE_CHECKING:
    from ddplaunch.agent.end.ended import EndedAttempt
    from ddplaunch.machine.processes.process_table import ProcessStat


class RankLife:
    """One rank. ``status`` as waitpid(2) gives it, None while it runs or where nobody saw it."""

    def __init__(self, rank: Rank) -> None:
        """A rank that was announced and has not started."""
        self.rank, self.local_rank = rank["rank"], rank["local_rank"]
        self.streams = rank["streams"]
        self.pid: int | None = None
        self.start_time: int | None = None
        self.started_s: float | None = None
        self.ended_s: float | None = None
        self.status: int | None = None
        self.told_to_end = False
        self.message = ""

    def end(self) -> SeenEnd:
        """Return what is known of its end."""
        status = self.status
        killed = status is not None and os.WIFSIGNALED(status)
        return SeenEnd(
            self.rank,
            None if status is None or killed else os.WEXITSTATUS(status),
            os.WTERMSIG(status) if status is not None and killed else None,
            self.ended_s,
            self.told_to_end,
            self.start_time is not None,
        )


class Attempt:
    """One start of this node's ranks."""

    def __init__(self, number: int, ranks: Sequence[Rank]) -> None:
        """The ranks as announced, before any runs."""
        self.number = number
        self.started_s = time.time()
        self.ended_s: float | None = None
        self.ranks = {rank["rank"]: RankLife(rank) for rank in ranks}
        self.owners: dict[int, Owner] = {}
        self.handles: dict[int, RankLife] = {}  # pidfd → rank
        self.first: SeenEnd | None = None  # the rank that failed first
        self.polled: list[RankLife] = []
        self.order: list[RankLife] = []  # of the ends
        self.ordered_to_end = False
        self.announced = False

    def started(self, pids: dict[str, int], launcher: ProcessStat | None) -> list[int]:
        """Note the pids of what ``launcher`` started; return a pidfd for each rank that can still be watched."""
        self.announced = True
        now_s = time.time()
        handles = []
        for name, pid in pids.items():
            one = self.ranks.get(int(name))
            if one is None:
                continue
            one.pid = pid
            seen = read_stat(pid)
            self.owners[pid] = Owner(pid, seen, launcher.start_ticks if launcher else 0)
            if seen is None:  # ended, and torchrun has its status already
                one.started_s = one.ended_s = now_s
                self.order.append(one)
                continue
            one.start_time, one.started_s = seen.start_ticks, seen.started_s
            try:
                handle = os.pidfd_open(pid)
            except OSError:  # a kernel before 5.3, or a sandbox
                self.polled.append(one)
                continue
            self.handles[handle] = one
            handles.append(handle)
        return handles

    def has_ended(self, handle: int) -> None:
        """Note the end of the rank behind ``handle``, and close it."""
        one = self.handles.pop(handle)
        self._note(one)
        if not one.status:  # torchrun was quicker, or the zombie's status is not for us to read
            reaped = status_of_reaped(handle)
            one.status = one.status if reaped is None else reaped
        os.close(handle)

    def look(self) -> None:
        """Note the ends of those that no pidfd tells of."""
        for one in list(self.polled):
            seen = read_stat(one.pid or 0)
            if seen is None or not seen.alive or seen.start_ticks != one.start_time:
                self.polled.remove(one)
                self._note(one)

    def _note(self, one: RankLife) -> None:
        one.ended_s = time.time()
        one.told_to_end = self.ordered_to_end
        self.order.append(one)
        if one.pid is not None and (seen := read_stat(one.pid)) and seen.start_ticks == one.start_time:
            one.status = None if seen.alive else seen.exit_status

    def complete(self, failures: Sequence[Failure], *, succeeded: bool) -> None:
        """Fill in what only torchrun saw, and decide who was first."""
        by_rank = {failure["rank"]: failure for failure in failures}
        for one in self.ranks.values():
            failure = by_rank.get(one.rank)
            if failure and failure.get("pid") in (one.pid, None):
                one.message = failure.get("message", "")
                if not one.status and (code := failure.get("exit_code")) is not None:
                    one.status = -code if code < 0 else code << 8
                    one.ended_s = one.ended_s or float(failure.get("timestamp_s", 0)) or time.time()
            elif succeeded and one.status is None and one.pid is not None:
                one.status = 0
        others = [one.end() for one in self.ranks.values() if one not in self.order]
        self.first = first_to_fail([one.end() for one in self.order], others)

    def ended(self, node_directory: str | None) -> EndedAttempt:
        """Return what is known now as values; ``node_directory`` is the node's in the record."""
        from pathlib import Path

        from ddplaunch.agent.end.ended import EndedAttempt, EndedRank

        directory = Path(node_directory or "", f"attempt-{self.number}")
        ranks = tuple(
            EndedRank(
                rank=one.rank,
                local_rank=one.local_rank,
                pid=one.pid,
                started_s=one.started_s,
                ended_s=one.ended_s,
                exit_code=end.exit_code,
                signal=end.signal,
                ended_by=ended_by(end, self.first),
                out=directory / f"rank-{one.rank}.out",
                err=directory / f"rank-{one.rank}.err" if "err" in one.streams else None,
                message=one.message,
            )
            for one in sorted(self.ranks.values(), key=lambda each: each.rank)
            for end in [one.end()]
        )
        first = None if self.first is None else self.first.rank
        return EndedAttempt(self.number, self.started_s, self.ended_s or time.time(), ranks, first)


def process_table(run_id: str | None, host: str, launcher: ProcessStat | None, attempt: Attempt) -> dict[str, Any]:
    """Return what ``processes.json`` holds; ``start_time`` tells a process from a later one of the same number."""
    own = read_stat(os.getpid())
    return {
        "schema": 1,
        "run_id": run_id,
        "host": host,
        "boot_id": boot_id() or "",
        "launcher": launcher and {"pid": launcher.pid, "start_time": launcher.start_ticks},
        "guard": own and {"pid": own.pid, "start_time": own.start_ticks},
        "attempt": attempt.number,
        "ranks": [
            {"rank": one.rank, "local_rank": one.local_rank, "pid": one.pid, "start_time": one.start_time}
            for one in attempt.ranks.values()
        ],
    }
