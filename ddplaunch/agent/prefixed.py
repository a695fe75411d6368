"""Output of several ranks as whole lines with a prefix; refuses to read or write anything.

Bytes that are not UTF-8 pass as they are. A progress bar, which returns to the start of its line with ``\\r``, becomes
the one line that a terminal shows in the end.
"""

from __future__ import annotations

#: A longer line is shown in pieces, each with the prefix, so that the guard stays small.
LONGEST_LINE_BYTES = 16 << 20
_BUSY_BYTES = 1 << 14


class Prefixed:
    """One stream of one rank; ``feed`` takes what was read and returns what can be shown."""

    def __init__(self, prefix: bytes) -> None:
        """``prefix`` stands before every line, with its own space."""
        self._prefix = prefix
        self._open: list[bytes] = []
        self._open_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Return the lines that ``data`` finishes, each with the prefix and a newline."""
        end = data.rfind(b"\n")
        if end < 0:
            self._hold(data)
            return self.flush() if self._open_bytes > LONGEST_LINE_BYTES else b""
        text = b"".join((*self._open, data[:end]))
        self._open, self._open_bytes = [], 0
        self._hold(data[end + 1 :])
        return self._show(text)

    def flush(self) -> bytes:
        """Return what is left of an unfinished line, as a line; nothing if there is none."""
        text = b"".join(self._open)
        self._open, self._open_bytes = [], 0
        return self._show(text) if text.strip(b"\r") else b""

    def _hold(self, data: bytes) -> None:
        if not data:
            return
        self._open.append(data)
        self._open_bytes += len(data)
        if b"\r" in data and self._open_bytes > _BUSY_BYTES:  # a bar that runs for hours stays one line
            held = b"".join(self._open)
            last = b"\r" if held.endswith(b"\r") else b""
            self._open = [finally_shown(held) + last]
            self._open_bytes = len(self._open[0])

    def _show(self, text: bytes) -> bytes:
        lines = text.split(b"\n")
        if b"\r" in text:
            lines = [finally_shown(line) if b"\r" in line else line for line in lines]
        between = b"\n" + self._prefix
        return self._prefix + between.join(lines) + b"\n"


def finally_shown(line: bytes) -> bytes:
    """Return what a terminal shows of ``line`` after all its ``\\r``: later text covers earlier text, cell by cell.

    A line with escape sequences (colours, "erase to the end") is its last part: cells cannot be counted there.
    """
    parts = line.split(b"\r")
    if b"\x1b" in line:
        return next((part for part in reversed(parts) if part.strip()), b"")
    shown = ""
    for part in parts:
        over = part.decode("utf-8", "surrogateescape")
        shown = over + shown[len(over) :]
    return shown.encode("utf-8", "surrogateescape").rstrip(b" ") if len(parts) > 1 else line
