"""The name of a run, sortable by time and unique; refuses to look at what other runs exist."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_SUFFIX = 6  # 36^6: 64 launches in one second meet with a probability of one in a million


def new_run_id(now: float | None = None) -> str:
    """Return a name such as ``20261121-143012-x7k2q9``. ``now`` is in seconds since the epoch; the name is in UTC.

    UTC, because nodes of one job may live in different time zones, and because names have to sort through the hour
    that daylight saving repeats.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    number = int.from_bytes(os.urandom(8), "big")
    suffix = ""
    for _ in range(_SUFFIX):
        number, digit = divmod(number, len(_ALPHABET))
        suffix += _ALPHABET[digit]
    return f"{stamp}-{suffix}"
