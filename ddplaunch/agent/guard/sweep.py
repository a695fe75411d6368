"""Finds the processes that a run has left behind, and ends them: SIGTERM first, then SIGKILL.

torchrun starts each rank in its own session, so a rank's DataLoader workers and other children are recognised by their
session id even after the rank is gone: https://man7.org/linux/man-pages/man2/setsid.2.html.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping

from ddplaunch.machine.processes.process_table import ProcessStat, catches, own_processes, read_command, read_variable
from ddplaunch.machine.processes.stop_processes import asked_first, send_signal
from ddplaunch.values.variable_names import LAUNCH

KILL_AFTER_S = 1.0
Grace = Callable[[ProcessStat], float]
_EVERY_S, _SELDOM_S = 0.05, 0.5
_GIVE_UP_AFTER_S = 3.0  # a process in an uninterruptible wait cannot be killed


class Owner:
    """A started rank, with the facts by which its processes are found later."""

    __slots__ = ("command", "pid", "start")

    def __init__(self, pid: int, seen: ProcessStat | None, since: int = 0) -> None:
        """Read the facts while the rank exists; ``since`` stands for the start of one that is already gone."""
        self.pid, self.start = pid, seen.start_ticks if seen else since
        self.command = read_command(pid) if seen else ()


def of_ranks(table: Iterable[ProcessStat], owners: Mapping[int, Owner]) -> list[ProcessStat]:
    """Return the processes in the sessions of these ranks, oldest first; one with a session of its own is to stay."""
    found = (
        one
        for one in table
        if (owner := owners.get(one.session))
        and (one.start_ticks == owner.start if one.pid == owner.pid else one.start_ticks >= owner.start)
    )
    return sorted(found, key=lambda one: one.start_ticks)


def _workers_of(owners: Mapping[int, Owner]) -> Callable[[ProcessStat], bool]:
    """Return a function that tells whether multiprocessing made a process: by fork, by spawn, or as a helper."""
    commands = {owner.command for owner in owners.values() if owner.command}

    def is_worker(process: ProcessStat) -> bool:
        if process.pid in owners:
            return False
        command = read_command(process.pid)
        spawned = any(b"multiprocessing." in word for word in command)
        return spawned or command in commands or process.name.startswith("pt_data")

    return is_worker


def unannounced(table: Iterable[ProcessStat], token: str, launcher: ProcessStat | None) -> list[ProcessStat]:
    """Return the ranks, leaders of sessions, that torchrun, ``launcher``, started but did not announce before it died.

    ``token`` is the launch's, by which its processes are recognised. A pasted torchrun line has none; its ranks then
    end only by the SIGTERM that the kernel sends them at torchrun's death.
    """
    if launcher is None or not token:
        return []
    table = list(table)
    running = {
        one.pid
        for one in table
        if one.pid != os.getpid()
        and one.start_ticks >= launcher.start_ticks
        and read_variable(one.pid, LAUNCH.encode()) == token.encode()
    }
    return [
        one
        for one in table
        if one.pid in running
        and one.pid != launcher.pid
        and one.parent not in running - {launcher.pid}
        and one.session == one.pid
    ]


def left_by(owners: Mapping[int, Owner], *, workers_only: bool) -> list[ProcessStat]:
    """Return the running processes of these ranks; with ``workers_only`` only those that multiprocessing made."""
    found = of_ranks(own_processes(), owners)
    return list(filter(_workers_of(owners), found)) if workers_only else found


def grace_of_left(owners: Mapping[int, Owner], grace_s: float) -> Grace:
    """Return a function that returns how many seconds a process of these ranks has to end after SIGTERM.

    A process that catches SIGTERM may be saving: a rank whose launcher is gone, or the training started by a shell that
    was the rank. DataLoader workers catch it too, but have nothing to save.
    """
    is_worker = _workers_of(owners)
    return lambda process: grace_s if not is_worker(process) and catches(process.pid, signal.SIGTERM) else KILL_AFTER_S


class _Sweep:
    def __init__(self, find: Callable[[], list[ProcessStat]], grace: Grace | None) -> None:
        self.find, self.grace = find, grace
        #: When to kill each process that got SIGTERM (time.monotonic()), by pid and start time.
        self.kill_at_s: dict[tuple[int, int], float] = {}
        self.begun_s = time.monotonic()

    def pause_s(self) -> float:
        """Return how long to wait until the next look: longer as the sweep lasts, as each reads the process table."""
        return min(_SELDOM_S, max(_EVERY_S, (time.monotonic() - self.begun_s) / 10))

    def in_vain(self) -> bool:
        """Return whether the remaining processes were killed too long ago to wait any longer."""
        return time.monotonic() > max(self.kill_at_s.values(), default=self.begun_s) + _GIVE_UP_AFTER_S


class Sweeps:
    """Ends the processes that ``find`` functions return: each gets SIGTERM once, and is killed after its grace.

    Children of a Python process get SIGTERM only when it is gone (``asked_first``), because a rank may be saving.
    """

    def __init__(self, at: Callable[[float, Callable[[], None]], None]) -> None:
        """``at`` makes a call at a time (``Loop.at``); ``ended`` collects the pids of processes that were signalled."""
        self._at = at
        self._sweeps: list[_Sweep] = []
        self.ended: set[int] = set()

    def begin(self, find: Callable[[], list[ProcessStat]], grace: Grace | None) -> None:
        """End what ``find()`` returns, repeatedly until it returns nothing; without ``grace`` kill at once."""
        self._sweeps.append(_Sweep(find, grace))
        self.tick()

    @property
    def running(self) -> bool:
        """Whether processes are left to end."""
        return bool(self._sweeps)

    def tick(self) -> None:
        """Look for processes again, and signal those that are due."""
        for sweep in list(self._sweeps):
            processes = sweep.find()
            self._end(sweep, processes)
            if not processes or sweep.in_vain():
                self._sweeps.remove(sweep)
        if self._sweeps:
            self._at(time.monotonic() + min(sweep.pause_s() for sweep in self._sweeps), self.tick)

    def _end(self, sweep: _Sweep, processes: list[ProcessStat]) -> None:
        for process in processes if sweep.grace is None else asked_first(processes):
            key = (process.pid, process.start_ticks)
            self.ended.add(process.pid)
            if sweep.grace is None or time.monotonic() >= sweep.kill_at_s.get(key, math.inf):
                send_signal(process, signal.SIGKILL)
            elif key not in sweep.kill_at_s:
                sweep.kill_at_s[key] = time.monotonic() + sweep.grace(process)
                send_signal(process, signal.SIGTERM)
                send_signal(process, signal.SIGCONT)  # else a stopped process would not get SIGTERM
