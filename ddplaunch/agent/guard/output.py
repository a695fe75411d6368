"""Writes to the launcher's stdout and stderr, and to files, in threads, so that the guard's loop never waits.

Each writer has a thread that does its work in order. Consoles and disks can block forever (a pipe that is not read,
Ctrl-S, a dead file server), and O_NONBLOCK on an inherited descriptor would affect every program that shares it. A
blocked console holds up the ranks that are shown, through ``full``, as if they wrote to it directly.
"""

from __future__ import annotations

import _thread
import errno
import fcntl
import os
import select
import termios
import time
from _queue import SimpleQueue  # `queue` imports threading, too
from collections.abc import Callable

from ddplaunch.machine.files import is_same_file
from ddplaunch.values.escapes import harmless_bytes


class Writer:
    """One thread and its queue. ``wake`` is an eventfd that is written when a ``full`` queue has room again.

    Only the writing thread changes ``done``.
    """

    def __init__(self, wake: int, limit_bytes: int) -> None:
        """Start no thread yet: many runs never use some of their writers."""
        self._wake, self._limit = wake, limit_bytes
        self._queue: SimpleQueue[tuple[Callable[[], object], int]] = SimpleQueue()
        self._started = False
        self._lock = _thread.allocate_lock()
        self._awaited = False
        self.given = self.done = 0
        self.moved_s = time.monotonic()

    def put(self, work: Callable[[], object], size_bytes: int = 0) -> None:
        """Call ``work()``, which must not raise, in the thread, after all earlier work."""
        with self._lock:
            if not self._started:
                self._started = True
                _thread.start_new_thread(self._run, ())
            self.given += size_bytes + 1
            self._queue.put((work, size_bytes))

    @property
    def pending(self) -> int:
        """Bytes that are not written yet; 0 means that no work is left."""
        return self.given - self.done

    def full(self) -> bool:
        """Return whether no more should be put now; if so, the loop is woken once the queue is half empty."""
        if self.pending < self._limit:
            return False
        self._awaited = True
        return self.pending >= self._limit  # it may have been emptied before ``_awaited`` was set

    def wait(self, until_s: float) -> bool:
        """Wait until all is written, at most until ``until_s`` (time.monotonic()); return whether all is."""
        pause_s = 0.0005
        while self.pending and time.monotonic() < until_s:
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.02)
        return not self.pending

    def _run(self) -> None:
        while True:
            work, size_bytes = self._queue.get()
            work()
            self.done += size_bytes + 1
            self.moved_s = time.monotonic()
            if self._awaited and self.pending <= self._limit // 2:
                self._awaited = False
                os.eventfd_write(self._wake, 1)


ERASE = b"\r\x1b[J"  # with what a terminal that became narrower has wrapped
_LIMIT_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PATIENCE_S = 5.0


class Sink:
    """Stdout or stderr of the launcher. ``gone``: its reader has closed it, and further data is dropped.

    A file on a full disk loses data until there is room again, but stays open: ranks are not affected.
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
        """Queue ``data`` for writing, after all earlier data."""
        if data and not self.gone:
            self.writer.put(lambda: self._write(data), len(data))

    def speak(self, data: bytes) -> None:
        """Write ``data`` on its own line, and show the cursor again if a killed progress display hid it."""
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
                room = select.poll()
                room.register(self.descriptor, select.POLLOUT)
                room.poll()
            except OSError as error:
                if error.errno in _FULL:
                    return
                self.gone = True
                os.eventfd_write(self._wake, 1)
        self.at_line_start = data.endswith((b"\n", ERASE))
        if self.is_terminal and b"\x1b[?25" in data:
            self.cursor_hidden = data.rfind(b"\x1b[?25l") > data.rfind(b"\x1b[?25h")


class Console:
    """Both streams; ``say`` writes ddplaunch's own messages. ``hurried()``: do not wait long for readers.

    ``passing``: a line is shown on the terminal while nothing else is; ``end_passing`` erases it.
    """

    def __init__(self, wake: int) -> None:
        """Write to the guard's descriptors 1 and 2, which are the launcher's."""
        self.out, self.err = Sink(1, wake), Sink(2, wake)
        self.hurried: Callable[[], bool] = lambda: False
        self.passing = False
        self._voice = self.out if is_same_file(1, 2) else self.err

    def end_passing(self) -> None:
        """Erase the passing line; call it before other output."""
        if self.passing:
            self.passing = False
            self.out.put(ERASE)
            self.settle(0.2)

    def say(self, text: str) -> None:
        """Write ``text`` to stderr, on its own line, after all earlier data. Never raises."""
        self.end_passing()
        self._voice.speak(text.encode("utf-8", "surrogateescape"))

    def settle(self, seconds: float) -> None:
        """Wait until everything is written, at most ``seconds``."""
        until_s = time.monotonic() + seconds
        for sink in (self.out, self.err):
            if not sink.gone:
                sink.writer.wait(until_s)

    def drain(self) -> None:
        """Wait until everything is written: as long as the reader takes, but only 5 s per stream if ``hurried()``."""
        for sink in (self.out, self.err):
            until_s = time.monotonic() + _PATIENCE_S
            while not sink.gone and not sink.writer.wait(time.monotonic() + 0.1):
                if self.hurried() and time.monotonic() > until_s:
                    return

    def window_size(self) -> bytes | None:
        """Return the window size in the format of TIOCSWINSZ (ioctl_tty(2)), None without a terminal."""
        for sink in (self.out, self.err):
            if sink.is_terminal:
                try:
                    return fcntl.ioctl(sink.descriptor, termios.TIOCGWINSZ, bytes(8))
                except OSError:
                    continue
        return None
