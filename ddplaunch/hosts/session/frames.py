"""The frames that a launcher and a host exchange over one ssh session, as bytes and back.

A frame is the length of its body (4 bytes, big-endian), one byte for its kind, and the body: JSON, or for output and
records the bytes themselves. A shell's start-up files may print in front of the host's first frame; ``GREETING`` says
where that ends. Both sides give up when they have heard nothing for ``SILENCE_S``: the launcher beats, the host echoes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

GREETING = b"\0ddplaunch-host-1\n"
BEAT_S = 2.0
#: torchrun survives a network that is cut for half a minute, and so do we: after such a cut TCP sends again what was
#: lost up to 26 s later, because it doubles its pause each time (RFC 6298, section 5.5).
SILENCE_S = 60.0
_LARGEST = 64 << 20  # a body that claims more is no frame
_HEAD = struct.Struct("!IB")


class Kind(IntEnum):
    """ASK … LEAVE go from the launcher to a host, ANSWER … RECORD from a host to the launcher, BEAT both ways."""

    BEAT = 1  # {"sent": launcher's clock, "wall": host's time of day}
    ASK = 2  # {"id": N, "what": "facts" | "sources" | "listen" | "reach", …}
    LAUNCH = 3  # what to start, see ``HostJob``
    SIGNAL = 4  # {"signal": N}, {"kill": true} for SIGKILL
    SIZE = 5  # {"rows": R, "columns": C} of the launcher's terminal
    LEAVE = 6  # nothing more is wanted
    ANSWER = 16  # {"id": N, …}
    OUT = 17  # stdout of what was started
    ERR = 18  # its stderr
    ENDED = 19  # {"status": N} or {"refused": [findings…]}
    RECORD = 20  # a piece of a tar archive of the record; empty: that was all


def pack(kind: Kind, body: bytes | dict[str, Any] = b"") -> bytes:
    """Return one frame; a dict becomes JSON, in which text that is not UTF-8 crosses as escapes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _HEAD.pack(len(data), kind) + data


def unpack(body: bytes) -> dict[str, Any]:
    """Return a JSON body. Raises ValueError where it is none."""
    try:
        value = json.loads(body)
    except RecursionError:
        raise ValueError("a frame is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("a frame holds no JSON object")
    return value


class Frames:
    """Bytes as they arrive to whole frames. ``before`` is what came in front of the greeting."""

    def __init__(self, greeting: bool = False) -> None:
        """``greeting``: whether it has to be found first."""
        self._data = bytearray()
        self.greeted = not greeting
        self.before = b""

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """Yield what is complete. Raises ValueError for what is no frame."""
        self._data += data
        if not self.greeted and not self._find_greeting():
            return
        while len(self._data) >= _HEAD.size:
            length, number = _HEAD.unpack_from(self._data)
            if length > _LARGEST:
                raise ValueError(f"a frame of {length} bytes")
            end = _HEAD.size + length
            if len(self._data) < end:
                return
            body = bytes(self._data[_HEAD.size : end])
            del self._data[:end]
            yield Kind(number), body

    def _find_greeting(self) -> bool:
        before, found, after = self._data.partition(GREETING)
        self.before = bytes(before[-4096:])
        if found:
            self._data, self.greeted = bytearray(after), True
        elif len(self._data) > 1 << 20:
            del self._data[: -len(GREETING)]
        return self.greeted
