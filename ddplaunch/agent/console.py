"""What the user sees: the launcher's own stdout and stderr, and its window's size; refuses to choose what is shown.

A console that blocks holds up its writer's thread, and through ``full`` the rank that is shown, as if that rank ran
alone; the guard's loop goes on.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import termios
import time
from collections.abc import Callable

from ddplaunch.agent.writer import Writer

_LIMIT_BYTES = 1 << 20
_PATIENCE_S = 5.0


class Sink:
    """One of the two streams. ``gone`` once its reader is: what is put then is dropped."""

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
            self.writer.put(self._write, data)

    def speak(self, data: bytes) -> None:
        """Write ``data`` on a line of its own, with the cursor that a killed progress display may have hidden."""
        if not self.gone:
            self.writer.put(self._speak, data)

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
                if error.errno != errno.EINTR:
                    self.gone = True
                    os.eventfd_write(self._wake, 1)
        self.at_line_start = data.endswith(b"\n")
        if self.is_terminal and b"\x1b[?25" in data:
            self.cursor_hidden = data.rfind(b"\x1b[?25l") > data.rfind(b"\x1b[?25h")


class Console:
    """Both streams; ``say`` is the launcher's own voice. ``hurried`` says whether nobody may be left to read."""

    def __init__(self, wake: int, out: int = 1, err: int = 2) -> None:
        """Take the descriptors over which the guard was started."""
        self.out, self.err = Sink(out, wake), Sink(err, wake)
        self.hurried: Callable[[], bool] = lambda: False
        self._voice = self.out if same_file(out, err) else self.err

    def say(self, text: str) -> None:
        """Write ``text`` to stderr, on a line of its own, behind all that was put before. Never raises."""
        self._voice.speak(text.encode("utf-8", "surrogateescape"))

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


def same_file(one: int, other: int) -> bool:
    """Say whether two descriptors lead to the same terminal, pipe or file."""
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False
