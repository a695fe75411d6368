"""The terminal as a screen that `top` redraws, and the keys that are pressed meanwhile.

``rich.live`` is not used: it takes 2 to 10 ms for a screen of 40 lines, every second beside the training, and 60 ms to
import; writing the lines takes 0.005 ms. Keys, Ctrl-Z and signals would stay as they are here.
Control sequences: https://invisible-island.net/xterm/ctlseqs/ctlseqs.html (1049, 25, 7).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, TextIO

from ddplaunch.values.escapes import harmless

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # alternate screen, no cursor, no wrapping at the right edge
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _LINE_END = "\x1b[H", "\x1b[K"
_KEYS = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
}
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Screen:
    """Used in ``with``: whatever happens inside, the terminal is afterwards as it was before."""

    def __init__(self, out: TextIO) -> None:
        """Change nothing yet."""
        self._out = out
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        self._pending = b""
        self._saved: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._wake, self._waker = -1, -1

    def __enter__(self) -> Screen:
        """Take the terminal; a signal that ends the process gives it back first."""
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in _ENDING:
            self._handlers[number] = signal.signal(number, _end)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop)
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: None)  # only wakes
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the terminal back."""
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        os.close(self._wake)
        os.close(self._waker)

    def size(self) -> tuple[int, int]:
        """Return columns and lines as they are now."""
        try:
            found = os.get_terminal_size(self._out.fileno())
        except (OSError, ValueError):
            return 80, 24
        return (found.columns or 80, found.lines or 24)

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines in one write, so that nothing flickers. Raises OSError where the terminal is gone."""
        _, height = self.size()
        # erased first: behind a line as wide as the terminal, erasing would take its last cell
        body = "\r\n".join(f"{_LINE_END}{harmless(line)}" for line in lines[:height])
        self._put(f"{_HOME}{body}")

    def wait(self, until_s: float) -> str | None:
        """Wait for a key until ``until_s`` (time.monotonic()); return it, "resize", or None when the time has come."""
        while self._pending or (left_s := until_s - time.monotonic()) > 0:
            if self._pending:
                return self._key()
            watched = [self._wake, *([self._keys] if self._keys >= 0 else [])]
            ready = select.select(watched, [], [], left_s)[0]
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 512)
                return "resize"
            if self._keys in ready:
                self._read_keys()
        return None

    def _read_keys(self) -> None:
        with contextlib.suppress(OSError):
            self._pending = os.read(self._keys, 64)
        if not self._pending:  # the terminal is gone
            self._keys, self._pending = -1, b"q"

    def _key(self) -> str:
        """Return the next of the keys that were pressed; several may come at once."""
        length = next((length for length in (4, 3) if self._pending[:length] in _KEYS), 1)
        key, self._pending = self._pending[:length], self._pending[length:]
        return _KEYS.get(key, key.decode("ascii", "replace"))

    def _take(self) -> None:
        if self._keys >= 0:
            with contextlib.suppress(termios.error):
                self._saved = termios.tcgetattr(self._keys)
                tty.setcbreak(self._keys, termios.TCSADRAIN)  # keys at once and unseen; Ctrl-C stays a signal
        self._put(_ENTER)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError):
            self._put(_LEAVE)
        if self._saved is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys if self._keys >= 0 else sys.stdin.fileno(), termios.TCSADRAIN, self._saved)

    def _put(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the shell gets its terminal, and this process draws again when it is continued."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
