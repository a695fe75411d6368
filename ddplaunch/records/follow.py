"""Follows the files of a run while they grow, as ``tail -F`` does; refuses to know what is in them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ddplaunch.records.log_files import LogFile, log_files

_POLL_S = 0.1
_NEW_FILES_S = 0.5
_OVER_S = 2.0
_CHUNK_BYTES = 1 << 20
_ROUND_BYTES = 16 << 20  # of one file before the others get their turn


class _Followed:
    """One file with the position up to which it was read."""

    def __init__(self, file: LogFile, position: int) -> None:
        self.file = file
        self._position = position
        self._descriptor = -1
        self._inode = (0, 0)

    def read(self) -> Iterator[bytes]:
        """Yield what came since the last time; a file that was replaced or cut is read from its start."""
        try:
            status = os.stat(self.file.path)  # noqa: PTH116 - ten times a second for each of many files
        except OSError:  # removed: what it still had was read before, it may come back
            return
        if (status.st_dev, status.st_ino) != self._inode:
            yield from self._rest()
            self._reopen(status)
        if status.st_size < self._position:
            self._position = 0
        yield from self._rest()

    def _reopen(self, status: os.stat_result) -> None:
        first = self._inode == (0, 0)
        self.close()
        with suppress(OSError):
            self._descriptor = os.open(self.file.path, os.O_RDONLY | os.O_CLOEXEC)
            self._inode = (status.st_dev, status.st_ino)
            self._position = self._position if first else 0

    def _rest(self) -> Iterator[bytes]:
        if self._descriptor < 0:
            return
        left = _ROUND_BYTES
        with suppress(OSError):
            while left > 0 and (data := os.pread(self._descriptor, _CHUNK_BYTES, self._position)):
                self._position += len(data)
                left -= len(data)
                yield data

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def follow(
    directory: Path,
    ranks: frozenset[int] | None,
    positions: Mapping[Path, int],
    over: Callable[[], bool],
    poll_s: float = _POLL_S,
    over_s: float = _OVER_S,
) -> Iterator[tuple[LogFile | None, bytes]]:
    """Yield what ranks print from now on, in the order in which it arrives, across restarts.

    ``positions`` are where files that were read already go on; one that is not named there is new and read from its
    start. An empty item ``(None, b"")`` comes after each round. It ends when the directory is gone, or when ``over()``
    says that nothing more will come and nothing more came, which is asked every ``over_s`` seconds.
    """
    files: dict[Path, _Followed] = {}
    looked_s = asked_s = float("-inf")
    last_round = False
    try:
        while True:
            now_s = time.monotonic()
            if now_s - looked_s >= _NEW_FILES_S or last_round:
                looked_s = now_s
                for file in log_files(directory, ranks):
                    files.setdefault(file.path, _Followed(file, positions.get(file.path, 0)))
            came = False
            for item in _round(files):
                came = True
                yield item
            yield None, b""
            if came:
                continue
            if last_round:
                return
            if now_s - asked_s >= over_s:
                asked_s, last_round = now_s, over() or not directory.is_dir()
            time.sleep(poll_s)
    finally:
        for followed in files.values():
            followed.close()


def _round(files: Mapping[Path, _Followed]) -> Iterator[tuple[LogFile, bytes]]:
    for followed in list(files.values()):
        for data in followed.read():
            yield followed.file, data
