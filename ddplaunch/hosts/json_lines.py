"""The messages between hosts or nodes: one JSON object a line, over an ssh session or a TCP connection."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping
from typing import Any

#: Precedes a host's first message, because a shell's start-up files may print too.
GREETING = b"\0ddplaunch-host-3\n"
OF_SSH = 255  # ssh's own exit status
_READ = 1 << 16


def json_line(message: Mapping[str, Any]) -> bytes:
    """Return one message as a line of ASCII; text that is not UTF-8 becomes escapes."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def message_in(line: bytes) -> dict[str, Any]:
    """Return the message in ``line``, an empty one for anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # a UnicodeDecodeError is a ValueError
        return {}
    return value if isinstance(value, dict) else {}


class LineReader:
    """Lines of a pipe or connection, with a deadline for each. ``heard_s`` is when data last came, monotonic."""

    def __init__(self, descriptor: int, most_bytes: int) -> None:
        """Read from ``descriptor``; a line of more than ``most_bytes`` ends the reading."""
        self._descriptor, self._most_bytes = descriptor, most_bytes
        self._pending = b""
        self.ended = False
        self.heard_s = time.monotonic()

    def next(self, until_s: float) -> bytes | None:
        """Return the next line; None when ``until_s`` has passed, or with ``ended`` set when no more will come."""
        readable = select.poll()
        readable.register(self._descriptor, select.POLLIN)
        while b"\n" not in self._pending:
            waited_s = until_s - time.monotonic()
            if self.ended or not readable.poll(max(0.0, waited_s) * 1000):
                return None
            try:
                data = os.read(self._descriptor, _READ)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            self.heard_s = time.monotonic()
            self._pending += data
            self.ended = not data or len(self._pending) > self._most_bytes
        line, _, self._pending = self._pending.partition(b"\n")
        return line
