"""Data and output paths, each looked at by a child with a deadline; refuses to touch one in its own process.

A dead NFS mount blocks every system call on it, `os.path.exists` included, and cannot be interrupted.
"""

from __future__ import annotations

import errno
import glob
import os
import pwd
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from ddplaunch.probes import deadline, storage
from ddplaunch.probes.facts import PathFact

Role = Literal["data", "output"]
Look = Callable[[str, Role], dict[str, Any]]

# what a mount says whose server is gone, where it says anything (soft NFS, a crashed FUSE daemon, a lost disk)
_DEAD = {errno.ESTALE, errno.ENOTCONN, errno.EIO, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ENODEV}
_GLOB = set("*?[")


class Looks:
    """Looks that have been started, in order; one dead path does not hide the others."""

    def __init__(self, wanted: Sequence[tuple[str, Role]], look: Look | None = None) -> None:
        """Start one child for each path."""
        self._paths = [path for path, _ in wanted]
        self._children = [_start(path, role, look or describe) for path, role in wanted]

    def finish(self, deadline_s: float) -> tuple[PathFact, ...]:
        """Return the facts in order; all paths together get ``deadline_s`` seconds, late ones are "unreachable"."""
        children = [child for child in self._children if isinstance(child, deadline.Child)]
        answers = iter(deadline.collect(children, time.monotonic() + deadline_s))
        facts = []
        for path, child in zip(self._paths, self._children, strict=True):
            answer = next(answers) if isinstance(child, deadline.Child) else deadline.Answer(error=child)
            facts.append(_fact(path, answer, deadline_s))
        return tuple(facts)


def _start(path: str, role: Role, look: Look) -> deadline.Child | str:
    try:
        return deadline.start(lambda: look(path, role))
    except OSError as error:
        return f"no process could be started to look at it: {error.strerror}"


def _fact(path: str, answer: deadline.Answer, deadline_s: float) -> PathFact:
    if answer.late:
        return PathFact(path, "unreachable", error=f"no answer within {deadline_s:g} s")
    if answer.error is not None:
        return PathFact(path, "unreachable", error=answer.error)
    return PathFact(path=path, **answer.value)


def describe(path: str, role: Role) -> dict[str, Any]:
    """Return the fields of a PathFact; runs in the child and may block.

    A data path that is missing and holds ``* ? [`` is expanded, and its first match stands for it.
    """
    try:
        status = os.stat(path)  # noqa: PTH116  Path("") would be the working folder
    except OSError as error:
        return _without_status(path, role, error)
    except ValueError as error:  # a zero byte in the path
        return {"kind": "missing", "error": str(error)}
    return _described(path, status)


def _without_status(path: str, role: Role, error: OSError) -> dict[str, Any]:
    if error.errno in _DEAD:
        return {"kind": "unreachable", "error": error.strerror, "filesystem": storage.filesystem(path)[0]}
    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
        return {"kind": "other", "error": error.strerror}
    if role == "data":
        matches = glob.iglob(path, recursive=True)  # noqa: PTH207  Path.glob refuses absolute patterns
        match = next(matches, None) if _GLOB & set(path) else None
        return describe(match, role) if match else {"kind": "missing", "error": error.strerror}
    parent = _nearest(path)
    fields = _described(parent, Path(parent).stat())
    # a file where a folder should be: nothing can be created below it
    return {**fields, "kind": "missing", "readable": False, "empty": False} | (
        {"writable": False, "error": f"{parent} is not a directory"} if fields["kind"] != "directory" else {}
    )


def _nearest(path: str) -> str:
    """Return the nearest existing parent of a path that does not exist; links are followed."""
    parent = os.path.realpath(path)
    while not os.path.lexists(parent):
        parent = str(Path(parent).parent)
    return parent


def _described(path: str, status: os.stat_result) -> dict[str, Any]:
    space = os.statvfs(path)
    directory = stat.S_ISDIR(status.st_mode)
    need = os.X_OK if directory else 0
    filesystem, source = storage.filesystem(path)
    return {
        "kind": "directory" if directory else "file" if stat.S_ISREG(status.st_mode) else "other",
        "readable": os.access(path, os.R_OK | need, effective_ids=True),
        "writable": os.access(path, os.W_OK | need, effective_ids=True),
        "empty": _empty(path) if directory else stat.S_ISREG(status.st_mode) and status.st_size == 0,
        "free_bytes": space.f_bavail * space.f_frsize,
        "total_bytes": space.f_blocks * space.f_frsize,
        "free_inodes": space.f_favail if space.f_files else None,  # btrfs and some NFS servers count none
        "filesystem": filesystem,
        "rotational": storage.rotational(status.st_dev, source),
        "owner": _owner(status.st_uid),
    }


def _empty(folder: str) -> bool:
    """Return whether a folder has no entries, without listing a million of them."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name  # may ask LDAP; this is the child with the deadline
    except KeyError:
        return str(uid)
