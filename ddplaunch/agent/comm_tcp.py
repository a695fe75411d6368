"""How many TCP segments this process sent, and how many of them again; refuses to open a connection.

The kernel counts for each socket: https://man7.org/linux/man-pages/man7/tcp.7.html (TCP_INFO),
https://github.com/torvalds/linux/blob/master/include/uapi/linux/tcp.h (struct tcp_info).
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

_TOTAL_RETRANS = 100  # offsets in struct tcp_info, which only ever grows at its end
_SEGS_OUT = 136
_WANTED = 256


def resent() -> tuple[int, int]:
    """Return (segments sent, segments sent again) over all TCP sockets that this process has open."""
    sent = again = 0
    for path in Path("/proc/self/fd").iterdir():
        counts = _counts(path)
        if counts is not None:
            sent, again = sent + counts[0], again + counts[1]
    return sent, again


def _counts(path: Path) -> tuple[int, int] | None:
    """Return the counts of one descriptor, None where it is no TCP socket."""
    try:
        if not str(path.readlink()).startswith("socket:"):
            return None
        with socket.socket(fileno=os.dup(int(path.name))) as handle:
            if handle.type != socket.SOCK_STREAM or handle.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _WANTED)
    except OSError:
        return None
    if len(info) < _SEGS_OUT + 4:  # a kernel before 4.2
        return None
    return struct.unpack_from("=I", info, _SEGS_OUT)[0], struct.unpack_from("=I", info, _TOTAL_RETRANS)[0]
