"""Reads small files of /proc, /sys and /etc; one that is absent or unreadable is None."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_OCTAL = re.compile(r"\\([0-7]{3})")


def read(path: str) -> str | None:
    """Return the file's text, stripped, or None if it cannot be read (absent, no permission, EINVAL from sysfs)."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode("utf-8", "surrogateescape").strip()
    except OSError:
        return None


def number(path: str) -> int | None:
    """Return the file's whole number, or None if there is none ("max", empty, absent)."""
    text = read(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def names(path: str) -> list[str]:
    """Return a folder's entries in order of name; none if it cannot be listed."""
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries)
    except OSError:
        return []


def unescape(field: str) -> str:
    r"""Undo the octal escapes of /proc/mounts (``\040`` is a blank; see getmntent(3))."""
    if "\\" not in field:
        return field
    # the kernel escapes bytes, not characters, so the digits always stand for one ASCII character
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), field)


def user_name(uid: int, root: str = "/", environ: Mapping[str, str] | None = None) -> str:
    """Return the user's name from /etc/passwd, else USER if ``uid`` is ours, else the number.

    The name service is left out on purpose: with LDAP or sssd it is a network request that can hang.
    """
    for line in (read(f"{root}/etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(uid):
            return fields[0]
    own = (environ or {}).get("USER") if uid == os.geteuid() else None
    return own or str(uid)


def read_bytes(path: str) -> bytes | None:
    """Return the whole file, None if it is gone or may not be read; half the time that a file object takes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(descriptor, 1 << 17):
            parts.append(part)
        return b"".join(parts)
    except OSError:  # ESRCH: it ended while it was read
        return None
    finally:
        os.close(descriptor)


def boot_id(proc: str = "/proc") -> str | None:
    """Return the id of this boot, within which a pid and a start time name one process; None where it is not told."""
    text = read_bytes(f"{proc}/sys/kernel/random/boot_id")
    return None if text is None else text.decode().strip()
