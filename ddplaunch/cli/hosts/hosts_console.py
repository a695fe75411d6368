"""Shows the output of several hosts on one console, as if it came from one machine.

A thread writes it: a paused terminal (Ctrl-S) must not keep the launcher from its heartbeat, because hosts that hear
nothing from their launcher end the job.
"""

from __future__ import annotations

import os
import queue
import re
import sys
import threading
from typing import Literal

from ddplaunch.ui.terminal import Terminal, visible, wrap
from ddplaunch.values.escapes import HarmlessPieces, harmless_line

_WAITING = 64 << 20  # bytes; more is dropped, since the record has all output anyway
_LINE = 1 << 16
_OWN_PREFIX = re.compile(rb"\[[^\]]+:\d+\] ")


class HostsConsole:
    """stdout and stderr. Node 0's bytes pass unchanged; other nodes' output passes by whole lines after their host."""

    def __init__(self, names: tuple[str, ...], prefixed: bool) -> None:
        """``prefixed``: whether the hosts themselves put the rank before each line (``--show``)."""
        self._names, self._prefixed = names, prefixed
        self._parts: dict[tuple[int, str], bytes] = {}
        self._pieces: dict[tuple[int, str], HarmlessPieces] = {}
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._dropped = 0
        self._at_line_start = True
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def show(self, node: int, stream: Literal["out", "err"], data: bytes) -> None:
        """Queue a node's output for the console."""
        descriptor = 1 if stream == "out" else 2
        if node == 0 or (self._prefixed and stream == "out"):
            pieces = self._pieces.setdefault((node, stream), HarmlessPieces())
            # node 0 without prefixes shows rank 0 alone, byte for byte
            self._put(descriptor, pieces.feed(data) if self._prefixed and os.isatty(descriptor) else data)
            return
        *lines, rest = (self._parts.pop((node, stream), b"") + data).split(b"\n")
        if len(rest) > _LINE:
            lines.append(rest)
            rest = b""
        self._parts[node, stream] = rest
        if os.isatty(descriptor):
            lines = [harmless_line(line) for line in lines]
        self._put(descriptor, b"".join(self._named(node, line) for line in lines if line.strip()))

    def say(self, text: str) -> None:
        """Queue the launcher's own text as separate lines; without text, begin a new line on a terminal."""
        if not text:
            self._put(2, b"\n" if os.isatty(2) else b"")
            return
        lines = wrap(visible(text), Terminal.of(sys.stderr).width, "ddplaunch: ", "  ")
        self._put(2, ("" if self._at_line_start else "\n").encode() + "".join(f"{line}\n" for line in lines).encode())

    def _named(self, node: int, line: bytes) -> bytes:
        if self._prefixed and _OWN_PREFIX.match(line):
            return line + b"\n"
        return b"[" + self._names[node].encode() + b"] " + line + b"\n"

    def _put(self, descriptor: int, data: bytes) -> None:
        if not data:
            return
        if self._waiting > _WAITING:
            self._dropped += len(data)
            return
        self._waiting += len(data)
        self._queue.put((descriptor, data))

    def close(self, deadline_s: float = 5.0) -> None:
        """Show what is left, incomplete lines too; begin a new line. A paused terminal gets ``deadline_s`` seconds."""
        for (node, stream), rest in self._parts.items():
            if rest.strip():
                descriptor = 1 if stream == "out" else 2
                self._put(descriptor, self._named(node, harmless_line(rest) if os.isatty(descriptor) else rest))
        if self._dropped:
            self._put(2, b"\nddplaunch: %d bytes were not shown, since the terminal stood still\n" % self._dropped)
        self._queue.put(None)
        self._thread.join(deadline_s)
        if not self._at_line_start and not self._thread.is_alive():
            self._write_all(2, b"\n")

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            descriptor, data = item
            self._write_all(descriptor, data)
            self._waiting -= len(data)
            if os.isatty(descriptor):
                self._at_line_start = data.endswith(b"\n")

    def _write_all(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                threading.Event().wait(0.01)
            except OSError:  # the reader is gone
                return
