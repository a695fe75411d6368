"""Which processes a run has left behind, and their end; refuses to touch what only looks like them.

Ranks of torchrun start in sessions of their own, so that a rank's DataLoader workers, and whatever else it started, are
known by their session id even after the rank is gone: https://man7.org/linux/man-pages/man2/setsid.2.html.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping

from ddplaunch.agent.processes import Process, command_line, has_variable, own_processes, send_signal

KILL_AFTER_S = 1.0


class Owner:
    """A rank that has started: what to know of it to find its processes later."""

    __slots__ = ("command", "own_session", "pid", "start")

    def __init__(self, seen: Process) -> None:
        """Read what will be gone when the rank is."""
        self.pid, self.start = seen.pid, seen.start
        self.own_session = seen.session == seen.pid
        self.command = command_line(seen.pid)


def of_ranks(table: Iterable[Process], owners: Mapping[int, Owner]) -> list[Process]:
    """Return the processes of these ranks: the ranks, their sessions, and what they forked without one (fork start)."""
    found: dict[int, Process] = {}
    for one in sorted(table, key=lambda each: each.start):  # a parent before its children
        owner = owners.get(one.pid)
        in_session = owners.get(one.session)
        if owner:
            mine = owner.start == one.start
        elif in_session and in_session.own_session:
            mine = one.start >= in_session.start
        else:
            mine = one.parent in found and not _leads(one)
        if mine:
            found[one.pid] = one
    return list(found.values())


def _leads(one: Process) -> bool:
    return one.session == one.pid  # it was given a session of its own: somebody meant it to stay


def is_multiprocessing(one: Process, commands: frozenset[bytes]) -> bool:
    """Say whether it is a child that multiprocessing made: a fork of a rank, a spawned one, or one of its helpers."""
    command = command_line(one.pid)
    return command in commands or b"multiprocessing." in command or one.name.startswith(b"pt_data")


def unannounced(table: Iterable[Process], run_id: str, launcher: int, since: int) -> list[Process]:
    """Return ranks that torchrun started but did not tell of before it died: orphans that lead a session.

    ``since`` is the start of torchrun in clock ticks, ``launcher`` its pid.
    """
    variable = f"DDPLAUNCH_RUN_ID={run_id}".encode()
    own = os.getpid()
    table = list(table)
    running = {one.pid for one in table if one.pid != own and one.start >= since and has_variable(one.pid, variable)}
    return [
        one
        for one in table
        if one.pid in running and one.pid != launcher and one.parent not in running - {launcher} and _leads(one)
    ]


class Sweep:
    """Ends processes: asked once with SIGTERM, killed after ``KILL_AFTER_S``. ``tick`` it until it is done."""

    def __init__(self, find: Callable[[], list[Process]], now_s: float, *, at_once: bool = False) -> None:
        """``find`` returns those that must end; ``at_once`` leaves out SIGTERM. Times as of time.monotonic()."""
        self._find = find
        self._kill_s = now_s if at_once else now_s + KILL_AFTER_S
        self._asked: set[tuple[int, int]] = set()
        self.ended: set[int] = set()

    def tick(self, now_s: float) -> bool:
        """Do what is due; return whether nothing is left."""
        left = self._find()
        for one in left:
            if now_s >= self._kill_s:
                send_signal(one, signal.SIGKILL)
            elif (one.pid, one.start) not in self._asked:
                self._asked.add((one.pid, one.start))
                send_signal(one, signal.SIGTERM)
                send_signal(one, signal.SIGCONT)  # one that was stopped would never see it
            self.ended.add(one.pid)
        return not left


def left_by(owners: Mapping[int, Owner], *, workers_only: bool) -> list[Process]:
    """Return what runs of these ranks now; with ``workers_only`` what multiprocessing made, and nothing else."""
    if not owners:
        return []
    found = of_ranks(own_processes(), owners)
    if not workers_only:
        return found
    commands = frozenset(owner.command for owner in owners.values() if owner.command)
    return [one for one in found if one.pid not in owners and is_multiprocessing(one, commands)]
