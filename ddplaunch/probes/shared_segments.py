"""Which files of /dev/shm a process holds, from its mappings and descriptors; refuses to remove any."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ddplaunch.frozen import dataclass

FOLDER = "/dev/shm/"
_DELETED = " (deleted)"


@dataclass(frozen=True)
class Segment:
    """One file of /dev/shm. ``named`` is False where only processes still hold it, and their end frees it."""

    path: str
    size_bytes: int
    named: bool
    holders: tuple[int, ...]


def held_segments(pids: Iterable[int], proc: str = "/proc") -> tuple[Segment, ...]:
    """Return what these processes hold there, each file once; a process that may not be looked into holds nothing."""
    sizes: dict[tuple[str, bool], int] = {}
    holders: dict[tuple[str, bool], set[int]] = {}
    for pid in pids:
        for path, size_bytes in [*_mapped(f"{proc}/{pid}/maps"), *_opened(f"{proc}/{pid}/fd")]:
            named = not path.endswith(_DELETED)
            key = (path.removesuffix(_DELETED), named)
            sizes[key] = max(sizes.get(key, 0), size_bytes)
            holders.setdefault(key, set()).add(pid)
    return tuple(
        Segment(path, sizes[path, named], named, tuple(sorted(holders[path, named]))) for path, named in sorted(sizes)
    )


def _mapped(path: str) -> list[tuple[str, int]]:
    """Return names and lengths in /proc/PID/maps, https://man7.org/linux/man-pages/man5/proc_pid_maps.5.html."""
    found = []
    try:
        with open(path, errors="surrogateescape") as lines:
            for line in lines:
                if FOLDER in line:
                    bounds, *_, name = line.rstrip("\n").split(maxsplit=5)
                    low, _, high = bounds.partition("-")
                    if name.startswith(FOLDER):
                        found.append((name, int(high, 16) - int(low, 16)))
    except (OSError, ValueError):
        pass
    return found


def _opened(folder: str) -> list[tuple[str, int]]:
    found = []
    try:
        for name in os.listdir(folder):  # noqa: PTH208 - a process may have thousands
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115
            if target.startswith(FOLDER):
                found.append((target, os.stat(f"{folder}/{name}").st_size))  # noqa: PTH116
    except OSError:  # it closed the file, ended, or belongs to somebody else
        pass
    return found
