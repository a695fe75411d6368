"""Ends processes of this machine, each known by pid and start time; refuses to choose which."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable

from ddplaunch.hosts.pinned import Sent, send_pinned
from ddplaunch.probes.process_table import Process, read_process

_PAUSE_S = 0.02


def send(process: Process, number: signal.Signals) -> Sent:
    """Signal ``process`` if its pid still means the same process: start time and marks as they were."""
    return send_pinned(process.pid, number, lambda: is_same(process))


def is_same(process: Process) -> bool:
    """Return whether the pid still means this process: start time and run id agree."""
    now = read_process(process.pid)
    if now is None or now.start_ticks != process.start_ticks:
        return False
    then, names = process.environment, ("DDPLAUNCH_RUN_ID", "TORCHELASTIC_RUN_ID")
    if then is None or now.environment is None:  # not readable, as before
        return then is now.environment
    return all(then.get(name) == now.environment.get(name) for name in names) or not now.environment


def remaining(processes: Iterable[Process]) -> list[Process]:
    """Return those that still run, as they are now; a zombie does not."""
    left = []
    for process in processes:
        now = read_process(process.pid)
        if now is not None and now.start_ticks == process.start_ticks and now.alive:
            left.append(now)
    return left


def wait_gone(processes: Iterable[Process], deadline_s: float) -> list[Process]:
    """Wait until none of them runs, at most ``deadline_s`` seconds; return those that still do."""
    end = time.monotonic() + deadline_s
    left = remaining(processes)
    while left and time.monotonic() < end:
        time.sleep(_PAUSE_S)
        left = remaining(left)
    return left
