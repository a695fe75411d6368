"""Stops a run: its processes on this machine, its launcher, or what is left of it on other hosts, asked by ssh."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.hosts.ssh import CONNECT_S
from ddplaunch.machine.processes.process_table import Process, process_table
from ddplaunch.machine.processes.run_processes import RunProcesses, runs_in
from ddplaunch.machine.processes.stop_processes import KILLED_S, asked_first, ends_of, send_signal, wait_gone
from ddplaunch.records.launchers import Launched, Place
from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass

_LOOK_S = 0.25  # new processes may come while old ones go
_GUARD_S = 10.0  # how long the guard may need to write the outcome and to explain
_RESIDENT_S = 90.0  # a launcher's own limits from SIGKILL on its hosts to having all their records


@dataclass(frozen=True)
class Stopped:
    """How a run's processes ended. ``denied`` may not be signalled by this user; ``took_s`` is in seconds."""

    run: RunProcesses
    ended: tuple[Process, ...]
    killed: tuple[Process, ...]
    remaining: tuple[Process, ...]
    denied: tuple[Process, ...]
    took_s: float


def stop_run(run: RunProcesses, grace_s: float) -> Stopped:
    """Send SIGTERM to the launchers, or to the ranks where they are gone; after ``grace_s`` seconds SIGKILL to all.

    Every signal goes to a process whose pid, start time and run id agree at that moment. A guard is not signalled:
    it ends by itself when nothing is left to show.
    """
    begun = time.monotonic()
    processes = {process.pid: process for process in run.all}
    denied = _send_all(run.launchers or asked_first((*run.ranks, *run.children)), signal.SIGTERM)
    if denied:
        return Stopped(run, (), (), run.all, denied, time.monotonic() - begun)
    remaining_run = _wait_stopped(run, begun + grace_s, processes)
    killed: list[Process] = []
    if remaining_run is not None:
        killed = [*remaining_run.launchers, *remaining_run.ranks, *remaining_run.children]
        _send_all(killed, signal.SIGKILL)  # the launcher first, so that it restarts nothing
    remaining = wait_gone([each for each in processes.values() if each not in run.guards], KILLED_S)
    remaining += wait_gone(run.guards, _GUARD_S)
    return Stopped(run, *ends_of(processes.values(), killed, remaining), denied=(), took_s=time.monotonic() - begun)


def stop_resident(run: RunProcesses, launcher: Process, grace_s: float, own_grace_s: float) -> Stopped:
    """Send SIGTERM to the launcher of a run on several hosts, which ends all of them, and wait until it is gone.

    It kills what is left after its own grace. After ``grace_s`` seconds SIGINT has it do so at once; SIGKILL, after
    which the hosts end their part by themselves, is for one that does not even answer that.
    """
    begun = time.monotonic()
    if send_signal(launcher, signal.SIGTERM) == "denied":
        return Stopped(run, (), (), (launcher,), (launcher,), time.monotonic() - begun)
    remaining = wait_gone([launcher], grace_s)
    if remaining and grace_s < own_grace_s:
        send_signal(launcher, signal.SIGINT)
    remaining = wait_gone(remaining, _RESIDENT_S)
    killed = [launcher] if remaining and send_signal(launcher, signal.SIGKILL) == "sent" else []
    ends = ends_of([launcher], killed, wait_gone(remaining, KILLED_S))
    return Stopped(run, *ends, denied=(), took_s=time.monotonic() - begun)


def _wait_stopped(run: RunProcesses, end: float, processes: dict[int, Process]) -> RunProcesses | None:
    """Wait until launcher, ranks and their children are gone; return what is left at ``end``, None if nothing.

    Ranks that have lost their launcher on the way are asked themselves, once: nobody else will.
    """
    told_to_end = not run.launchers
    while True:
        remaining_run = next((each for each in runs_in(process_table()) if _same_run(each, run, processes)), None)
        if remaining_run is None or not (remaining_run.launchers or remaining_run.ranks or remaining_run.children):
            return None
        for process in remaining_run.all:  # as first seen: on its way out it loses environment and command line
            known = processes.get(process.pid)
            if known is None or known.start_ticks != process.start_ticks:
                processes[process.pid] = process
        if not told_to_end and not remaining_run.launchers and not remaining_run.guards:
            _send_all(asked_first((*remaining_run.ranks, *remaining_run.children)), signal.SIGTERM)
            told_to_end = True
        if time.monotonic() >= end:
            return remaining_run
        wait_gone(remaining_run.all, min(_LOOK_S, end - time.monotonic()))


def _same_run(one: RunProcesses, run: RunProcesses, processes: dict[int, Process]) -> bool:
    """Whether it is this run, and not one of the same id and user that was started since."""
    if (one.run_id, one.uid, one.launch) != (run.run_id, run.uid, run.launch):
        return False
    known = (processes.get(process.pid) for process in one.all)
    return any(
        each is not None and each.start_ticks == now.start_ticks for each, now in zip(known, one.all, strict=True)
    )


def _send_all(processes: Iterable[Process], number: signal.Signals) -> tuple[Process, ...]:
    """Signal each; return those that this user may not signal."""
    return tuple(process for process in processes if send_signal(process, number) == "denied")


_ENDING_S = 30.0  # beyond the grace: a cold interpreter, SIGKILL, the guard's last words


@dataclass(frozen=True)
class HostStopped:
    """How a run ended on one host: entries with ``pid``, ``role``, ``rank`` and ``by`` ("itself" or "SIGKILL").

    ``remaining`` still runs; ``problem`` says why the host could not be asked.
    """

    host: str
    ended: tuple[dict[str, Any], ...] = ()
    remaining: tuple[dict[str, Any], ...] = ()
    problem: Finding | None = None


def ask_hosts(launched: Launched, grace_s: float) -> tuple[HostStopped, ...]:
    """Have each host of the launch end the run as its own ``stop`` would, all at once; ``grace_s`` in seconds.

    Raises RefusedError where this machine cannot open so many sessions.
    """
    with EachHost(launched, "stop", "--json", "--grace", f"{grace_s:g}") as hosts:
        answers = hosts.answers(CONNECT_S + grace_s + _ENDING_S)
        problems = {host: problem for problem in hosts.problems for host in problem.where or ("",)}
        return tuple(_stopped(place, answers.get(place.node), problems) for place in launched.places)


def _stopped(place: Place, reply: Mapping[str, Any] | None, problems: Mapping[str, Finding]) -> HostStopped:
    if reply is None:
        return HostStopped(place.host, problem=problems.get(place.host) or problems.get(""))
    return HostStopped(place.host, tuple(reply.get("ended", ())), tuple(reply.get("remaining", ())))
