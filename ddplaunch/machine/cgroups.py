"""The cgroups that limit this process, versions 1 and 2, and how often the kernel killed in them.

torchrun's process reads them too, so this imports no facts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ddplaunch.machine import files

#: The variable in which the agent passes ``oom_kills()`` from before a run to its end.
OOM_KILLS_BEFORE = "DDPLAUNCH_OOM_KILLS_BEFORE"


class CgroupLevels(NamedTuple):
    """The cgroup folders from this process's own up to the mount; the limits of all of them apply."""

    version: int  # 1 or 2
    folders: tuple[str, ...]


def levels(controller: str, root: Path = Path("/")) -> CgroupLevels:
    """Return the cgroups whose ``controller`` ("cpu", "memory", "pids") governs this process.

    A v1 hierarchy with the controller precedes v2, as in the kernel: a controller is in one hierarchy only.
    See cgroups(7), /proc/self/cgroup and proc_pid_mountinfo(5).
    """
    paths: dict[str, str] = {}  # keyed by controller for v1 hierarchies, by an empty name for v2
    for line in (files.read(f"{root}/proc/self/cgroup") or "").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        paths |= dict.fromkeys(controllers.split(","), path)
    for version, name in ((1, controller), (2, "")):
        if name in paths and (folders := _folders(name, paths[name], root)):
            return CgroupLevels(version, folders)
    return CgroupLevels(2, ())


def _folders(controller: str, path: str, root: Path) -> tuple[str, ...]:
    """Return the folders from ``path`` up to the mount of its hierarchy; none if it is not mounted."""
    for line in (files.read(f"{root}/proc/self/mountinfo") or "").splitlines():
        mount_fields, _, filesystem_fields = line.partition(" - ")
        kind, _, options = filesystem_fields.partition(" ")
        carried = {"cgroup": options.split(" ")[-1].split(","), "cgroup2": [""]}.get(kind, [])
        if controller in carried:
            inside, point = map(files.unescape, mount_fields.split(" ")[3:5])
            base = f"{root}/{point.lstrip('/')}".replace("//", "/")
            inside = inside.rstrip("/")  # a mount may show only this part of the hierarchy (Docker with v1)
            below = path[len(inside) :] if f"{path}/".startswith(f"{inside}/") else "/"
            return tuple(_upwards(base, below))
    return ()


def _upwards(base: str, path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    if ".." in parts:  # outside of our cgroup namespace: only the top of the mount is ours
        parts = []
    candidates = ["/".join([base, *parts[:length]]) for length in range(len(parts), -1, -1)]
    return [folder for folder in candidates if Path(folder).is_dir()]


def oom_kills() -> int | None:
    """Return how many processes of this cgroup the kernel has killed for memory so far, None if unknown.

    ``oom_kill`` in memory.events, or in memory.oom_control with cgroup v1:
    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
    """
    for folder in levels("memory").folders:
        for name in ("memory.events", "memory.oom_control"):
            match = re.search(r"^oom_kill (\d+)$", files.read(f"{folder}/{name}") or "", re.MULTILINE)
            if match:
                return int(match[1])
    return None
