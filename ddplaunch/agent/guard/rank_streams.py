r"""Reads the output of ranks and torchrun from pipes and terminals, and passes it to the record and the console.

Output of several ranks is shown as whole lines with a prefix. Bytes that are not UTF-8 pass unchanged. A progress bar,
which returns to the start of its line with ``\r``, becomes one line: the last that a terminal would show.
"""

from __future__ import annotations

import fcntl
import os
import termios
import time
from collections.abc import Callable, Sequence

from ddplaunch.agent.guard.loop import Loop
from ddplaunch.agent.guard.output import Console, Sink, Writer
from ddplaunch.agent.guard.record_file import RecordFile
from ddplaunch.agent.protocol import Rank
from ddplaunch.planning.settings import Settings
from ddplaunch.values.escapes import HarmlessPieces, harmless_line
from ddplaunch.values.words import listed

#: A longer line is shown in pieces, each with the prefix, so that the guard stays small.
LONGEST_LINE_BYTES = 16 << 20


class Prefixed:
    """Prefixes the lines of one stream of one rank; ``feed`` takes bytes as read and returns whole lines."""

    def __init__(self, prefix: bytes, on_terminal: bool = False) -> None:
        """``prefix`` starts every line and includes its space. A terminal gets colours, but no other controls."""
        self._prefix, self._on_terminal = prefix, on_terminal
        self._open: list[bytes] = []
        self._open_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Return the lines that ``data`` finishes, each with the prefix and a newline."""
        end = data.rfind(b"\n")
        if end < 0:
            self._hold(data)
            return self.flush() if self._open_bytes > LONGEST_LINE_BYTES else b""
        text = b"".join((*self._open, data[:end]))
        self._open, self._open_bytes = [], 0
        self._hold(data[end + 1 :])
        return self._show(text)

    def flush(self) -> bytes:
        """Return the unfinished line as a whole line; b"" if there is none."""
        text = b"".join(self._open)
        self._open, self._open_bytes = [], 0
        return self._show(text) if text.strip(b"\r") else b""

    def _hold(self, data: bytes) -> None:
        begin = data.rstrip(b"\r").rfind(b"\r") + 1
        if begin:  # a progress bar that runs for hours stays one line
            self._open, self._open_bytes = [], 0
        self._open.append(data[begin:])
        self._open_bytes += len(data) - begin

    def _show(self, text: bytes) -> bytes:
        lines = text.split(b"\n")
        if b"\r" in text:
            lines = [finally_shown(line) if b"\r" in line else line for line in lines]
        if self._on_terminal:
            lines = [harmless_line(line) for line in lines]
        between = b"\n" + self._prefix
        return self._prefix + between.join(lines) + b"\n"


def finally_shown(line: bytes) -> bytes:
    """Return the last part of ``line`` that is not blank; parts are separated by a progress bar's ``\\r``."""
    return next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")


_BUFFER = bytearray(1 << 18)


