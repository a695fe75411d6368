"""The processes that descend from the template: who they are, whether one stands still, their end; starts none."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ddplaunch.agent.processes import process

#: Seconds for which one of them may be stopped (SIGSTOP, a debugger) before ranks start without them.
STOPPED_S = 5.0
_LOOK_S = 0.5
_END_S = 1.0


def members(pid: int) -> list[int]:
    """Return ``pid`` and what descends from it; ``pid`` alone where the kernel does not list children."""
    found = [pid]
    for each in found:  # grows meanwhile
        with contextlib.suppress(OSError):
            found += [int(word) for word in Path(f"/proc/{each}/task/{each}/children").read_text().split()]
    return found


def wait_for_word(
    channel: socket.socket, template: int, limit_s: float, slow: Callable[[], None] | None = None
) -> None:
    """Wait until something can be read from ``channel``, its end too.

    Raises TimeoutError after ``limit_s`` seconds, or if one of the template's family is stopped for 5 s. Without a
    limit, which an import has not, ``slow`` is called once after a minute.
    """
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    began = time.monotonic()
    moving = began
    while not poll.poll(_LOOK_S * 1000):
        now = time.monotonic()
        if not any(map(_is_stopped, members(template))):
            moving = now
        if now - moving > STOPPED_S or now - began > limit_s:
            raise TimeoutError
        if slow is not None and now - began > 60:
            slow()
            slow = None


def end(pids: Sequence[int]) -> None:
    """Kill them all, and reap those that are or become children of this process, for at most 1 s."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _END_S
    left = list(pids)
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if not _reaped(pid)]
        if left:
            time.sleep(0.001)


def _is_stopped(pid: int) -> bool:
    one = process(pid)
    return one is not None and one.state in "Tt"


def _reaped(pid: int) -> bool:
    """Say whether nothing is left of a process that this one could wait for."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        one = process(pid)
        return one is None or not one.alive
