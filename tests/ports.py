"""Ports for tests that have to name one before it is bound; refuses those that the kernel hands out by itself."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

#: Below the range of outgoing connections and of port 0 (ip_local_port_range, from 32768), where any process of this
#: machine may get a port between the look and its use.
_LEAST, _MOST = 10_000, 20_000


def free_port() -> int:
    """Return a port that nobody listens on now, and that nobody gets without asking for it."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Return ``count`` of them."""
    found: list[int] = []
    for port in random.sample(range(_LEAST, _MOST), _MOST - _LEAST):
        if len(found) == count:
            break
        with suppress(OSError), socket.socket() as taken:
            taken.bind(("", port))
            found.append(port)
    return found