class Stream:
    """One stream of a rank or torchrun: where it is read, recorded and shown (``sink``, None: not shown)."""

    def __init__(self, descriptor: int, file: RecordFile, sink: Sink | None) -> None:
        """Make ``descriptor`` non-blocking; no other process that shares it reads it."""
        self.descriptor, self.file, self.sink = descriptor, file, sink
        self.prefixed: Prefixed | None = None
        self.pieces: HarmlessPieces | None = None
        self.rank = -1
        self.open = True
        self.paused = False
        self.is_terminal = os.isatty(descriptor)
        os.set_blocking(descriptor, False)

    def read(self) -> bytes | None:
        """Return available bytes, None without any; sets ``open`` to False at the end of the stream."""
        try:
            size = os.readv(self.descriptor, [_BUFFER])
        except BlockingIOError:
            return None
        except OSError:  # EIO: the other side of the terminal is closed
            size = 0
        if size == 0:
            self.open = False
            return None
        return bytes(memoryview(_BUFFER)[:size])

    def close(self) -> None:
        """Close the reading end."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor, self.open = -1, False


#: Messages of gloo's exception, and of NCCL's watchdog, which waits a while before it ends the rank.
_TIMED_OUT = (b"Timed out waiting", b"Watchdog caught collective operation timeout")
_RECORDS_BYTES = 4 << 20
_STALLED_S = 5.0
_AT_MOST_DRAINED = 16 << 20


class Streams:
    """All streams of the current attempt, and torchrun's own."""

    def __init__(self, loop: Loop, console: Console, wake: int, settings: Settings, host: str) -> None:
        """Read nothing yet. Without a directory in the settings, the last output is kept in memory."""
        self._loop, self._console, self._settings, self._host = loop, console, settings, host
        self.records = Writer(wake, _RECORDS_BYTES)
        self.without: str | None = None  # why ranks write to the console
        self._open: list[Stream] = []
        self._files: list[tuple[str, RecordFile]] = []  # with their names in the node's directory
        self._stalled = False
        self.heard_s = 0.0  # when a rank last printed anything (time.monotonic())
        self.timed_out: Callable[[], object] | None = None  # called once, when a rank prints a collective's time-out

    def add_rank(self, rank: Rank, descriptors: Sequence[int], attempt: int) -> None:
        """Read the streams of one rank from now on, in the order of ``rank["streams"]``."""
        shown, prefixed = self._settings.shows(rank["rank"]), not self._settings.shows_alone(rank["rank"])
        for name, descriptor in zip(rank["streams"], descriptors, strict=False):
            sink = (self._console.err if name == "err" else self._console.out) if shown else None
            limit = self._settings.log_max_bytes // len(rank["streams"])
            stream = self._add(descriptor, f"attempt-{attempt}/rank-{rank['rank']}.{name}", sink, limit)
            stream.rank = rank["rank"]
            if sink and prefixed:
                stream.prefixed = Prefixed(f"[{self._host}:{rank['rank']}] ".encode(), sink.is_terminal)
        self.resize()

    def add_launcher(self, descriptor: int) -> None:
        """Read torchrun's own messages from now on."""
        stream = self._add(
            descriptor,
            "launcher.err",
            self._console.err if self._settings.verbose else None,
            self._settings.log_max_bytes,
        )
        stream.pieces = HarmlessPieces() if self._console.err.is_terminal else None

    def _add(self, descriptor: int, name: str, sink: Sink | None, limit_bytes: int) -> Stream:
        node = self._settings.node_directory
        file = RecordFile(node and f"{node}/{name}", limit_bytes)
        self._files.append((name, file))
        self.in_background(file.flush)
        stream = Stream(descriptor, file, sink)
        self._open.append(stream)
        self._watch(stream)
        return stream

    def _read(self, stream: Stream) -> None:
        """Read available bytes; pause the stream if the console or the disk must catch up first."""
        self._take(stream)
        if not stream.open:
            self._close(stream)
        elif self._full(stream):
            stream.paused = True
            self._loop.forget(stream.descriptor)
            self.resume()

    def _take(self, stream: Stream) -> int:
        data = stream.read()
        if data is None:
            return 0
        if stream.rank >= 0:
            self.heard_s = time.monotonic()
            if self.timed_out is not None and any(words in data for words in _TIMED_OUT):
                self.timed_out()
                self.timed_out = None
        if not self._stalled:
            self.records.put(lambda: stream.file.write(data), len(data))
        if stream.sink:
            self._console.end_passing()
            shown = stream.prefixed or stream.pieces
            stream.sink.put(data if shown is None else shown.feed(data))
        return len(data)

    def _full(self, stream: Stream) -> bool:
        if stream.sink and not stream.sink.gone and stream.sink.writer.full():
            return True
        return not self._stalled and self.records.full()

    def resume(self) -> None:
        """Resume the streams that waited for the console or the disk, if there is room again."""
        now_s = time.monotonic()
        if not self._stalled and self.records.full() and now_s - self.records.moved_s > _STALLED_S:
            self._stalled = True
        for stream in list(self._open):
            if stream.paused and not self._full(stream):
                stream.paused = False
                self._watch(stream)
        if not self._stalled and any(stream.paused for stream in self._open):
            self._loop.at(now_s + 1.0, self.resume)  # to notice a stalled disk

    def _watch(self, stream: Stream) -> None:
        try:
            self._loop.watch(stream.descriptor, lambda: self._read(stream))
        except OSError:  # not a pipe but /dev/null, as an earlier guard closed this stream
            self._close(stream)

    def resize(self) -> list[int]:
        """Give the ranks' terminals the window's size; return those ranks."""
        size = self._console.window_size()
        resized = []
        for stream in self._open:
            if size and stream.is_terminal:
                try:
                    fcntl.ioctl(stream.descriptor, termios.TIOCSWINSZ, size)
                except OSError:
                    continue
                resized.append(stream.rank)
        return resized

    def end_attempt(self) -> None:
        """Read what is left, close the ranks' streams, and show their unfinished lines; keep torchrun's stream open.

        Do not wait for the end of a stream, as a rank's child may hold it open forever.
        """
        for stream in list(self._open):
            left = _AT_MOST_DRAINED
            while stream.open and left > 0 and (size := self._take(stream)):
                left -= size
            if stream.rank >= 0:
                self._close(stream)

    def _close(self, stream: Stream) -> None:
        if stream.sink and stream.prefixed:
            self._console.end_passing()
            stream.sink.put(stream.prefixed.flush())
        self._open.remove(stream)
        self._loop.forget(stream.descriptor)
        stream.close()
        self.in_background(stream.file.close)

    def in_background(self, work: Callable[[], None]) -> None:
        """Do ``work``, which must not raise, in the recording thread after all earlier work."""
        if not self._stalled:
            self.records.put(work)

    def settle(self, seconds: float) -> None:
        """Wait until all output is in the files, at most ``seconds``."""
        if not self._stalled:
            self.records.wait(time.monotonic() + seconds)

    def unrecorded(self) -> str | None:
        """Return why output is missing in the record, None if none is."""
        if self._settings.node_directory is None:
            return None
        if self.without is not None:
            return f"ranks wrote to the console: {self.without}"
        if self._stalled:
            return f"the disk took nothing for {_STALLED_S:.0f} s"
        lost = [file for _, file in self._files if file.problem]
        return f"{listed([file.name for file in lost], 1)}: {lost[0].problem}" if lost else None

    def unwritten(self) -> dict[str, bytes]:
        """Return the last output that could not be written, by its file's name in the node's directory."""
        return {name: data for name, file in self._files if (data := file.unwritten())}
