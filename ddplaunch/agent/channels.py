"""The reading ends of what ranks write to, and when to read them; refuses to look at what is in the bytes.

A rank that prints without pause would wake the guard for every line, and pay for it: a write into an empty pipe wakes
the reader, one into a pipe that holds something does not (pipe_write in linux/fs/pipe.c). So a channel that has
something again and again within a moment *rests*: it is read by the clock, every ``REST_S``, until nothing came.
"""

from __future__ import annotations

import fcntl
import os

from ddplaunch.agent.console import Sink
from ddplaunch.agent.files import RecordFile
from ddplaunch.agent.prefixed import Prefixed

REST_S = 0.008
_IN_A_ROW = 8  # one `print` is several writes in an unbuffered interpreter, which torchrun starts
_SHORTEST_REST_S = 0.001
_BUFFER = bytearray(1 << 18)
_F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ is in Python since 3.10, not in every build of it


class Channel:
    """One stream of one rank: where it is read, recorded and shown. ``sink`` None: not shown."""

    def __init__(self, descriptor: int, file: RecordFile, sink: Sink | None) -> None:
        """Make ``descriptor`` non-blocking; all who share it only hold it."""
        self.descriptor, self.file, self.sink = descriptor, file, sink
        self.prefixed: Prefixed | None = None
        self.rank, self.stream = -1, "out"
        self.open = True
        self.paused = False
        self.told_gone = False
        self.rest_s = REST_S
        self.rest_until_s: float | None = None
        self.read_s = 0.0
        self.in_a_row = 0
        self.is_terminal = os.isatty(descriptor)
        self.capacity = 1 << 16
        os.set_blocking(descriptor, False)

    def enlarge(self, size: int) -> None:
        """Let a pipe hold ``size`` bytes, so that ranks seldom wait for the guard; the kernel may refuse."""
        if self.is_terminal:
            self.capacity = 1 << 13
            return
        try:
            self.capacity = fcntl.fcntl(self.descriptor, _F_SETPIPE_SZ, size)
        except OSError:
            self.capacity = 1 << 16

    def read(self) -> bytes | None:
        """Return what is there, None if nothing is; at the end ``open`` is False."""
        try:
            size = os.readv(self.descriptor, [_BUFFER])
        except BlockingIOError:
            return None
        except OSError:  # EIO: nobody holds the other side of the terminal
            self.open = False
            return None
        if size == 0:
            self.open = False
            return None
        return bytes(memoryview(_BUFFER)[:size])

    def rest_after(self, size: int, now_s: float) -> bool:
        """Decide, after ``size`` bytes were read, whether to read next by the clock; 0 bytes end a rest."""
        was_resting, since_s = self.rest_until_s is not None, now_s - self.read_s
        self.read_s = now_s
        self.in_a_row = self.in_a_row + 1 if size and (was_resting or since_s < REST_S) else 0
        if self.in_a_row < _IN_A_ROW or self.is_terminal:
            self.rest_until_s = None
            return False
        if size * 2 > self.capacity:
            self.rest_s = max(self.rest_s / 2, _SHORTEST_REST_S)
        elif size * 8 < self.capacity:
            self.rest_s = min(self.rest_s * 2, REST_S)
        self.rest_until_s = now_s + self.rest_s
        return True

    def close(self) -> None:
        """Let go of the reading end."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor, self.open = -1, False


def pipe_size(streams: int) -> int:
    """Return how many bytes each of ``streams`` pipes may hold: 1 MiB, less where there are many.

    A user without privileges has 64 MiB in all pipes (pipe-user-pages-soft in pipe(7)).
    """
    size = 1 << 20
    while size > 1 << 16 and size * streams > 32 << 20:
        size //= 2
    return size


def shown_ranks(show: str, rank: int) -> tuple[bool, bool]:
    """Return whether ``rank`` is shown, and whether with a prefix: "0", "all", or ranks with commas.

    One rank alone is shown as it is.
    """
    if show == "all":
        return True, True
    chosen = {part.strip() for part in show.split(",")}
    return str(rank) in chosen, len(chosen) > 1
