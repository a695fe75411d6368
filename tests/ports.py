"""Ports for tests that have to name one before it is bound; refuses those that the kernel hands out by itself."""

from __future__ import annotations

import random
import socket

#: Below the range of outgoing connections and of port 0 (ip_local_port_range, from 32768), where any process of this
#: machine may get a port between the look and its use.
_LEAST, _MOST = 10_000, 20_000


def free_port() -> int:
    """Return a port that nobody listens on now, and that nobody gets without asking for it."""
    for port in random.sample(range(_LEAST, _MOST), 100):
        with socket.socket() as taken:
            try:
                taken.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"of 100 ports between {_LEAST} and {_MOST} none is free")
