"""The output of `ddplaunch logs`: what ranks printed, as whole lines, each after its rank.

The bytes of a single rank pass unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ddplaunch.records.log_files import LogFile, LogPart
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.escapes import harmless_line
from ddplaunch.values.words import ranks_text, size_text

_LONGEST = 1 << 20  # bytes of an unfinished line before it is shown as a line
_BAR_S = 5.0  # between two showings of a progress bar, which ends no line


class Lines:
    """Turns the ranks' output into what is shown: whole lines, each with its prefix."""

    def __init__(
        self,
        prefix: Callable[[LogFile], bytes] | None,
        on_terminal: bool = False,
        untouched: bool = True,
    ) -> None:
        """Without ``prefix``, lines are shown as they are, and bytes pass ``untouched``.

        ``on_terminal``: a line's colours end with it.
        """
        self._untouched = untouched and prefix is None
        self._on_terminal = on_terminal
        self._prefix = prefix
        self._rest: dict[LogFile, bytes] = {}
        self._shown_s: dict[LogFile, float] = {}

    def take(self, file: LogFile, data: bytes) -> bytes:
        """Return what can be shown now; an unfinished line is kept until its end arrives."""
        if self._untouched:
            return data
        data = self._rest.pop(file, b"") + data
        if len(data) - data.rfind(b"\n") > _LONGEST:
            data += b"\n"
        whole, newline, rest = data.rpartition(b"\n")
        if rest:
            self._rest[file] = rest
        return self._lines(file, whole + newline)

    def bars(self) -> bytes:
        """Return the latest state of each progress bar, every few seconds."""
        now_s, shown = time.monotonic(), b""
        for file, rest in list(self._rest.items()):
            head, drawn, tail = rest.rpartition(b"\r")
            if drawn and now_s - self._shown_s.get(file, 0) >= _BAR_S:
                self._rest[file] = tail
                if head.strip():  # the first state of a bar begins with its \r
                    self._shown_s[file] = now_s
                    shown += self._lines(file, head + b"\n")
        return shown

    def end(self) -> bytes:
        """Return the unfinished lines."""
        left, self._rest = self._rest, {}
        return b"".join(self._lines(file, rest + b"\n") for file, rest in left.items() if rest)

    def _lines(self, file: LogFile, data: bytes) -> bytes:
        if not data:
            return b""
        if b"\r" in data:
            lines = (line.split(b"\r") for line in data.split(b"\n"))  # the last text is what a terminal shows
            data = b"\n".join(next(filter(None, reversed(parts)), b"") for parts in lines)
        if self._prefix is None:
            return data
        if self._on_terminal:
            data = b"".join([harmless_line(line) + b"\n" for line in data[:-1].split(b"\n")])
        prefix = self._prefix(file)
        return prefix + data[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


def prefix_of(hosts: dict[int, str], terminal: Terminal) -> Callable[[LogFile], bytes]:
    """Return a function that makes a file's prefix: ``[host:rank] ``, or ``[node-K:rank] `` for an unknown host."""

    def prefix(file: LogFile) -> bytes:
        text = f"[{hosts.get(file.node, f'node-{file.node}')}:{file.rank}]"
        return f"{terminal.paint(text, 'dim')} ".encode(errors="replace")

    return prefix


def cut_text(parts: Sequence[LogPart]) -> str | None:
    """Return a line about how much of these parts was not kept, None if all was."""
    cut = [part for part in parts if part.cut_bytes > 0]
    if not cut:
        return None
    whose = ranks_text(sorted({part.file.rank for part in cut}))
    size = size_text(sum(part.cut_bytes for part in cut))
    return f"{size} between the first and the last output of {whose} were cut, as `--log-max-size` says\n"
