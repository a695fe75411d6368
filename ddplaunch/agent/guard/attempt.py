"""The ranks of one attempt: when each started and ended, and how, and what they note of their numbers.

A pidfd tells of an end without asking for it (pidfd_open(2)), in the order of the ends. torchrun looks every 0.1 s;
until it does, the rank is a zombie, and /proc shows its status.
"""

from __future__ import annotations

import _thread
import contextlib
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddplaunch.agent.guard.sweep import Owner
from ddplaunch.agent.protocol import Rank, RankFailure
from ddplaunch.machine.files import boot_id
from ddplaunch.machine.processes.process_table import read_stat
from ddplaunch.machine.processes.stop_processes import status_of_reaped
from ddplaunch.records.directory import read_through, through_path
from ddplaunch.records.first_failure import SeenEnd, first_to_fail, steady_s, who_ended
from ddplaunch.records.json_files import replace_file
from ddplaunch.values.words import signal_name

if TYPE_CHECKING:
    from ddplaunch.agent.end.ended import EndedAttempt
    from ddplaunch.explain.stacks.parse import RankStack
    from ddplaunch.machine.processes.process_table import ProcessStat
    from ddplaunch.planning.settings import Settings
    from ddplaunch.values.finding import Finding


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
        self.started_s = steady_s()
        self.ended_s: float | None = None
        self.ranks = {rank["rank"]: RankLife(rank) for rank in ranks}
        self.owners: dict[int, Owner] = {}
        self.handles: dict[int, RankLife] = {}  # pidfd → rank
        self.first: SeenEnd | None = None  # the rank that failed first
        self.order: list[RankLife] = []  # of the ends
        self.ordered_to_end = False
        self.announced = False
        self.stacks: tuple[RankStack, ...] = ()  # where ranks were when a collective timed out

    def started(self, pids: dict[str, int], launcher: ProcessStat | None) -> list[int]:
        """Note the pids of what ``launcher`` started; return a pidfd for each rank that can still be watched."""
        self.announced = True
        now_s = steady_s()
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
            one.start_time, one.started_s = seen.start_ticks, now_s
            try:
                handle = os.pidfd_open(pid)
            except OSError:  # a kernel before 5.3, or a sandbox: what torchrun says of the end counts
                continue
            self.handles[handle] = one
            handles.append(handle)
        return handles

    def running(self) -> list[ProcessStat]:
        """Return the ranks that run now."""
        found = ((owner, read_stat(owner.pid)) for owner in self.owners.values())
        return [seen for owner, seen in found if seen and seen.alive and seen.start_ticks == owner.start]

    def has_ended(self, handle: int) -> None:
        """Note the end of the rank behind ``handle``, and close it."""
        one = self.handles.pop(handle)
        self._note(one)
        if not one.status:  # torchrun was quicker, or the zombie's status is not for us to read
            reaped = status_of_reaped(handle)
            one.status = one.status if reaped is None else reaped
        os.close(handle)

    def looking_around(self, node_directory: str | None) -> Callable[[], object]:
        """Return what notes, in a thread, where the ranks are when a collective timed out: there will be little time.

        What it needs takes 80 ms to import, which is less than a rank needs to end and torchrun to notice.
        """

        def work() -> None:
            with contextlib.suppress(Exception):
                importlib.import_module("ddplaunch.agent.guard.hang_report").look_around(self, node_directory)

        return lambda: _thread.start_new_thread(work, ())

    def _note(self, one: RankLife) -> None:
        one.ended_s = steady_s()
        one.told_to_end = self.ordered_to_end
        self.order.append(one)
        if one.pid is not None and (seen := read_stat(one.pid)) and seen.start_ticks == one.start_time:
            one.status = None if seen.alive else seen.exit_status

    def complete(self, failures: Sequence[RankFailure], *, succeeded: bool) -> None:
        """Fill in what only torchrun saw, and decide who was first."""
        by_rank = {failure["rank"]: failure for failure in failures}
        for one in self.ranks.values():
            failure = by_rank.get(one.rank)
            if failure and failure.get("pid") in (one.pid, None):
                if not one.status and (code := failure.get("exit_code")) is not None:
                    one.status = -code if code < 0 else code << 8
                    one.ended_s = one.ended_s or float(failure.get("timestamp_s", 0)) or steady_s()
            elif succeeded and one.status is None and one.pid is not None:
                one.status = 0
        others = [one.end() for one in self.ranks.values() if one not in self.order]
        self.first = first_to_fail([one.end() for one in self.order], others)

    def ended(self, node: int, host: str, unwritten: Mapping[str, bytes], directory: str | None = None) -> EndedAttempt:
        """Return what is known now as values; ``node`` is the number of this ``host`` in the record.

        ``unwritten`` is what is in no file, by the file's name in the node's ``directory``.
        """
        from ddplaunch.agent.end.ended import EndedAttempt
        from ddplaunch.records.outcome import RankOutcome

        folder = f"node-{node}/attempt-{self.number}"
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
                ended_by=who_ended(end, self.first),
                out=f"{folder}/rank-{one.rank}.out" if "out" in one.streams else None,
                err=f"{folder}/rank-{one.rank}.err" if "err" in one.streams else None,
                through=read_through(_note_of_end(directory or "", self.number, one.rank))
                if end.signal == signal.SIGABRT
                else None,
            )
            for one in sorted(self.ranks.values(), key=lambda each: each.rank)
            for end in [one.end()]
        )
        first = None if self.first is None else self.first.rank
        kept = {f"node-{node}/{name}": data for name, data in unwritten.items()}
        ended_s = self.ended_s or steady_s()
        return EndedAttempt(self.number, self.started_s, ended_s, ranks, first, kept, self.stacks)


