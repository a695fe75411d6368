"""The ranks of one attempt: when and how each started and ended.

A pidfd becomes readable when its process ends (pidfd_open(2)), so ends are seen in order, without polling. torchrun
polls every 0.1 s; until then an ended rank is a zombie, and /proc shows its status.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ddplaunch.agent.guard.sweep import Owner
from ddplaunch.agent.protocol import Rank, RankFailure
from ddplaunch.machine.files import boot_id
from ddplaunch.machine.processes.process_table import read_stat
from ddplaunch.machine.processes.stop_processes import status_of_reaped
from ddplaunch.records.first_failure import SeenEnd, first_to_fail, obeyed, steady_s, who_ended
from ddplaunch.values.words import signal_name

if TYPE_CHECKING:
    from ddplaunch.agent.end.ended import EndedAttempt
    from ddplaunch.explain.stacks.parse import RankStack
    from ddplaunch.machine.processes.process_table import ProcessStat
    from ddplaunch.planning.settings import Settings
    from ddplaunch.values.finding import Finding


class RankLife:
    """One rank. ``status`` is that of waitpid(2), None while the rank runs or if its status was not seen."""

    def __init__(self, rank: Rank) -> None:
        """Make a rank that is announced but not started."""
        self.rank, self.local_rank = rank["rank"], rank["local_rank"]
        self.streams = rank["streams"]
        self.pid: int | None = None
        self.start_time: int | None = None
        self.started_s: float | None = None
        self.ended_s: float | None = None
        self.status: int | None = None
        self.told_to_end = False
        self.closed = False  # ended by torchrun

    def end(self) -> SeenEnd:
        """Return how the rank ended, as far as it is known."""
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
        """Make the announced ranks, none of which runs yet."""
        self.number = number
        self.started_s = steady_s()
        self.ended_s: float | None = None
        self.ranks = {rank["rank"]: RankLife(rank) for rank in ranks}
        self.owners: dict[int, Owner] = {}
        self.handles: dict[int, RankLife] = {}  # pidfd → rank
        self.first: SeenEnd | None = None  # the rank that failed first
        self.order: list[RankLife] = []  # in which they ended
        self.ordered_to_end = False
        self.unasked = False  # whether torchrun ended it before a signal told it to: a rank had failed
        self.stacks: tuple[RankStack, ...] = ()  # where ranks were when a collective timed out
        self.hung: tuple[Finding, ...] = ()  # what was said of a hang that lasts

    def started(self, pids: dict[str, int], launcher: ProcessStat | None) -> list[int]:
        """Note the pids of the ranks that ``launcher`` started; return a pidfd for each that can still be watched."""
        now_s = steady_s()
        handles = []
        for name, pid in pids.items():
            one = self.ranks[int(name)]
            one.pid = pid
            seen = read_stat(pid)
            self.owners[pid] = Owner(pid, seen, launcher.start_ticks if launcher else 0)
            if seen is None:  # it has ended, and torchrun has reaped it
                one.started_s = one.ended_s = now_s
                self.order.append(one)
                continue
            one.start_time, one.started_s = seen.start_ticks, now_s
            try:
                handle = os.pidfd_open(pid)
            except OSError:  # a kernel before 5.3, or a sandbox: torchrun reports the end instead
                continue
            self.handles[handle] = one
            handles.append(handle)
        return handles

    def pids(self) -> dict[int, int]:
        """Return the pids of the ranks that have started, and were not seen to end."""
        return {one.rank: one.pid for one in self.ranks.values() if one.pid is not None and one.ended_s is None}

    def running(self) -> list[ProcessStat]:
        """Return the ranks that run now."""
        found = ((owner, read_stat(owner.pid)) for owner in self.owners.values())
        return [seen for owner, seen in found if seen and seen.alive and seen.start_ticks == owner.start]

    def has_ended(self, handle: int) -> None:
        """Note the end of the rank whose pidfd is ``handle``, and close the pidfd."""
        one = self.handles.pop(handle)
        one.ended_s = steady_s()
        one.told_to_end = self.ordered_to_end
        self.order.append(one)
        if one.pid is not None and (seen := read_stat(one.pid)) and seen.start_ticks == one.start_time:
            one.status = None if seen.alive else seen.exit_status
        if (reaped := status_of_reaped(handle)) is not None:  # torchrun, or init, was quicker
            one.status = reaped
        os.close(handle)

    def close(self, pids: Sequence[int], signal: int | None) -> None:
        """Note that torchrun ends the ranks with these ``pids``, whatever status they end with.

        ``signal`` told it to, unless it is None.
        """
        self.unasked |= not signal
        for one in self.ranks.values():
            one.closed |= one.pid in pids

    def complete(self, failures: Sequence[RankFailure], *, succeeded: bool) -> None:
        """Fill in statuses that only torchrun saw, and decide which rank failed first."""
        by_rank = {failure["rank"]: failure for failure in failures}
        for one in self.ranks.values():
            failure = by_rank.get(one.rank)
            if failure and failure["pid"] == one.pid:
                if not one.status:
                    code = failure["exit_code"]
                    one.status = -code if code < 0 else code << 8
                    one.ended_s = one.ended_s or float(failure["timestamp_s"]) or steady_s()
            elif succeeded and one.status is None:
                one.status = 0
        others = [one for one in self.ranks.values() if one not in self.order]
        ordered, unordered = ([one.end() for one in ranks if not one.closed] for ranks in (self.order, others))
        self.first = first_to_fail(ordered, unordered)
        # schedulers signal ranks and torchrun at once: a rank that obeyed had not failed before
        self.unasked &= self.first is not None and not obeyed(self.first)

    def ended(self, settings: Settings, host: str, unwritten: Mapping[str, bytes]) -> EndedAttempt:
        """Return the attempt as it is known now.

        ``unwritten`` is output that could not be written, by its file's name in the node's directory.
        """
        from ddplaunch.agent.end.ended import EndedAttempt
        from ddplaunch.records.directory import read_through
        from ddplaunch.records.outcome import RankOutcome

        folder = f"node-{settings.node}/attempt-{self.number}"
        ranks = tuple(
            RankOutcome(
                rank=one.rank,
                local_rank=one.local_rank,
                host=host,
                pid=one.pid,
                exit_code=end.exit_code,
                signal=None if end.signal is None else signal_name(end.signal),
                started_s=one.started_s,
                ended_s=one.ended_s,
                ended_by="launcher" if one.closed else who_ended(end, self.first),
                out=f"{folder}/rank-{one.rank}.out" if "out" in one.streams else None,
                err=f"{folder}/rank-{one.rank}.err" if "err" in one.streams else None,
                through=read_through(f"{settings.directory}/{folder}/rank-{one.rank}.through")
                if end.signal == signal.SIGABRT
                else None,
            )
            for one in sorted(self.ranks.values(), key=lambda each: each.rank)
            for end in [one.end()]
        )
        kept = {f"node-{settings.node}/{name}": data for name, data in unwritten.items()}
        return EndedAttempt(
            self.number,
            self.started_s,
            self.ended_s or steady_s(),
            ranks,
            None if self.first is None else self.first.rank,
            kept,
            self.stacks,
            self.hung,
        )


def processes_note(run_id: str | None, host: str, launcher: ProcessStat | None, attempt: Attempt) -> str:
    """Return the text of ``processes.json``, from which `ps` and `clean` recognise ranks.

    ``start_time`` tells a process from a later one with the same pid.
    """
    own = read_stat(os.getpid())
    processes = {
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
    return json.dumps(processes, indent=2) + "\n"
