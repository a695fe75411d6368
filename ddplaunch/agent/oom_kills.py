"""Counts the processes that the kernel has killed for memory, before a run and at its end."""

from __future__ import annotations

import re

from ddplaunch.machine.files import read
from ddplaunch.machine.hardware import levels

#: The variable in which the plug-in passes ``oom_kills()`` from before the run to the guard.
OOM_KILLS_BEFORE = "DDPLAUNCH_OOM_KILLS_BEFORE"


def oom_kills() -> int | None:
    """Return how many processes of this cgroup the kernel has killed for memory so far, None if unknown.

    ``oom_kill`` in memory.events, or in memory.oom_control with cgroup v1:
    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
    """
    for folder in levels("memory").folders:
        for name in ("memory.events", "memory.oom_control"):
            match = re.search(r"^oom_kill (\d+)$", read(f"{folder}/{name}") or "", re.MULTILINE)
            if match:
                return int(match[1])
    return None
