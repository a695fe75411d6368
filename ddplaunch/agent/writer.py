"""A thread that writes what it is given, in order, so that the guard's loop never waits; refuses to drop anything.

Consoles and disks can block for ever (nobody reads, Ctrl-S, a dead file server), and O_NONBLOCK on a descriptor that
was inherited would reach every program that shares it.
"""

from __future__ import annotations

import _thread
import os
import time
from collections import deque
from collections.abc import Callable


class Writer:
    """One thread and its queue. ``wake`` is an eventfd that is rung when a queue that was ``full`` has room again.

    ``done`` is counted by the writing thread alone.
    """

    def __init__(self, wake: int, limit_bytes: int) -> None:
        """Start nothing yet: many runs never write to one of their writers."""
        self._wake, self._limit = wake, limit_bytes
        self._queue: deque[tuple[Callable[[bytes], object], bytes]] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self._started = False
        self._lock = _thread.allocate_lock()
        self._awaited = False
        self.given = self.done = 0
        self.moved_s = time.monotonic()

    def put(self, write: Callable[[bytes], object], data: bytes) -> None:
        """Call ``write(data)`` in the thread, after everything that was put before. ``write`` must not raise."""
        with self._lock:
            if not self._started:
                self._started = True
                _thread.start_new_thread(self._run, ())
            self.given += len(data) + 1
            self._queue.append((write, data))
        os.eventfd_write(self._bell, 1)

    @property
    def pending(self) -> int:
        """Bytes that are not written yet; 0 means that nothing is left to do."""
        return self.given - self.done

    def full(self) -> bool:
        """Say whether no more should be put now; if so, the loop is woken as soon as half of it is written."""
        if self.pending < self._limit:
            return False
        self._awaited = True
        return self.pending >= self._limit  # it may have been emptied before it was awaited

    def wait(self, until_s: float) -> bool:
        """Wait until all is written, at most until ``until_s`` (time.monotonic()); return whether it is."""
        pause_s = 0.0005
        while self.pending and time.monotonic() < until_s:
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.02)
        return not self.pending

    def _run(self) -> None:
        while True:
            os.eventfd_read(self._bell)
            while self._queue:
                write, data = self._queue.popleft()
                write(data)
                self.done += len(data) + 1
                self.moved_s = time.monotonic()
                if self._awaited and self.pending <= self._limit // 2:
                    self._awaited = False
                    os.eventfd_write(self._wake, 1)
