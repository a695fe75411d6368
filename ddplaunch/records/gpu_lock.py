"""Locks that keep two launches from choosing the same idle GPU; a launch that cannot lock goes on without.

There is one file per GPU, in a directory shared by all users of the machine. A lock is an flock(2): it belongs to the
open file, so it survives exec into torchrun, ends with the process in any case, and is never stale.
https://man7.org/linux/man-pages/man2/flock.2.html
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ddplaunch.machine.facts import NvmlFacts
from ddplaunch.planning.gpus import Exported, Selection, select
from ddplaunch.records.own.own_files import LOCK_ALONE, LOCK_SHARED, closing, try_lock

_DIRECTORY_VARIABLE = "DDPLAUNCH_LOCK_DIR"
_DEFAULT_DIRECTORY = Path("/tmp/ddplaunch-gpus")  # not TMPDIR, which may differ between users
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)  # missing on Windows
_PAUSE_S = 0.01
_ROUNDS = 100


class GpuLocks:
    """The GPUs that this process has locked, in ``directory`` (default: ``lock_directory``).

    ``notes`` are clauses that say why locking failed, if it did.
    """

    def __init__(self, directory: Path | None = None) -> None:
        directory = lock_directory(os.environ) if directory is None else directory
        self.held: dict[str, int] = {}
        self.notes: tuple[str, ...] = ()
        self._directory: int | None = None
        try:
            self._directory = _open_directory(directory)
        except OSError as error:
            self._give_up(directory, error)

    def try_hold(self, uuid: str) -> bool:
        """Lock a GPU; False only if another process has locked it, True with a note if locking is impossible.

        The descriptor is inheritable: torchrun keeps it after exec, but its workers (``close_fds``) do not get it.
        """
        if uuid in self.held or self._directory is None:
            return True
        try:
            descriptor = _open_file(self._directory, _file_name(uuid))
        except OSError as error:
            self._give_up(Path(_file_name(uuid)), error)
            return True
        try:
            locked = try_lock(descriptor, LOCK_ALONE)
            if not locked:  # another launch may hold the lock for a moment, just to check it
                time.sleep(_PAUSE_S)
                locked = try_lock(descriptor, LOCK_ALONE)
        except OSError as error:  # the file system has no locks
            os.close(descriptor)
            self._give_up(Path(_file_name(uuid)), error)
            return True
        if not locked:
            os.close(descriptor)
            return False
        os.set_inheritable(descriptor, True)
        self.held[uuid] = descriptor
        return True

    def locked(self, uuids: Iterable[str]) -> frozenset[str]:
        """Return the GPUs that another process has locked."""
        return frozenset(uuid for uuid in uuids if uuid not in self.held and self._is_locked(uuid))

    def release(self) -> None:
        """Release all locks. The files stay: if a lock file were removed, two processes could lock "the same" file."""
        for descriptor in self.held.values():
            os.close(descriptor)
        self.held.clear()

    def _is_locked(self, uuid: str) -> bool:
        if self._directory is None:
            return False
        with suppress(OSError):
            descriptor = os.open(_file_name(uuid), os.O_RDONLY | _FLAGS, dir_fd=self._directory)
            with closing(descriptor):
                return not try_lock(descriptor, LOCK_SHARED)
        return False

    def _give_up(self, path: Path, error: OSError) -> None:
        note = f"GPUs are not locked against other launches: {path}: {error.strerror or error}"
        self.notes = (*self.notes, note) if note not in self.notes else self.notes


def lock_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory of the lock files: DDPLAUNCH_LOCK_DIR, or one that all users share."""
    return Path(environment.get(_DIRECTORY_VARIABLE) or _DEFAULT_DIRECTORY)


def pick_free(requested: str, nvml: NvmlFacts, within: Exported, locks: GpuLocks, need: int | None) -> Selection:
    """Resolve ``--gpus`` and lock the chosen GPUs; GPUs named one by one are used even if another launch has them.

    Launches that choose the same GPUs at the same moment release them and choose again, until each has its own or too
    few are left. Raises what ``select`` raises, with no lock held.
    """
    uuids = [name for gpu in nvml.gpus for name in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)) if name]
    for _ in range(_ROUNDS):
        selection = select(requested, nvml, within, locks.locked(uuids), need)
        if not requested.strip().startswith("free"):
            locked = [entry for entry in selection.entries if entry.uuid and not locks.try_hold(entry.uuid)]
            shared = tuple(f"GPU {entry.gpu.index} is held by another ddplaunch launch" for entry in locked)
            return replace(selection, notes=selection.notes + shared + locks.notes)
        if all(locks.try_hold(entry.uuid) for entry in selection.entries if entry.uuid):
            return replace(selection, notes=selection.notes + locks.notes)
        locks.release()
        time.sleep(_PAUSE_S * os.urandom(1)[0] / 255)
    return select(requested, nvml, within, frozenset(uuids), need)  # raises: others keep taking them


def _open_directory(path: Path) -> int:
    """Open the directory, creating it for all users; a symbolic link is refused."""
    try:
        path.mkdir()
        path.chmod(0o1777)  # regardless of the umask; sticky, so that users cannot remove each other's files
    except FileExistsError:
        pass
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _open_file(directory: int, name: str) -> int:
    """Open or create a lock file that all users can lock.

    First without O_CREAT: fs.protected_regular forbids O_CREAT on other users' files in a sticky directory,
    https://docs.kernel.org/admin-guide/sysctl/fs.html#protected-regular
    """
    flags = os.O_RDWR | _FLAGS
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        try:
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=directory)
            os.fchmod(descriptor, 0o666)
        except FileExistsError:  # another launch was faster
            descriptor = os.open(name, flags, dir_fd=directory)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:  # a pipe, or a hard link to another file
        os.close(descriptor)
        raise OSError(f"{name} is not a plain file")
    return descriptor


def _file_name(uuid: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "_", uuid)[:128] + ".lock"
