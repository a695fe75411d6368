"""Reads files of /proc, whose process may end meanwhile; refuses to parse them, and to import more than ``os``."""

from __future__ import annotations

import os


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
