"""Opens folders and files of a record by descriptor: only this user's, no links, and never waiting for a pipe.

The working directory of a run may be shared, and whoever can write there can put a link or a pipe where a record will
be. So every folder has to belong to the current user, and every file has to be a regular file. The guard, whose
interpreter must stay light, imports this module: no dataclasses and no pathlib here.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from ddplaunch.values.words import open_flags, own_id

_FOLDER = open_flags("RDONLY", "DIRECTORY", "CLOEXEC")
_NOFOLLOW = open_flags("NOFOLLOW")
_FILE = open_flags("NOFOLLOW", "NONBLOCK", "NOCTTY", "CLOEXEC", "BINARY")
_PLACE = open_flags("PATH", "DIRECTORY", "CLOEXEC")  # also opens a folder that cannot be listed
_ROOT, _NOBODY = 0, 65534
#: Operations of ``try_lock``, with the numbers of flock(2).
LOCK_SHARED, LOCK_ALONE = 1, 2


class NotOursError(PermissionError):
    """A folder or file of a record that is not this user's, or is a link, a pipe or a device, as ``strerror`` says."""

    def __init__(self, reason: str, path: str) -> None:
        super().__init__(1, reason, path)


def open_place(directory: str | os.PathLike[str], *, create: bool = False, links: bool = True) -> int:
    """Open ``BASE/runs``, ``BASE/runs/ID`` or a folder below, and return its descriptor; all of them must be ours.

    ``BASE`` may also be root's and, with ``links``, a link that this user made. A folder outside of any ``runs`` is
    checked by itself. ``create`` creates missing folders. Raises NotOursError if any of them belongs to another user;
    OSError.
    """
    parts = os.path.abspath(directory).split("/")
    if "runs" not in parts:
        return open_base(directory, create=create, roots=False)
    above = len(parts) - 1 - parts[::-1].index("runs")
    descriptor = open_base("/".join(parts[:above]) or "/", create=create, links=links)
    for number in range(above, len(parts)):
        with closing(descriptor):
            descriptor = open_folder(descriptor, parts[number], "/".join(parts[: number + 1]), create=create)
    return descriptor


