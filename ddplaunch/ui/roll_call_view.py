"""The progress of a roll call: one line that is rewritten on a terminal, few plain ones elsewhere; refuses to wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from ddplaunch.hosts.roll_call_words import Status
from ddplaunch.ui.streams import speak, width
from ddplaunch.ui.style import cells, visible

_FIRST_S = 0.5  # nodes that are started together need no words
_PLAIN_S = 10.0
_SHOWN = 4


def status_text(status: Status, columns: int | None = None) -> str:
    """Return ``3 of 4 nodes joined, waiting for node 2 (gpu-07)``, cut where ``columns`` cells do not suffice."""
    shown = ", ".join(status.missing[:_SHOWN])
    more = f" and {len(status.missing) - _SHOWN} more" if len(status.missing) > _SHOWN else ""
    if not status.missing:
        text = f"{status.expected} of {status.expected} nodes joined"
    elif status.joined is None:
        text = f"waiting for {shown}"
    else:
        text = f"{status.joined} of {status.expected} nodes joined, waiting for {shown}{more}"
    text = visible(f"{text}; {status.note}" if status.note and status.missing else text)
    if columns is not None and cells(text) >= columns:
        return text[: max(0, columns - 4)] + "..."
    return text


class Progress:
    """Shows where a roll call stands on ``stream``; ``clock`` counts seconds."""

    def __init__(self, stream: TextIO | None, terminal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Write nothing yet."""
        self._stream, self._terminal, self._clock = stream, terminal, clock
        self._last_text = ""
        self._last_s: float | None = None

    def show(self, status: Status) -> None:
        """Show ``status``, unless it is too early or, off a terminal, nothing new or too soon after the last line."""
        if self._last_s is None and (status.waited_s < _FIRST_S or not status.missing):
            return
        if self._terminal:
            waited = f" ({status.waited_s:.0f} s)"
            text = f"\r\x1b[K{status_text(status, width(self._stream) - len(waited))}{waited}"
        else:
            text = status_text(status) + "\n"
            soon = self._last_s is not None and self._clock() - self._last_s < _PLAIN_S and status.missing
            if soon:
                return
        if text != self._last_text:
            speak(text, self._stream)
            self._last_text, self._last_s = text, self._clock()

    def end(self) -> None:
        """Leave the line behind, so that what follows starts on one of its own."""
        if self._terminal and self._last_s is not None:
            speak("\n", self._stream)
            self._last_s = None
