"""What agent and template say to each other: one value at a time over a stream socket; refuses to interpret it."""

from __future__ import annotations

import marshal
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("=Q")
_DESCRIPTORS = 8


def send(channel: socket.socket, value: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one value of plain built-in types, with descriptors. Raises OSError if the other side is gone.

    marshal, because both sides are the same interpreter, and it keeps the surrogates of undecodable names.
    """
    data = marshal.dumps(value)
    socket.send_fds(channel, [_LENGTH.pack(len(data))], list(descriptors))
    channel.sendall(data)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return one value and its descriptors; None when the other side is gone."""
    try:
        head, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, _DESCRIPTORS)
        head += _read(channel, _LENGTH.size - len(head)) if head else b""
        if len(head) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack(head)
        data = _read(channel, size)
    except ConnectionError:
        return None
    return (marshal.loads(data), descriptors) if len(data) == size else None


def _read(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            break
        data += part
    return bytes(data)
