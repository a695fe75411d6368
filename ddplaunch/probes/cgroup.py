"""Where this process sits in the cgroup trees, v1 and v2; refuses to know what any limit means."""

from __future__ import annotations

from pathlib import Path

from ddplaunch.frozen import dataclass
from ddplaunch.probes import files


@dataclass(frozen=True)
class Levels:
    """``folders`` run from this process's own cgroup up to the mount; limits of all of them apply."""

    version: int  # 1 or 2
    folders: tuple[str, ...]

    def minimum(self, name: str) -> int | None:
        """Return the smallest number that a file of this name holds on any level, or None ("max" everywhere)."""
        values = [files.number(f"{folder}/{name}") for folder in self.folders]
        return min((value for value in values if value is not None), default=None)


NOWHERE = Levels(2, ())


def levels(controller: str, root: Path = Path("/")) -> Levels:
    """Return the cgroups whose ``controller`` ("cpu", "memory", "pids") governs this process.

    A v1 hierarchy that carries the controller wins over v2, as in the kernel: a controller lives in one of them.
    See cgroups(7), /proc/self/cgroup and proc_pid_mountinfo(5).
    """
    memberships = (files.read(f"{root}/proc/self/cgroup") or "").splitlines()
    mounts = _mounts(root)
    unified = NOWHERE
    for line in memberships:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            found = _walk(path, controller, mounts, root)
            if found.folders:
                return found
        elif not controllers:
            unified = _walk(path, None, mounts, root)
    return unified


def _mounts(root: Path) -> list[tuple[str, str, str, list[str]]]:
    """Return (file system type, root inside the hierarchy, mount point, super options) of each cgroup mount."""
    found = []
    for line in (files.read(f"{root}/proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        if kind in ("cgroup", "cgroup2"):
            fields = before.split(" ")
            found.append(
                (kind, files.unescape(fields[3]), files.unescape(fields[4]), options.split(" ")[-1].split(","))
            )
    return found


def _walk(path: str, controller: str | None, mounts: list[tuple[str, str, str, list[str]]], root: Path) -> Levels:
    version = 2 if controller is None else 1
    for kind, inside, point, options in mounts:
        if (kind == "cgroup2") != (version == 2) or (controller is not None and controller not in options):
            continue
        base = f"{root}/{point.lstrip('/')}".replace("//", "/")
        return Levels(version, tuple(_upwards(base, _below(path, inside))))
    return Levels(version, ())


def _below(path: str, inside: str) -> str:
    """Return ``path`` as seen below a mount that shows the part ``inside`` of the hierarchy (Docker with v1)."""
    if inside == "/":
        return path
    if path == inside or path.startswith(inside + "/"):
        return path[len(inside) :]
    return "/"


def _upwards(base: str, path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    if ".." in parts:  # outside of our cgroup namespace: nothing below the mount is ours but its top
        parts = []
    candidates = ["/".join([base, *parts[:length]]) for length in range(len(parts), -1, -1)]
    return [folder for folder in candidates if Path(folder).is_dir()]
