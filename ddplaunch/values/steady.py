"""Seconds since 1970 by a clock that nobody sets, for when something happened in a run and how long that took.

A machine's clock is set while runs go on, by hand or when NTP reaches it, and a run would end before it began.
"""

from __future__ import annotations

import time

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)  # goes on while a laptop sleeps; Linux alone has it


def _passed_s() -> float:
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)


_OFFSET_S = time.time() - _passed_s()


def steady_s() -> float:
    """Return seconds since the epoch: as the clock was when this process began, and what passed since."""
    return _OFFSET_S + _passed_s()
