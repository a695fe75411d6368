"""A log file of the record, which keeps within its size limit, and keeps output in memory while the disk is full.

A full disk must never block a rank's output. The last 64 KiB of output that cannot be written is kept in memory, so
that a failure can still be explained, and written as soon as there is room.
"""

from __future__ import annotations

import contextlib
import os
import time

from ddplaunch.machine.files import Piece, piece_path, pieces_of
from ddplaunch.records.own.own_files import closing, open_place, open_to_write
from ddplaunch.values.words import size_text

LAST_BYTES = 1 << 16
_AGAIN_S = 5.0  # until a failed write is tried again
_NEWLINE = 10


class RecordFile:
    """One log file. ``problem`` is why output is missing in it, None if none is.

    A log that exceeds ``limit_bytes`` (0: no limit) keeps its beginning, a quarter of the limit, in the file itself and
    its end in pieces beside it (``machine/files.py``); the oldest pieces are removed. The file is opened to append, so
    that a second guard continues where the first one died.
    """

    def __init__(self, path: str | None, limit_bytes: int = 0) -> None:
        """Remember the path, None to keep the last bytes in memory only; ``flush`` creates the file."""
        self.path = path
        self.problem: str | None = None
        self._limit = limit_bytes
        self._piece = Piece("", 0, 0)
        self._size = 0  # of the current piece
        self._file = -1
        self._line_ended = True
        self._waiting = bytearray()  # not written yet
        self._missed = 0  # bytes dropped before ``_waiting``
        self._lost = False
        self._again_s = 0.0

    @property
    def name(self) -> str:
        """The file's name without its folders."""
        return (self.path or "").rpartition("/")[2]

    def write(self, data: bytes) -> None:
        """Append ``data``, or keep the end of what cannot be written. Never raises."""
        self._waiting += data
        if self._file >= 0 or time.monotonic() >= self._again_s:
            self.flush()
        if (over := len(self._waiting) - LAST_BYTES) > 0:
            del self._waiting[:over]
            self._missed += over

    def close(self) -> None:
        """Try once more to write what is waiting, and close the file. Never raises."""
        if self._waiting:
            self.flush()
        self._shut()

    def unwritten(self) -> bytes:
        """Return the end of the unwritten output, after a line that says how much is missing before it."""
        return self._missing() + bytes(self._waiting)

    def flush(self) -> None:
        """Create the file, or open it to append, and append as much of what waits as possible. Never raises."""
        if self.path is None:
            return
        try:
            if self._file < 0:
                self._open((pieces_of(self.path) or [Piece(self.path, 0, 0)])[-1])
            if notice := self._missing():
                self._size += os.write(self._file, notice)
                self._missed, self._lost, self._line_ended = 0, True, True
            while self._waiting:
                if not (fits := self._fits(self._waiting)):
                    self._go_on()
                    continue
                done = os.write(self._file, self._waiting[:fits])
                self._size += done
                self._line_ended = self._waiting[done - 1] == _NEWLINE
                del self._waiting[:done]
            if not self._lost:
                self.problem = None
        except OSError as error:
            self.problem = self.problem or error.strerror or str(error)
            self._again_s = time.monotonic() + _AGAIN_S
            self._shut()

    def _missing(self) -> bytes:
        what = f"{size_text(self._missed)} of output are missing here, which the disk did not take"
        return f"{'' if self._line_ended else chr(10)}[ddplaunch: {what}]\n".encode() if self._missed else b""

    def _open(self, piece: Piece) -> None:
        self._file = open_to_write(piece.path, os.O_WRONLY | os.O_APPEND)
        self._piece, self._size = piece, os.fstat(self._file).st_size

    def _fits(self, data: bytearray) -> int:
        """Return how much of ``data`` goes into this piece, which ends at a line's end unless the line is too long."""
        if not self._limit:
            return len(data)
        most = self._limit // 4 if self._piece.start == 0 else self._limit * 3 // 8
        room = most - self._size
        if len(data) <= room:
            return len(data)
        if room <= 0 and self._line_ended:
            return 0
        end = data.find(b"\n", max(0, room - 1)) + 1
        return end or (len(data) if self._size < most + most // 8 else 0)

    def _go_on(self) -> None:
        """Begin the next piece, remove the oldest ones, and note the cut in the file itself. Raises OSError."""
        assert self.path is not None
        start = self._piece.start + self._size
        self._shut()
        self._open(Piece(piece_path(self.path, start), start, start))
        pieces = pieces_of(self.path)
        too_old = pieces[1:-2]
        if too_old and too_old[0].start == pieces[0].end:
            what = f"output was cut here; the last of it is in {self.name}.from-*, as `--log-max-size` says"
            with contextlib.suppress(OSError), closing(open_to_write(self.path, os.O_WRONLY | os.O_APPEND)) as head:
                os.write(head, f"[ddplaunch: {what}]\n".encode())
        with closing(open_place(os.path.dirname(self.path))) as folder:
            for piece in too_old:
                os.unlink(os.path.basename(piece.path), dir_fd=folder)

    def _shut(self) -> None:
        if self._file >= 0:
            try:
                os.close(self._file)
            except OSError as error:  # an exceeded quota on a network disk may be reported only here
                self.problem, self._lost = self.problem or error.strerror, True
            self._file = -1


def record_crash(node_directory: str | None, error: BaseException) -> None:
    """Note in the record, if there is one, why the guard itself failed."""
    import traceback

    note = RecordFile(f"{node_directory}/launcher.err" if node_directory else None)
    note.write("".join(["ddplaunch: the guard failed\n", *traceback.format_exception(error)]).encode())
