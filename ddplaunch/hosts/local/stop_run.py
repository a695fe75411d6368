"""Stops a run: its processes on this machine, its launcher, or what is left of it on other hosts, by ssh."""

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

_LOOK_S = 0.25  # new processes may appear while old ones end
_GUARD_S = 10.0  # for the guard to write the outcome and to explain it
_RESIDENT_S = 90.0  # the launcher's own limit from SIGKILL on its hosts until it has all their records


@dataclass(frozen=True)
class Stopped:
    """How a run's processes ended. ``denied`` are those that this user may not signal; ``took_s`` is in seconds."""

    run: RunProcesses
    ended: tuple[Process, ...]
    killed: tuple[Process, ...]
    remaining: tuple[Process, ...]
    denied: tuple[Process, ...]
    took_s: float


def stop_run(run: RunProcesses, grace_s: float) -> Stopped:
    """Send SIGTERM to the launchers, or to the ranks where these are gone; after ``grace_s`` seconds SIGKILL to all.

    A process is signalled only while its pid, start time and run id agree. A guard gets no signal: it ends by itself
    when it has nothing left to show.
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
        _send_all(killed, signal.SIGKILL)  # launchers first, so that they restart nothing
    remaining = wait_gone([each for each in processes.values() if each not in run.guards], KILLED_S)
    remaining += wait_gone(run.guards, _GUARD_S)
    return Stopped(run, *ends_of(processes.values(), killed, remaining), denied=(), took_s=time.monotonic() - begun)


def stop_resident(run: RunProcesses, launcher: Process, grace_s: float, own_grace_s: float) -> Stopped:
    """Send SIGTERM to the launcher of a run on several hosts, which ends all of them, and wait until it is gone.

    The launcher kills what is left after ``own_grace_s``. If ``grace_s`` is shorter, SIGINT makes it do so then. If it
    does not end within 90 s after ``grace_s``, it gets SIGKILL, and the hosts end their parts by themselves.
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

    Ranks that lose their launcher meanwhile get SIGTERM, once: nothing else would end them.
    """
    told_to_end = not run.launchers
    launch = run.run_id, run.uid, run.launch
    while True:
        launches = {(live.run_id, live.uid, live.launch): live for live in runs_in(process_table())}
        remaining_run = launches.get(launch)
        if remaining_run is None or not (remaining_run.launchers or remaining_run.ranks or remaining_run.children):
            return None
        for process in remaining_run.all:  # keep the first entry: an exiting process loses environment and command line
            known = processes.get(process.pid)
            if known is None or known.start_ticks != process.start_ticks:
                processes[process.pid] = process
        if not told_to_end and not remaining_run.launchers and not remaining_run.guards:
            _send_all(asked_first((*remaining_run.ranks, *remaining_run.children)), signal.SIGTERM)
            told_to_end = True
        if time.monotonic() >= end:
            return remaining_run
        wait_gone(remaining_run.all, min(_LOOK_S, end - time.monotonic()))


def _send_all(processes: Iterable[Process], number: signal.Signals) -> tuple[Process, ...]:
    """Signal each process; return those that this user may not signal."""
    return tuple(process for process in processes if send_signal(process, number) == "denied")


_ENDING_S = 30.0  # on top of the grace: starting an interpreter, SIGKILL, the guard's last output


@dataclass(frozen=True)
class HostStopped:
    """How a run ended on one host: entries with ``pid``, ``role``, ``rank`` and ``by`` ("itself" or "SIGKILL").

    ``remaining`` still run; ``problem`` explains why the host could not be asked.
    """

    host: str
    ended: tuple[dict[str, Any], ...] = ()
    remaining: tuple[dict[str, Any], ...] = ()
    problem: Finding | None = None


def ask_hosts(launched: Launched, grace_s: float) -> tuple[HostStopped, ...]:
    """Have each host end its part of the run by its own ``stop``, all at once; ``grace_s`` is in seconds.

    Raises RefusedError where this machine cannot open that many sessions.
    """
    with EachHost(launched, "stop", "--json", "--grace", f"{grace_s:g}") as hosts:
        answers = hosts.answers(CONNECT_S + grace_s + _ENDING_S)
        problems = {host: problem for problem in hosts.problems for host in problem.where or ("",)}
        return tuple(_stopped(place, answers.get(place.node), problems) for place in launched.places)


def _stopped(place: Place, reply: Mapping[str, Any] | None, problems: Mapping[str, Finding]) -> HostStopped:
    if reply is None:
        return HostStopped(place.host, problem=problems.get(place.host) or problems.get(""))
    return HostStopped(place.host, tuple(reply.get("ended", ())), tuple(reply.get("remaining", ())))
