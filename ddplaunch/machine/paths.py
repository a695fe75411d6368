"""Inspects data and output paths (file system, space, access), each in a child with a deadline.

A dead NFS mount blocks every system call on it, `os.path.exists` included, and cannot be interrupted.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ddplaunch.machine import deadline, files
from ddplaunch.machine.facts import PathFact


def filesystem(path: str, root: Path = Path("/")) -> str | None:
    """Return the type of the mount that contains ``path``, by the longest prefix in /proc/mounts.

    Resolves links, which can block on a dead mount: call it in a child with a deadline. If two mounts share a mount
    point, the later one covers the earlier.
    """
    real = os.path.realpath(path)
    best, kind = -1, None
    for line in (files.read(f"{root}/proc/mounts") or "").splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = files.unescape(fields[1])
        if len(point) >= best and (real == point or real.startswith(point.rstrip("/") + "/")):
            best, kind = len(point), fields[2]
    return kind


Role = Literal["data", "output"]

# errors from a mount whose server is gone, if it reports any (soft NFS, a crashed FUSE daemon, a lost disk)
_DEAD = {errno.ESTALE, errno.ENOTCONN, errno.EIO, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ENODEV}


def begin_looks(paths_with_roles: Sequence[tuple[str, Role]], deadline_s: float) -> Callable[[], tuple[PathFact, ...]]:
    """Start to inspect each path in its own child, so that one dead path does not hide the others.

    The returned function collects the facts in order. All paths together get ``deadline_s`` seconds; late ones are
    "unreachable".
    """
    children = [deadline.start(partial(describe_path, path, role)) for path, role in paths_with_roles]

    def finish() -> tuple[PathFact, ...]:
        answers = deadline.collect(children, deadline_s)
        return tuple(
            PathFact(path, "unreachable", error=answer.error) if answer.error else PathFact(path, **answer.value)
            for (path, _), answer in zip(paths_with_roles, answers, strict=True)
        )

    return finish


def describe_path(path: str, role: Role) -> dict[str, Any]:
    """Return the fields of a PathFact; runs in the child and may block.

    A missing data path that contains ``* ? [`` is expanded, and its first match is described instead.
    """
    try:
        status = os.stat(path)  # noqa: PTH116  Path("") would be the working folder
    except OSError as error:
        return _without_status(path, role, error)
    except ValueError as error:  # a NUL byte in the path
        return {"kind": "missing", "error": str(error)}
    return _described(path, status)


def _without_status(path: str, role: Role, error: OSError) -> dict[str, Any]:
    if error.errno in _DEAD:
        return {"kind": "unreachable", "error": error.strerror, "filesystem": filesystem(path)}
    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
        return {"kind": "other", "error": error.strerror}
    if role == "data":
        match = next(glob.iglob(path, recursive=True), None)  # noqa: PTH207  Path.glob refuses absolute patterns
        return describe_path(match, role) if match else {"kind": "missing", "error": error.strerror}
    parent = _nearest(path)
    fields = _described(parent, Path(parent).stat())
    # if a file is where a folder should be, nothing can be created below it
    return {**fields, "kind": "missing", "readable": False, "empty": False} | (
        {"writable": False, "error": f"{parent} is not a directory"} if fields["kind"] != "directory" else {}
    )


def _nearest(path: str) -> str:
    """Return the nearest existing parent of a path that does not exist, following links."""
    parent = os.path.realpath(path)
    while not os.path.lexists(parent):
        parent = str(Path(parent).parent)
    return parent


def _described(path: str, status: os.stat_result) -> dict[str, Any]:
    space = os.statvfs(path)
    directory = stat.S_ISDIR(status.st_mode)
    need = os.X_OK if directory else 0
    return {
        "kind": "directory" if directory else "file" if stat.S_ISREG(status.st_mode) else "other",
        "readable": os.access(path, os.R_OK | need, effective_ids=True),
        "writable": os.access(path, os.W_OK | need, effective_ids=True),
        "empty": _empty(path) if directory else stat.S_ISREG(status.st_mode) and status.st_size == 0,
        "free_bytes": space.f_bavail * space.f_frsize,
        "total_bytes": space.f_blocks * space.f_frsize,
        "free_inodes": space.f_favail if space.f_files else None,  # btrfs and some NFS servers count none
        "filesystem": filesystem(path),
        "owner": files.owner_name(status.st_uid).removeprefix("uid "),  # it may ask LDAP
    }


def _empty(folder: str) -> bool:
    """Return whether a folder is empty, without listing all its entries."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:
        return False
