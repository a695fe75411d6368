"""A rank that torchrun did not start with Popen, with what torchrun asks of Popen; refuses to start anything."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any


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
