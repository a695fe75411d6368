"""Locks that keep two launches from choosing the same idle GPU; where locking is impossible, a launch goes on without.

One file per GPU under a directory that all users of the machine share. A lock is an flock(2): it belongs to the open
file, so it survives exec into torchrun, goes with the process however that ends, and leaves nothing stale.
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
_DEFAULT_DIRECTORY = Path("/tmp/ddplaunch-gpus")  # not TMPDIR, which may differ between the users of one machine
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)  # not on Windows
_PAUSE_S = 0.01
_ROUNDS = 100


class GpuLocks:
    """The GPUs that this process holds, in ``directory`` or where ``lock_directory`` says.

    ``notes`` say in clauses why locking did not work, if it did not.
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
        """Take the lock of a GPU; False only if another process has it. Where locking is impossible, True and a note.

        The descriptor is inheritable: torchrun keeps it after exec, its workers (``close_fds``) do not get it.
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
            if not locked:  # a launch that only looks who holds it has it for a moment
                time.sleep(_PAUSE_S)
                locked = try_lock(descriptor, LOCK_ALONE)
        except OSError as error:  # a file system without locks
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
        """Return those that another process holds."""
        return frozenset(uuid for uuid in uuids if uuid not in self.held and self._is_locked(uuid))

    def release(self) -> None:
        """Let go of everything; the files stay, since removing a lock file lets two processes hold "it"."""
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
    """Return where this machine's lock files are: DDPLAUNCH_LOCK_DIR, or a directory that all users share."""
    return Path(environment.get(_DIRECTORY_VARIABLE) or _DEFAULT_DIRECTORY)


def pick_free(requested: str, nvml: NvmlFacts, within: Exported | None, locks: GpuLocks, need: int | None) -> Selection:
    """Resolve ``--gpus`` and hold what it resolves to; GPUs named one by one are used even if another launch has them.

    Launches that choose the same GPUs at the same moment let go of theirs and choose again, until each has its own or
    too few are left. Raises what ``select`` raises, with no lock held.
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
    return select(requested, nvml, within, frozenset(uuids), need)  # raises: all that is idle is contended


def _open_directory(path: Path) -> int:
    """Create the directory for everybody, and open it; a symbolic link in its place is refused."""
    try:
        path.mkdir()
        path.chmod(0o1777)  # past the umask; sticky, so that nobody removes the files of others
    except FileExistsError:
        pass
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _open_file(directory: int, name: str) -> int:
    """Open or create a lock file that all users can lock.

    Opened without O_CREAT first: fs.protected_regular forbids O_CREAT on the files of others in a sticky directory,
    https://docs.kernel.org/admin-guide/sysctl/fs.html#protected-regular
    """
    flags = os.O_RDWR | _FLAGS
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        try:
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=directory)
            os.fchmod(descriptor, 0o666)
        except FileExistsError:  # another launch was quicker
            descriptor = os.open(name, flags, dir_fd=directory)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:  # a pipe, or a hard link to a file to be overwritten
        os.close(descriptor)
        raise OSError(f"{name} is not a plain file")
    return descriptor


def _file_name(uuid: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "_", uuid)[:128] + ".lock"
