"""The user's own key, 32 random bytes in a file of the home directory that only the user can read.

If the home directory is on a shared disk, nodes use it to prove that they belong to the same user.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping

try:
    from _blake2 import blake2b  # hashlib's own, without OpenSSL, which takes 3 ms to load
except ImportError:
    from hashlib import blake2b

_BYTES = 32


def user_key(environ: Mapping[str, str]) -> bytes | None:
    """Return the key in ``$XDG_STATE_HOME/ddplaunch/key`` (default: ``~/.local/state``), creating it if missing.

    https://specifications.freedesktop.org/basedir-spec/latest/. None if the user has no home directory, the key cannot
    be written, or the file is accessible to others.
    """
    home = environ.get("HOME", "")
    state = environ.get("XDG_STATE_HOME") or (f"{home}/.local/state" if home else "")
    if not state.startswith("/"):
        return None
    path = f"{state}/ddplaunch/key"
    with contextlib.suppress(OSError):
        try:
            return _read(path)
        except FileNotFoundError:
            _make(path, home or state)
            return _read(path)
    return None


def _read(path: str) -> bytes | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        is_private = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        key = os.read(descriptor, _BYTES) if is_private else b""
    finally:
        os.close(descriptor)
    return key if len(key) == _BYTES else None


def _make(path: str, home: str) -> None:
    """Create the key atomically: if several launches do it at once, the first one's counts. Raises OSError."""
    if os.stat(home).st_uid != os.geteuid():  # noqa: PTH116
        raise PermissionError(f"{home} belongs to somebody else")  # under sudo, the user could not read it later
    folder = os.path.dirname(path)  # noqa: PTH120
    os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103
    draft = f"{folder}/.key.{os.urandom(8).hex()}"  # hosts that share the folder may have the same pid
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, os.urandom(_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(descriptor)
        os.unlink(draft)  # noqa: PTH108


def derived(key: bytes, purpose: str) -> bytes:
    """Return the key for one purpose; it reveals neither ``key`` nor the keys for other purposes."""
    return blake2b(key=key, person=purpose.encode()[:16], digest_size=_BYTES).digest()