def processes_note(run_id: str | None, host: str, launcher: ProcessStat | None, attempt: Attempt) -> dict[str, Any]:
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


class Told:
    """What is found while the run goes on: said once, and kept for `ps` and for the end. Called by threads."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        """``say`` writes to the console."""
        self._settings, self._say = settings, say
        self._all: tuple[Finding, ...] = ()
        #: The first lines of what was said.
        self.whats: tuple[str, ...] = ()

    def tell(self, findings: Sequence[Finding]) -> None:
        """Say them, and note them in the record."""
        from ddplaunch.records.outcome import write_findings
        from ddplaunch.ui.speech import findings_text
        from ddplaunch.ui.terminal import Terminal

        self._all += tuple(findings)
        if self._settings.node_directory is not None:
            write_findings(self._settings.node_directory, self._all)
        self.whats = tuple(finding.what for finding in self._all)
        self._say(findings_text(findings, Terminal.of(sys.stderr)) + "\n")


_EVERY_S = 2.0  # between two looks


class NumbersWatch:
    """Waits until all ranks of an attempt have noted their first optimizer steps, and says what is not as planned.

    It looks for files now and then; nothing is read or imported before all of them are there.
    """

    def __init__(self, settings: Settings, say: Callable[[str], None], told: Told) -> None:
        """Wait for nothing yet; what is found is told on node 0 alone: all nodes have the same numbers."""
        self._settings, self._say, self._told = settings, say, told
        self._folder = ""
        self._ranks: tuple[int, ...] = ()
        self._next_s: float | None = None
        self.looking = False

    def begin(self, attempt: int, ranks: Iterable[int]) -> None:
        """Wait for the notes of an attempt that has just started."""
        if self._settings.observe and self._settings.node_directory is not None:
            self._folder, self._ranks = f"{self._settings.node_directory}/attempt-{attempt}", tuple(ranks)
            self._next_s = time.monotonic() + _EVERY_S

    def due_s(self) -> float | None:
        """Return when ``tick`` should be called next (time.monotonic()), None if never."""
        return None if self.looking else self._next_s

    def tick(self) -> None:
        """Look for the notes if it is time to."""
        due_s = self.due_s()
        if due_s is None or time.monotonic() < due_s:
            return
        self._next_s = time.monotonic() + _EVERY_S
        if all(os.path.exists(f"{self._folder}/rank-{rank}.observed.json") for rank in self._ranks):  # noqa: PTH110
            self.looking = True
            _thread.start_new_thread(self._compare, (self._folder, self._ranks))

    def _compare(self, folder: str, ranks: tuple[int, ...]) -> None:
        try:
            from ddplaunch.watch import observed

            seen = observed.look(folder, ranks, os.environ, self._settings.ignore)
            if seen.over and self._folder == folder:
                self._next_s = None
                if seen.findings and not self._settings.node:
                    self._told.tell(seen.findings)
        except Exception as error:  # what watches must not end what it watches
            self._next_s = None
            self._say(f"ddplaunch: the ranks' notes could not be compared: {error!r}\n")
        finally:
            self.looking = False


def _note_of_end(directory: str, attempt: int, rank: int) -> Path:
    return through_path(Path(directory, f"attempt-{attempt}"), rank)


def note_processes(path: str, table: dict[str, Any]) -> None:
    """Write ``processes.json``, by which `ps` and `clean` tell ranks."""
    with contextlib.suppress(OSError):
        replace_file(path, json.dumps(table, indent=2) + "\n")
