"""How many CPUs this process may use: affinity and cgroup quota; refuses to decide how many threads that means."""

from __future__ import annotations

import math
import os
from pathlib import Path

from ddplaunch.probes import cgroup, files
from ddplaunch.probes.facts import CpuFacts


def probe_cpu(root: Path = Path("/")) -> CpuFacts:
    """Return the CPUs of the machine, of this process's affinity mask and of its cgroup quota."""
    affinity = len(os.sched_getaffinity(0))
    quota = _quota(cgroup.levels("cpu", root))
    usable = affinity if quota is None else min(affinity, math.floor(quota))
    return CpuFacts(logical=os.cpu_count() or affinity, affinity=affinity, quota_cpus=quota, usable=max(1, usable))


def _quota(levels: cgroup.Levels) -> float | None:
    """Return the tightest quota on the way up; a parent's quota binds its children too.

    v1 has cpu.cfs_quota_us (-1: none) and cpu.cfs_period_us, v2 has "QUOTA PERIOD" in cpu.max
    (https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files).
    """
    quotas = []
    for folder in levels.folders:
        if levels.version == 1:
            quota = files.number(f"{folder}/cpu.cfs_quota_us")
            period = files.number(f"{folder}/cpu.cfs_period_us")
        else:
            quota, period = _two_numbers(files.read(f"{folder}/cpu.max") or "")
        if quota is not None and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _two_numbers(text: str) -> tuple[int | None, int | None]:
    first, _, second = text.partition(" ")
    return (int(first), int(second)) if first.isdigit() and second.isdigit() else (None, None)