def open_to_write(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file of a record for writing, creating it for its owner alone, with missing parent folders.

    Raises NotOursError and OSError.
    """
    folder, name = os.path.split(os.path.abspath(path))
    with closing(open_place(folder, create=True)) as parent:
        return open_file(parent, name, flags | os.O_CREAT, os.fspath(path))


def open_base(path: str | os.PathLike[str], *, create: bool = False, roots: bool = True, links: bool = True) -> int:
    """Open the folder that contains ``runs``: this user's, with ``roots`` also root's, or a link of theirs to one."""
    if create:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    try:
        descriptor = os.open(path, _FOLDER | _NOFOLLOW)
    except OSError:
        status = os.lstat(path)
        if not stat.S_ISLNK(status.st_mode):
            raise
        if not links:
            raise NotOursError("is a symbolic link", os.fspath(path)) from None
        if status.st_uid not in (own_id(), _ROOT):
            raise NotOursError(f"is a link that {_user(status.st_uid)} made", os.fspath(path)) from None
        descriptor = os.open(path, _FOLDER)
    return _checked(descriptor, os.fspath(path), roots=roots)


def open_folder(parent: int, name: str, path: str = "", *, create: bool = False) -> int:
    """Open the folder ``name`` below the descriptor ``parent``; errors call it ``path``."""
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
    try:
        descriptor = os.open(name, _FOLDER | _NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if stat.S_ISLNK(_kind(parent, name)):
            raise NotOursError("is a symbolic link", path or name) from None
        raise OSError(error.errno, error.strerror, path or name) from None
    return _checked(descriptor, path or name)


def open_file(parent: int, name: str, flags: int, path: str = "") -> int:
    """Open the regular file ``name`` below ``parent`` without ever waiting; a new file is accessible to its owner only.

    Raises NotOursError for a link, a pipe or a device, if the file has another owner, and for writing also if it has a
    second name.
    """
    cut, flags = flags & os.O_TRUNC, flags & ~os.O_TRUNC
    try:
        descriptor = os.open(name, flags | _FILE, 0o600, dir_fd=parent)
    except OSError as error:
        if stat.S_IFMT(_kind(parent, name)) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise NotOursError("is no plain file", path or name) from None
        raise OSError(error.errno, error.strerror, path or name) from None
    try:
        status = os.fstat(descriptor)
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(21, "Is a directory", path or name)
        if not stat.S_ISREG(status.st_mode) or (writes and status.st_nlink > 1):
            raise NotOursError("is no plain file", path or name)
        if not _is_ours(status):
            raise NotOursError(f"belongs to {_user(status.st_uid)}", path or name)
        if cut:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close ``descriptor`` at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, operation: int) -> bool:
    """Try to take an flock(2) on an open file; return whether it succeeded. Raises OSError if there are no locks."""
    import fcntl  # not available on Windows

    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_file(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Return this user's regular file ``path``. Raises NotOursError, OSError, and ValueError beyond ``most_bytes``."""
    folder, name = os.path.split(os.fspath(path))
    with closing(os.open(folder or ".", _PLACE)) as parent, closing(open_file(parent, name, os.O_RDONLY)) as file:
        size = os.fstat(file).st_size
        parts, unread = [], most_bytes + 1 if size <= most_bytes else 0
        while unread > 0 and (part := os.read(file, min(unread, 1 << 20))):
            parts.append(part)
            unread -= len(part)
    if unread <= 0:
        raise ValueError(f"{name} has more than {most_bytes >> 20} MiB")
    return b"".join(parts)


def other_owner(path: str | os.PathLike[str]) -> str | None:
    """Return the owner of a file; None if it is this user or root. Raises OSError."""
    status = os.stat(path)
    return None if status.st_uid == _ROOT or _is_ours(status) else _user(status.st_uid)


def own_folders(folder: int | str | os.PathLike[str]) -> list[str]:
    """Return the names of this user's folders in ``folder``, a descriptor or a path; none if it cannot be read."""
    folders = []
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        descriptor = folder if isinstance(folder, int) else stack.enter_context(closing(os.open(folder, _FOLDER)))
        with os.scandir(descriptor) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False) and _is_ours(entry.stat(follow_symlinks=False)):
                        folders.append(entry.name)
    return sorted(folders)


def foreign(directory: str | os.PathLike[str]) -> str | None:
    """Return a clause that says why a run's directory is not this user's; None if it is, or does not exist."""
    try:
        os.close(open_base(directory, roots=False, links=False))
    except NotOursError as error:
        return error.strerror
    except OSError:
        return None
    return None


def remove_folder(parent: int, name: str, last: str = "") -> None:
    """Remove this user's folder ``name`` below ``parent`` with its contents, the entry ``last`` after all others.

    Links are removed, not followed. Raises NotOursError and OSError; what could not be removed is left.
    """
    with closing(open_folder(parent, name)) as folder:
        names = os.listdir(folder)
        for each in sorted(names, key=lambda entry: (entry == last, entry)):
            if stat.S_ISDIR(os.stat(each, dir_fd=folder, follow_symlinks=False).st_mode):
                remove_folder(folder, each, last)
            else:
                os.unlink(each, dir_fd=folder)
    os.rmdir(name, dir_fd=parent)


def _kind(parent: int, name: str) -> int:
    """Return the mode of ``name`` itself without following a link; 0 if there is no such file."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _checked(descriptor: int, path: str, *, roots: bool = False) -> int:
    """Return ``descriptor`` if the folder is this user's; else close it and raise NotOursError."""
    status = os.fstat(descriptor)
    if _is_ours(status) or (roots and status.st_uid == _ROOT):
        return descriptor
    os.close(descriptor)
    raise NotOursError(f"belongs to {_user(status.st_uid)}", path)


def _is_ours(status: os.stat_result) -> bool:
    """Return whether the file is this user's; files that root creates on NFS belong to nobody (root_squash)."""
    return status.st_uid == own_id() or (own_id() == _ROOT and status.st_uid == _NOBODY)


def _user(uid: int) -> str:
    from ddplaunch.machine.files import owner_name

    return owner_name(uid)
