"""Reads small files of /proc, /sys and /etc, and the ends of large ones; returns None or nothing for unreadable files.

A log that outgrew its limit is kept in pieces: the head keeps the name, and later output is in ``NAME.from-N`` next to
it, where N is the byte of the log at which the piece begins.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ddplaunch.values.words import open_flags, own_id

if TYPE_CHECKING:
    from pathlib import Path

_OCTAL = re.compile(r"\\([0-7]{3})")


def read(path: str) -> str | None:
    """Return the file's text, stripped, or None if it cannot be read (absent, no permission, EINVAL from sysfs)."""
    data = read_bytes(path)
    return None if data is None else data.decode("utf-8", "surrogateescape").strip()


def number(path: str) -> int | None:
    """Return the whole number in the file, or None if it contains none ("max", empty, absent)."""
    text = read(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def names(path: str) -> list[str]:
    """Return a folder's entries sorted by name; an empty list if it cannot be listed."""
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries)
    except OSError:
        return []


def unescape(field: str) -> str:
    r"""Undo the octal escapes of /proc/mounts (``\040`` is a space; see getmntent(3))."""
    if "\\" not in field:
        return field
    # the kernel escapes bytes, not characters, so the digits always stand for one ASCII character
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), field)


def user_name(uid: int, root: str = "/", environ: Mapping[str, str] | None = None) -> str:
    """Return the user's name from /etc/passwd; else USER if ``uid`` is this user; else the number.

    The name service is not asked on purpose: with LDAP or sssd it is a network request that can hang.
    """
    for line in (read(f"{root}/etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(uid):
            return fields[0]
    own_name = (environ or {}).get("USER") if uid == own_id() else None
    return own_name or str(uid)


def owner_name(uid: int) -> str:
    """Return the user's name from the name service, which may be slow; ``uid 1234`` if it has none."""
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):  # Windows; a container without this user in its /etc/passwd
        return f"uid {uid}"


def read_bytes(path: str) -> bytes | None:
    """Return the whole file, or None if it is gone or unreadable; twice as fast as a file object."""
    try:
        descriptor = os.open(path, open_flags("RDONLY", "CLOEXEC", "BINARY"))
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(descriptor, 1 << 17):
            parts.append(part)
        return b"".join(parts)
    except OSError:  # ESRCH: the process ended while it was read
        return None
    finally:
        os.close(descriptor)


def open_plain(path: str | Path) -> int:
    """Open a regular file for reading and return its descriptor. Raises OSError for others; never blocks on a pipe."""
    descriptor = os.open(path, open_flags("RDONLY", "NONBLOCK", "NOCTTY", "CLOEXEC", "BINARY"))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no plain file", os.fspath(path))
    return descriptor


def read_plain(path: str | Path, most_bytes: int = 1 << 20) -> bytes:
    """Return the contents of a regular file. Raises OSError if it is not regular, or larger than ``most_bytes``."""
    with open(open_plain(path), "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"has more than {most_bytes} bytes", os.fspath(path))
    return data


class Piece(NamedTuple):
    """A file with the bytes of a log from ``start`` up to ``end``."""

    path: str
    start: int
    end: int


_CONTINUED = ".from-"


def piece_path(path: str, start: int) -> str:
    """Return the path of the piece of the log ``path`` that begins at byte ``start``."""
    return f"{path}{_CONTINUED}{start}"


def pieces_of(path: str | Path) -> list[Piece]:
    """Return the files that make up a log, in order: one for a log in one file, none if it is gone."""
    folder, name = os.path.split(os.fspath(path))
    return pieces_in(folder or ".", name).get(name, [])


def pieces_in(folder: str | Path, name: str = "") -> dict[str, list[Piece]]:
    """Return the pieces of every log in ``folder`` whose name begins with ``name``, by the log's name."""
    pieces_by_log: dict[str, list[Piece]] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(name):
                continue
            log, continued, digits = entry.name.rpartition(_CONTINUED)
            start = int(digits) if continued and digits.isascii() and digits.isdecimal() and len(digits) < 20 else 0
            with contextlib.suppress(OSError):  # removed meanwhile
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    piece = Piece(entry.path, start, start + status.st_size)
                    pieces_by_log.setdefault(log if start else entry.name, []).append(piece)
    for pieces in pieces_by_log.values():
        pieces.sort(key=lambda piece: piece.start)
    return pieces_by_log


def read_end(path: str | Path, most_bytes: int) -> bytes:
    """Return the last ``most_bytes`` of a log, or all of a shorter one; nothing if it cannot be read."""
    data, next_start = b"", None
    for piece in reversed(pieces_of(path)):
        if len(data) >= most_bytes or next_start not in (None, piece.end):
            break
        data, next_start = _end_of(piece.path, most_bytes - len(data)) + data, piece.start
    return data


def _end_of(path: str, most_bytes: int) -> bytes:
    try:
        with open(open_plain(path), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            return file.read(most_bytes)
    except OSError:
        return b""


def is_same_file(first: int, second: int) -> bool:
    """Return whether two descriptors refer to the same terminal, pipe or file; False if one of them is closed."""
    try:
        return os.path.samestat(os.fstat(first), os.fstat(second))
    except OSError:
        return False


def gpu_devices(pid: int | str, proc: str = "/proc") -> list[str]:
    """Return NVIDIA's and AMD's compute devices that a process has open; none if this user may not see its files.

    CUDA and NVML open /dev/nvidiactl and /dev/nvidiaN, on WSL2 /dev/dxg; HIP opens /dev/kfd. They stay open.
    """
    folder, targets = f"{proc}/{pid}/fd", []
    for name in names(folder):
        with contextlib.suppress(OSError):  # closed meanwhile
            targets.append(os.readlink(f"{folder}/{name}"))  # noqa: PTH115
    return [path for path in targets if path.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dxg"))]


def boot_id() -> str | None:
    """Return the ID of this boot, or None; within one boot, pid and start time together identify a process."""
    return read("/proc/sys/kernel/random/boot_id")
