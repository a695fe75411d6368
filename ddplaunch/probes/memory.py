"""Host memory and /dev/shm as this process may use them; refuses to judge whether they suffice."""

from __future__ import annotations

import os
from pathlib import Path

from ddplaunch.probes import cgroup, files
from ddplaunch.probes.facts import MemoryFacts, ShmFacts
from ddplaunch.values import Unavailable

_FILES = {  # cgroup version: limit, usage, the reclaimable page cache's line in memory.stat
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def probe_memory(root: Path = Path("/")) -> MemoryFacts | Unavailable:
    """Return total, limit and available bytes; a cgroup limit at or above the machine's memory counts as none."""
    meminfo = _table(files.read(f"{root}/proc/meminfo") or "", separator=":")
    total_kib = meminfo.get("MemTotal")
    if total_kib is None:
        return Unavailable("/proc/meminfo does not tell MemTotal")
    total = total_kib * 1024
    # kernels before 3.14 have no MemAvailable; MemFree + Cached is what free(1) then showed
    available_kib = meminfo.get("MemAvailable", meminfo.get("MemFree", 0) + meminfo.get("Cached", 0))
    available, tightest = available_kib * 1024, total
    levels = cgroup.levels("memory", root)
    limit_file, usage_file, cache_name = _FILES[levels.version]
    for folder in levels.folders:
        limit = files.number(f"{folder}/{limit_file}")
        if limit is None or limit >= total:  # "max", or v1's 2^63 rounded down to a page
            continue
        tightest = min(tightest, limit)
        usage = files.number(f"{folder}/{usage_file}") or 0
        cache = _table(files.read(f"{folder}/memory.stat") or "", separator=" ").get(cache_name, 0)
        available = min(available, max(0, limit - usage + min(cache, usage)))
    return MemoryFacts(total_bytes=total, available_bytes=available, limit_bytes=tightest if tightest < total else None)


def _table(text: str, separator: str) -> dict[str, int]:
    """Return the lines "name<separator> number [kB]" as numbers."""
    table = {}
    for line in text.splitlines():
        name, _, value = line.partition(separator)
        words = value.split()
        if words and words[0].isdigit():
            table[name] = int(words[0])
    return table


def probe_shm(root: Path = Path("/")) -> ShmFacts | Unavailable:
    """Return the size and the free space of /dev/shm, where NCCL and DataLoader workers share memory."""
    try:
        status = os.statvfs(f"{root}/dev/shm")
    except OSError as error:
        return Unavailable(f"/dev/shm: {error.strerror}")
    return ShmFacts(size_bytes=status.f_blocks * status.f_frsize, free_bytes=status.f_bavail * status.f_frsize)
