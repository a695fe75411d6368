"""Where the guard writes: the launcher's stdout and stderr, and whatever a thread writes for its loop.

A thread of each writes what it is given, in order, so that the guard's loop never waits: consoles and disks can
block for ever (nobody reads, Ctrl-S, a dead file server), and O_NONBLOCK on a descriptor that was inherited would reach
every program that shares it. A console that blocks holds up the rank that is shown, through ``full``, as if that rank
ran alone.
"""

from __future__ import annotations

import _thread
import errno
import fcntl
import os
import select
import struct
import termios
import time
from collections import deque
from collections.abc import Callable

from ddplaunch.machine.files import is_same_file
from ddplaunch.values.escapes import harmless_bytes


class Writer:
    """One thread and its queue. ``wake`` is an eventfd that is rung when a queue that was ``full`` has room again.

    ``done`` is counted by the writing thread alone.
    """

    def __init__(self, wake: int, limit_bytes: int) -> None:
        """Start nothing yet: many runs never write to one of their writers."""
        self._wake, self._limit = wake, limit_bytes
        self._queue: deque[tuple[Callable[[], object], int]] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self._started = False
        self._lock = _thread.allocate_lock()
        self._awaited = False
        self.given = self.done = 0
        self.moved_s = time.monotonic()

    def put(self, work: Callable[[], object], size_bytes: int = 0) -> None:
        """Call ``work()``, which must not raise, in the thread, after everything that was put before."""
        with self._lock:
            if not self._started:
                self._started = True
                _thread.start_new_thread(self._run, ())
            self.given += size_bytes + 1
            self._queue.append((work, size_bytes))
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
                work, size_bytes = self._queue.popleft()
                work()
                self.done += size_bytes + 1
                self.moved_s = time.monotonic()
                if self._awaited and self.pending <= self._limit // 2:
                    self._awaited = False
                    os.eventfd_write(self._wake, 1)


_LIMIT_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PATIENCE_S = 5.0


class Sink:
    """One of the two streams. ``gone`` once its reader is: what is put then is dropped.

    A file on a full disk, which is no reader, misses what comes until there is room: that does not reach the rank.
    """

    def __init__(self, descriptor: int, wake: int) -> None:
        """``wake`` is the loop's eventfd."""
        self.descriptor = descriptor
        self.writer = Writer(wake, _LIMIT_BYTES)
        self.is_terminal = os.isatty(descriptor)
        self.gone = False
        self.at_line_start = True
        self.cursor_hidden = False
        self._wake = wake

    def put(self, data: bytes) -> None:
        """Write ``data`` soon, behind everything put before."""
        if data and not self.gone:
            self.writer.put(lambda: self._write(data), len(data))

    def speak(self, data: bytes) -> None:
        """Write ``data`` on a line of its own, with the cursor that a killed progress display may have hidden."""
        if not self.gone:
            said = harmless_bytes(data) if self.is_terminal else data
            self.writer.put(lambda: self._speak(said), len(said))

    def _speak(self, data: bytes) -> None:
        cursor = b"\x1b[?25h" if self.cursor_hidden else b""
        self._write(cursor + (b"" if self.at_line_start else b"\n") + data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.gone:
            try:
                view = view[os.write(self.descriptor, view) :]
            except BlockingIOError:  # another program made this file description non-blocking
                select.select([], [self.descriptor], [])
            except OSError as error:
                if error.errno in _FULL:
                    return
                self.gone = True
                os.eventfd_write(self._wake, 1)
        self.at_line_start = data.endswith(b"\n")
        if self.is_terminal and b"\x1b[?25" in data:
            self.cursor_hidden = data.rfind(b"\x1b[?25l") > data.rfind(b"\x1b[?25h")


class Console:
    """Both streams; ``say`` is the launcher's own voice. ``hurried`` says whether nobody may be left to read."""

    def __init__(self, wake: int) -> None:
        """Take the descriptors over which the guard was started."""
        self.out, self.err = Sink(1, wake), Sink(2, wake)
        self.hurried: Callable[[], bool] = lambda: False
        self._voice = self.out if is_same_file(1, 2) else self.err

    def say(self, text: str) -> None:
        """Write ``text`` to stderr, on a line of its own, behind all that was put before. Never raises."""
        self._voice.speak(text.encode("utf-8", "surrogateescape"))

    def settle(self, seconds: float) -> None:
        """Wait until everything is written, at most ``seconds``."""
        until_s = time.monotonic() + seconds
        for sink in (self.out, self.err):
            if not sink.gone:
                sink.writer.wait(until_s)

    def drain(self) -> None:
        """Wait until everything is written: as long as the reader takes, in a hurry a few seconds."""
        for sink in (self.out, self.err):
            until_s = time.monotonic() + _PATIENCE_S
            while not sink.gone and not sink.writer.wait(time.monotonic() + 0.1):
                if self.hurried() and time.monotonic() > until_s:
                    return

    def window_size(self) -> bytes | None:
        """Return the window as TIOCSWINSZ takes it (ioctl_tty(2)), None without a terminal."""
        for sink in (self.out, self.err):
            if sink.is_terminal:
                try:
                    return fcntl.ioctl(sink.descriptor, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
                except OSError:
                    continue
        return None
