"""A forked rank with the methods of ``subprocess.Popen`` that torchrun calls, and the template with its descendants."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddplaunch.machine.processes.process_table import read_stat

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
    one = read_stat(pid)
    return one is not None and one.state in "Tt"


def _reaped(pid: int) -> bool:
    """Say whether nothing is left of a process that this one could wait for."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        one = read_stat(pid)
        return one is None or not one.alive


class WarmProcess:
    """One child of this process: ``pid``, ``poll``, ``wait`` and signals, as ``subprocess.Popen`` has them."""

    stdin = stdout = stderr = None

    def __init__(self, args: Sequence[str], pid: int) -> None:
        """Take over ``pid``, which has to be a child of this process."""
        self.args = args
        self.pid = pid
        self.returncode: int | None = None
        self._instead: Any = None

    def replace(self, other: Any) -> None:
        """Stand for ``other`` from now on, which is kept: a Popen that nobody holds is waited for by the next one."""
        self.pid, self._instead = other.pid, other

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, None while it runs."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once there is one. ``timeout`` in seconds; raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._reap(os.WNOHANG if deadline is not None else 0) is None:
            left = 0.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._await_end(left)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended and been waited for: the pid may belong to somebody else by then."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # somebody else's waitpid(-1) took the status; Popen says 0 then
                self.returncode = 0
            else:
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def _await_end(self, seconds: float) -> None:
        try:
            watch = os.pidfd_open(self.pid)
        except OSError:  # a kernel before 5.3, or no descriptor left
            time.sleep(min(0.05, seconds))
            return
        try:
            poll = select.poll()
            poll.register(watch, select.POLLIN)
            poll.poll(seconds * 1000)
        finally:
            os.close(watch)
