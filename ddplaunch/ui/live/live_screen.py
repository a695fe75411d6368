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
from dataclasses import replace
from types import FrameType
from typing import Any

from ddplaunch.ui.live.top_view import TopView, top_lines
from ddplaunch.ui.terminal import Terminal


class LiveScreen:
    """For a ``with`` statement: restores the terminal, whatever happens inside. Ctrl-Z does nothing."""

    def __init__(self, terminal: Terminal) -> None:
        """Leave the terminal unchanged until ``with`` enters."""
        from rich.console import Console
        from rich.live import Live

        self._terminal = terminal
        self._console = Console(file=sys.stdout, force_terminal=True, no_color=not terminal.styled)
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._keys = [sys.stdin.fileno()] if sys.stdin is not None and sys.stdin.isatty() else []
        self._restored = contextlib.ExitStack()

    def __enter__(self) -> LiveScreen:
        """Take the terminal; a signal that ends the process restores it first."""
        handlers: dict[int, Any] = dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT), _end)
        handlers[signal.SIGTSTP] = signal.SIG_IGN
        for number, handler in handlers.items():
            self._restored.callback(signal.signal, number, signal.signal(number, handler))
        for descriptor in self._keys:
            modes = termios.tcgetattr(descriptor)
            self._restored.callback(termios.tcsetattr, descriptor, termios.TCSADRAIN, modes)
            tty.setcbreak(descriptor, termios.TCSADRAIN)  # read keys at once, without echo; Ctrl-C stays a signal
        self._restored.enter_context(self._live)
        return self

    def __exit__(self, *problem: object) -> None:
        """Restore the terminal, which may be gone."""
        with contextlib.suppress(OSError, termios.error):
            self._restored.close()

    def show(self, view: TopView) -> None:
        """Draw in the terminal's current width and height."""
        from rich.text import Text

        size = self._console.size
        lines = top_lines(view, replace(self._terminal, width=size.width), size.height)
        self._live.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="ignore"), refresh=True)

    def wait(self, until_s: float) -> bool:
        """Wait until ``until_s`` (time.monotonic()) or for a key; return whether to quit."""
        for descriptor in select.select(self._keys, [], [], max(0.0, until_s - time.monotonic()))[0]:
            pressed = os.read(descriptor, 64)
            return not pressed or b"q" in pressed  # no bytes: the terminal is gone
        return False


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
