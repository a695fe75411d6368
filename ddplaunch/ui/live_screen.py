"""The terminal as a screen that rich redraws, until `q` is pressed or a signal ends it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from types import FrameType
from typing import TYPE_CHECKING, Any

from ddplaunch.ui.table import console_on
from ddplaunch.ui.terminal import Terminal
from ddplaunch.ui.top_view import TopView

if TYPE_CHECKING:
    from rich.live import Live

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_LOOK_S = 0.25  # how often the size of the window is looked at


class LiveScreen:
    """Used in ``with``: whatever happens inside, the terminal is afterwards as it was before."""

    def __init__(self, terminal: Terminal) -> None:
        """Change nothing yet."""
        from rich.live import Live

        self._console = console_on(sys.stdout, terminal, live=True)
        self._live: Live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        self._modes: list[Any] = []
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> LiveScreen:
        """Take the terminal; a signal that ends the process gives it back first."""
        self._handlers = {number: signal.signal(number, _end) for number in _ENDING}
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._suspend)
        self._take()
        return self

    def __exit__(self, *problem: object) -> None:
        """Give the terminal back."""
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def show(self, view: TopView) -> None:
        """Draw, in the width and height that the terminal has now."""
        self._live.update(view, refresh=True)

    def wait(self, until_s: float) -> bool:
        """Wait until ``until_s`` (time.monotonic()), drawing anew when the size changes; return whether to quit."""
        size = self._console.size
        while (remaining_s := until_s - time.monotonic()) > 0:
            watched = [self._keys] if self._keys >= 0 else []
            if select.select(watched, [], [], min(remaining_s, _LOOK_S))[0]:
                pressed = os.read(self._keys, 64)
                if not pressed or b"q" in pressed:  # nothing: the terminal is gone
                    return True
            if self._console.size != size:
                size = self._console.size
                self._live.refresh()
        return False

    def _take(self) -> None:
        if self._keys >= 0:
            with contextlib.suppress(termios.error):
                self._modes = termios.tcgetattr(self._keys)
                tty.setcbreak(self._keys, termios.TCSADRAIN)  # keys at once and unseen; Ctrl-C stays a signal
        self._live.start()

    def _give_back(self) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()
        if self._modes:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._modes)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the shell gets its terminal, and this process draws again when it is continued."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self._live.refresh()


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
