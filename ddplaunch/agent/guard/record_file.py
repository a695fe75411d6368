"""A file of the record that grows: within its limit, and in memory while the disk takes nothing.

Whether a rank prints must never depend on a disk. What cannot be written is kept, the last 64 KiB of it, so that a
failure can still be explained, and written as soon as there is room.
"""

from __future__ import annotations

import contextlib
import os
import time

from ddplaunch.machine.files import Piece, piece_path, pieces_of
from ddplaunch.records.own.own_files import closing, open_place, open_to_write
from ddplaunch.values.words import size_text

LAST_BYTES = 1 << 16
_AGAIN_S = 5.0  # until a disk that took nothing is tried again
_NEWLINE = 10
_REMOVED = "removed while the run went on"


class Last:
    """The last 64 KiB of what was added."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._cut = 0

    def add(self, data: bytes | memoryview) -> None:
        """Add ``data`` at the end."""
        self._data += data
        if (over := len(self._data) - 2 * LAST_BYTES) > 0:
            self._cut += over + LAST_BYTES
            del self._data[: over + LAST_BYTES]

    def look(self) -> bytes:
        """Return what is there."""
        return bytes(self._data[-LAST_BYTES:])

    @property
    def missed(self) -> int:
        """How many bytes came before what is there."""
        return self._cut + max(0, len(self._data) - LAST_BYTES)


class RecordFile:
    """One file. ``problem`` says why something of it is missing, None where nothing is.

    A log of more than ``limit_bytes`` (0: of any size) keeps its first quarter in the file itself, and what came last
    in pieces beside it (``machine/files.py``), of which the oldest are removed. It is opened to append, so that a
    second guard goes on where the first one died. All but ``keep`` is for the thread that writes.
    """

    def __init__(self, path: str | None, limit_bytes: int = 0) -> None:
        """Remember the path, None to keep the last bytes in memory only; ``open`` does the work."""
        self.path = path
        self.problem: str | None = None
        self._limit = limit_bytes
        self._piece = Piece(path or "", 0, 0)
        self._size = 0  # of this piece
        self._file = -1
        self._begun = self._lost = self._closed = False
        self._line_ended = True
        self._unwritten, self._kept = Last(), Last()
        self._again_s = 0.0

    @property
    def name(self) -> str:
        """The name without its folders."""
        return (self.path or "").rpartition("/")[2]

    def open(self) -> None:
        """Create the file, and its directory, or go on at its end. Never raises."""
        if self.path is None:
            return
        try:
            self._open((pieces_of(self.path) or [Piece(self.path, 0, 0)])[-1])
        except OSError as error:
            self._fail(error)

    def write(self, data: bytes) -> None:
        """Append ``data``, or keep the last of what the disk does not take. Never raises."""
        if self._file >= 0:
            if (done := self._append(data)) < len(data):
                self._unwritten.add(data[done:])
            return
        self._unwritten.add(data)
        if time.monotonic() >= self._again_s:
            self.retry()

    def _append(self, data: bytes) -> int:
        """Append ``data``; return how much of it the disk has taken."""
        view = memoryview(data)
        while view:
            try:
                if not (fits := self._fits(view)):
                    self._go_on()
                    continue
                done = os.write(self._file, view[:fits])
            except OSError as error:
                self._fail(error)
                break
            self._size += done
            self._line_ended = view[done - 1] == _NEWLINE
            view = view[done:]
        return len(data) - len(view)

    def keep(self, data: bytes) -> None:
        """Keep the last of what is not even given to the thread, because that hangs in a write."""
        self._kept.add(data)

    def retry(self) -> None:
        """Write what the disk did not take, if it takes it now."""
        self._again_s = time.monotonic() + _AGAIN_S
        if self._file < 0:
            self.open()
        if self._file < 0:
            return
        why, missed = self.problem, self._unwritten.missed
        waiting = (self._missing(missed) if missed else b"") + self._unwritten.look()
        if done := self._append(waiting):
            self._lost = self._lost or bool(missed)
            self._unwritten = Last()
            self._unwritten.add(waiting[done:])
        if done == len(waiting):
            self.problem = why if self._lost else None

    def check(self) -> None:
        """Write what waits to be written, and note where the file was removed. Never raises."""
        if self._file < 0 and self._unwritten.look():
            self.retry()
            if self._closed:
                self._shut()
        elif self._begun and not os.path.lexists(self._piece.path):
            self.problem = self.problem or _REMOVED

    def close(self) -> None:
        """Close the file, having tried once more to write what was not."""
        self._closed = True
        self.check()
        self._shut()

    def unwritten(self) -> bytes:
        """Return the last of what is not in the file, with a line that says what is missing before it."""
        waiting = self._unwritten.look() + self._kept.look()
        missed = self._unwritten.missed + self._kept.missed
        return (self._missing(missed) if missed and waiting else b"") + waiting

    def forget(self) -> None:
        """Let go of what is in memory."""
        self._unwritten, self._kept = Last(), Last()

    def _missing(self, size_bytes: int) -> bytes:
        return self._notice(f"{size_text(size_bytes)} of output are missing here, which the disk did not take")

    def _notice(self, text: str) -> bytes:
        return f"{'' if self._line_ended else chr(10)}[ddplaunch: {text}]\n".encode()

    def _open(self, piece: Piece) -> None:
        self._file = open_to_write(piece.path, os.O_WRONLY | os.O_APPEND)
        self._piece, self._size, self._begun = piece, os.fstat(self._file).st_size, True

    def _fits(self, view: memoryview) -> int:
        """Return how much of ``view`` goes into this piece, which ends with a line where that is not too long."""
        if not self._limit:
            return len(view)
        most = self._limit // 4 if self._piece.start == 0 else self._limit * 3 // 8
        room = most - self._size
        if len(view) <= room:
            return len(view)
        if room <= 0 and self._line_ended:
            return 0
        end = bytes(view).find(b"\n", max(0, room - 1)) + 1
        return end or (len(view) if self._size < most + most // 8 else 0)

    def _go_on(self) -> None:
        """Begin the next piece; remove the oldest ones, and say in the file itself what was cut. Raises OSError."""
        assert self.path is not None
        start = self._piece.start + self._size
        self._shut()
        self._open(Piece(piece_path(self.path, start), start, start))
        pieces = pieces_of(self.path)
        too_old = pieces[1:-2]
        if too_old and too_old[0].start == pieces[0].end:
            self._say_cut()
        with closing(open_place(os.path.dirname(self.path))) as folder:
            for piece in too_old:
                os.unlink(os.path.basename(piece.path), dir_fd=folder)

    def _say_cut(self) -> None:
        path = self.path or ""
        what = f"output was cut here; the last of it is in {self.name}.from-*, as `--log-max-size` says"
        with contextlib.suppress(OSError), closing(open_to_write(path, os.O_WRONLY | os.O_APPEND)) as head:
            os.write(head, f"[ddplaunch: {what}]\n".encode())

    def _fail(self, error: OSError) -> None:
        self.problem = self.problem or error.strerror or str(error)
        self._again_s = time.monotonic() + _AGAIN_S
        self._shut()

    def _shut(self) -> None:
        if self._file >= 0:
            try:
                os.close(self._file)
            except OSError as error:  # a disk quota over the network may be told only here
                self.problem, self._lost = self.problem or error.strerror, True
            self._file = -1


class Room:
    """Space on the record's disk that is held while the run goes on, so that its end can be written to a full one."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._held = False

    def take(self, size_bytes: int) -> None:
        """Hold ``size_bytes``, less of a disk that has little room itself. Never raises."""
        if self._directory is None or self._held:
            return
        path = f"{self._directory}/{_ROOM}"
        with contextlib.suppress(OSError), closing(open_to_write(path, os.O_WRONLY)) as file:
            self._held = True
            disk = os.fstatvfs(file)
            os.posix_fallocate(file, 0, max(1, min(size_bytes, disk.f_bavail * disk.f_frsize // 16)))

    def give_back(self) -> None:
        """Give it to what is written next. Never raises."""
        if self._directory is not None and self._held:
            with contextlib.suppress(OSError), closing(open_place(self._directory)) as folder:
                os.unlink(_ROOM, dir_fd=folder)
        self._held = False


_ROOM = ".room"


def record_crash(node_directory: str | None, error: BaseException) -> None:
    """Note in the record, if there is one, why the guard itself failed."""
    import traceback

    note = RecordFile(f"{node_directory}/launcher.err" if node_directory else None)
    note.open()
    note.write("".join(["ddplaunch: the guard failed\n", *traceback.format_exception(error)]).encode())
