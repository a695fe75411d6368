"""The file system and the disk below a path; refuses to measure how fast they are."""

from __future__ import annotations

import os
from pathlib import Path

from ddplaunch.probes import files


def filesystem(path: str, root: Path = Path("/")) -> tuple[str | None, str]:
    """Return the type and the source of the mount that holds ``path``, by the longest prefix in /proc/mounts.

    Links are resolved, which can block on a dead mount: call it in a child with a deadline. Where two mounts
    share a mount point, the later one covers the earlier.
    """
    real = os.path.realpath(path)
    best, kind, source = -1, None, ""
    for line in (files.read(f"{root}/proc/mounts") or "").splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = files.unescape(fields[1])
        if len(point) >= best and (real == point or real.startswith(point.rstrip("/") + "/")):
            best, kind, source = len(point), fields[2], files.unescape(fields[0])
    return kind, source


def rotational(device: int, source: str = "", root: Path = Path("/")) -> bool | None:
    """Return whether the disk spins, by the kernel's queue/rotational; None where that means nothing.

    ``device`` is a `st_dev`; btrfs and overlays have an anonymous one (major 0), then the mount's ``source``
    is asked. Disks of virtual machines report 1 whatever lies below them, so they count as unknown.
    """
    if os.major(device) == 0:
        try:
            device = Path(source).stat().st_rdev if source.startswith("/dev/") else 0
        except OSError:
            device = 0
    if not device:
        return None
    folder = f"{root}/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    real = os.path.realpath(folder)
    for queue in (f"{real}/queue/rotational", f"{Path(real).parent}/queue/rotational"):  # disk, or its partition
        value = files.number(queue)
        if value is not None:
            return None if _virtual(real) else value == 1
    return None


def _virtual(disk: str) -> bool:
    """Return whether a disk, or any that device mapper or md builds it from, is a hypervisor's."""
    below = [os.path.realpath(f"{disk}/slaves/{name}") for name in files.names(f"{disk}/slaves")]
    return any("/virtio" in path or "/vbd-" in path or "/virtual/block/loop" in path for path in (disk, *below))
