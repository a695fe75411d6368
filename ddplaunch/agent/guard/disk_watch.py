"""Watches the disks of a run, while it goes on: the one of its record, and those that its checkpoints go to."""

from __future__ import annotations

import _thread
import contextlib
import os
import shlex
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ddplaunch.agent.guard.rank_streams import Streams
from ddplaunch.agent.guard.record_file import LAST_BYTES
from ddplaunch.planning.settings import Settings
from ddplaunch.values.words import size_text

if TYPE_CHECKING:
    from ddplaunch.values.finding import Finding

_LOOK_EVERY_S = 30.0
_LOW_BYTES, _LOW_SHARE = 1 << 30, 0.05
_LOW_INODES = 1000


class DiskWatch:
    """Says once, while the run goes on, that a disk is nearly full, and once that the record cannot be written."""

    def __init__(self, settings: Settings, streams: Streams, tell: Callable[[Sequence[Finding]], None]) -> None:
        """Watch the disk of the record, and those of the outputs. ``tell`` is called in a thread."""
        record = [] if settings.node_directory is None else [settings.node_directory]
        self._paths = [*record, *map(os.path.abspath, settings.outputs)]
        self._streams, self._tell = streams, tell
        self._next_s = time.monotonic() + _LOOK_EVERY_S
        self._said_low = self._said_trouble = self._looking = False
        #: What was told.
        self.found: tuple[Finding, ...] = ()

    def due_s(self) -> float | None:
        """Return when ``tick`` should be called next (time.monotonic()), None if never."""
        return None if self._looking or not self._paths else self._next_s

    def tick(self) -> None:
        """Look again if it is time to."""
        due_s = self.due_s()
        if due_s is None or time.monotonic() < due_s:
            return
        self._next_s = time.monotonic() + _LOOK_EVERY_S
        self._streams.check()
        self._looking = True
        _thread.start_new_thread(self._look, ())  # a dead file server never answers

    def _look(self) -> None:
        with contextlib.suppress(Exception):  # what watches must not end what it watches
            trouble = None if self._said_trouble else self._streams.trouble()
            if trouble is not None:
                self._said_trouble = True
                self._found(not_written(*trouble))
            elif not self._said_low and (low := nearly_full(self._paths)) is not None:
                self._said_low = True
                self._found(low)
        self._looking = False

    def _found(self, finding: Finding) -> None:
        self.found += (finding,)
        self._tell((finding,))


def not_written(file: str, reason: str) -> Finding:
    """Return the finding for a file of the record, by its path, that takes no more."""
    from ddplaunch.values.finding import warning

    folder = shlex.quote(os.path.dirname(file))
    return warning(
        "record-not-written",
        f"{os.path.basename(file)} is not complete: {reason}",
        why=f"the run goes on; of what is not written the last {LAST_BYTES >> 10} KiB are kept in memory, for the end",
        fix=f"`df -h {folder}; df -i {folder}; quota -s` shows what is full; with room there, recording goes on",
        where=file,
    )


def nearly_full(paths: Sequence[str]) -> Finding | None:
    """Return the finding for the first of the disks of ``paths`` that is nearly full; None if all have room."""
    from ddplaunch.values.finding import warning

    for path in paths:
        while not os.path.exists(path) and path not in ("/", ""):
            path = os.path.dirname(path)
        try:
            disk = os.statvfs(path)
        except OSError:
            continue
        free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        left = ""
        if free < min(_LOW_BYTES, _LOW_SHARE * total):
            left = f"{size_text(free)} of {size_text(total)} free"
        elif disk.f_files and disk.f_favail < _LOW_INODES:
            left = f"{disk.f_favail} inodes free"
        if left:
            return warning(
                "disk-nearly-full",
                f"the disk of {path} has {left}",
                why="when it is full, checkpoints break, and what ranks print is not recorded",
                fix=f"`du -xh {shlex.quote(path)} | sort -h | tail`, `--inodes` for inodes, shows what takes the space",
                where=path,
            )
    return None
