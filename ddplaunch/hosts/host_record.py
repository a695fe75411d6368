"""The record that a run left on this host, as pieces of a tar archive; refuses to change it.

What explains a failure comes first: small files before large ones, so that a launcher that stops waiting has most.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

_PIECE = 1 << 18
_KEPT = 256 << 20  # bytes of one file's end; more than that nobody waits for


def pieces(record: str | None, marker: str | None) -> Iterator[bytes]:
    """Yield the archive of the directory ``record``; nothing where ``marker`` is in it: the launcher sees the same one.

    Of a very large file only the end is sent. A file that cannot be read is left out.
    """
    if not record or (marker and Path(record, marker).exists()):
        return
    buffer = _Sink()
    with tarfile.open(fileobj=buffer, mode="w|", bufsize=_PIECE) as archive:
        for size, path in sorted(_files(Path(record))):
            try:
                with path.open("rb") as file:
                    file.seek(max(0, size - _KEPT))
                    info = tarfile.TarInfo(str(path.relative_to(record)))
                    info.size, info.mtime, info.mode = min(size, _KEPT), path.stat().st_mtime, 0o600
                    archive.addfile(info, _Exactly(file, info.size))
            except OSError:
                continue
            yield from buffer.taken()
    yield from buffer.taken()


def _files(folder: Path) -> list[tuple[int, Path]]:
    found = []
    for directory, _, names in os.walk(folder):
        for name in names:
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink() and not name.startswith("."):
                found.append((path.stat().st_size, path))
    return found


class _Sink(io.RawIOBase):
    """Keeps what is written until it is taken."""

    def __init__(self) -> None:
        self._data: list[bytes] = []

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._data.append(bytes(data))
        return len(data)

    def taken(self) -> list[bytes]:
        data, self._data = self._data, []
        return data


class _Exactly(io.RawIOBase):
    """A file as long as it was when it was measured: zeros where it has shrunk since."""

    def __init__(self, file: io.BufferedReader, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted).ljust(wanted, b"\0")
        self._left -= len(data)
        return data
