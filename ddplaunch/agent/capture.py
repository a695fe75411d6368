"""From ranks to files and console: reads each stream when that is worth it; refuses to let one stream stop another."""

from __future__ import annotations

import fcntl
import termios
import time
from collections.abc import Callable, Sequence

from ddplaunch.agent.channels import Channel, pipe_size, shown_ranks
from ddplaunch.agent.console import Console, Sink
from ddplaunch.agent.files import RecordFile
from ddplaunch.agent.loop import Loop
from ddplaunch.agent.prefixed import Prefixed
from ddplaunch.agent.protocol import Rank
from ddplaunch.agent.writer import Writer

_RECORDS_BYTES = 4 << 20
_STALLED_S = 5.0
_AT_MOST_DRAINED = 16 << 20


class Capture:
    """All streams of the current attempt, and torchrun's own."""

    def __init__(self, loop: Loop, console: Console, wake: int, directory: str | None, host: str) -> None:
        """``directory`` is the node's in the record; None records nothing."""
        self._loop, self._console, self._directory, self._host = loop, console, directory, host
        self.records = Writer(wake, _RECORDS_BYTES)
        self._recording = directory is not None
        self._channels: list[Channel] = []
        self._files: list[RecordFile] = []
        self._stalled = False
        self.heard_s = 0.0  # when a rank last printed anything (time.monotonic())

    def add_rank(self, rank: Rank, descriptors: Sequence[int], show: str, attempt: int, streams: int) -> None:
        """Read the streams of one rank from now on; ``streams`` is how many there are of all ranks."""
        shown, with_prefix = shown_ranks(show, rank["rank"])
        for stream, descriptor in zip(rank["streams"], descriptors, strict=False):
            sink = (self._console.err if stream == "err" else self._console.out) if shown else None
            channel = self._add(descriptor, f"attempt-{attempt}/rank-{rank['rank']}.{stream}", sink)
            channel.rank, channel.stream = rank["rank"], stream
            if shown and with_prefix:
                channel.prefixed = Prefixed(f"[{self._host}:{rank['rank']}] ".encode())
            channel.enlarge(pipe_size(streams))
        self.resize()

    def add_launcher(self, descriptor: int, *, verbose: bool) -> None:
        """Read torchrun's own messages from now on."""
        self._add(descriptor, "launcher.err", self._console.err if verbose else None)

    def _add(self, descriptor: int, name: str, sink: Sink | None) -> Channel:
        file = RecordFile(f"{self._directory}/{name}")
        if self._recording:
            self._files.append(file)
            self.records.put(file.open, b"")
        channel = Channel(descriptor, file, sink)
        self._channels.append(channel)
        self._watch(channel)
        return channel

    def _readable(self, channel: Channel) -> None:
        now_s = time.monotonic()
        size = self._take(channel)
        if not channel.open:
            self._close(channel)
        elif self._full(channel):
            channel.paused, channel.rest_until_s = True, None
            self._loop.forget(channel.descriptor)
        elif channel.rest_after(size, now_s):
            self._loop.forget(channel.descriptor)

    def _take(self, channel: Channel) -> int:
        data = channel.read()
        if data is None:
            return 0
        if channel.rank >= 0:
            self.heard_s = time.monotonic()
        if self._recording and channel.file.problem is None:
            self.records.put(channel.file.write, data)
        if channel.sink:
            channel.sink.put(channel.prefixed.feed(data) if channel.prefixed else data)
        return len(data)

    def _full(self, channel: Channel) -> bool:
        if channel.sink and not channel.sink.gone and channel.sink.writer.full():
            return True
        return self._recording and self.records.full()

    def due_s(self) -> float | None:
        """Return when ``tick`` should be called next (time.monotonic()), None if never."""
        times = [channel.rest_until_s for channel in self._channels if channel.rest_until_s is not None]
        if self._recording and any(channel.paused for channel in self._channels):
            times.append(time.monotonic() + 1.0)  # to notice a disk that takes nothing
        return min(times, default=None)

    def tick(self) -> None:
        """Read the channels that have rested enough, go on where there is room again, see what is gone."""
        now_s = time.monotonic()
        if self._recording and self.records.full() and now_s - self.records.moved_s > _STALLED_S:
            self._recording, self._stalled = False, True
        for channel in list(self._channels):
            if channel.rest_until_s is not None and channel.rest_until_s <= now_s:
                size = self._take(channel)
                if not channel.open:
                    self._close(channel)
                elif self._full(channel):
                    channel.paused, channel.rest_until_s = True, None
                elif not channel.rest_after(size, now_s):
                    self._watch(channel)
            elif channel.paused and not self._full(channel):
                channel.paused = False
                self._watch(channel)

    def _watch(self, channel: Channel) -> None:
        try:
            self._loop.watch(channel.descriptor, lambda: self._readable(channel))
        except OSError:  # not a pipe: /dev/null in the place of a stream that an earlier guard has closed
            self._close(channel)

    def newly_gone(self) -> list[tuple[int, str]]:
        """Return rank and stream of what was shown as it is to a reader that is gone, each once."""
        gone = []
        for channel in self._channels:
            shown_as_it_is = channel.sink and channel.rank >= 0 and not channel.prefixed and not channel.is_terminal
            if shown_as_it_is and channel.sink and channel.sink.gone and not channel.told_gone:
                channel.told_gone = True
                gone.append((channel.rank, channel.stream))
        return gone

    def close_stream(self, rank: int, stream: str) -> None:
        """Close a reading end, so that the rank is told by SIGPIPE or EPIPE as it would be without us."""
        for channel in list(self._channels):
            if (channel.rank, channel.stream) == (rank, stream) and channel.told_gone:
                self._take(channel)
                self._close(channel)

    def resize(self) -> list[int]:
        """Give the ranks' terminals the window's size; return those ranks."""
        size = self._console.window_size()
        resized = []
        for channel in self._channels:
            if size and channel.is_terminal:
                try:
                    fcntl.ioctl(channel.descriptor, termios.TIOCSWINSZ, size)
                except OSError:
                    continue
                resized.append(channel.rank)
        return resized

    def drain(self) -> None:
        """Read what ranks have left behind, until nothing comes: a child of theirs may hold the other side for ever."""
        for channel in list(self._channels):
            left = _AT_MOST_DRAINED
            while channel.open and left > 0 and (size := self._take(channel)):
                left -= size

    def end_attempt(self) -> None:
        """Drain and close the ranks' streams, and show their unfinished lines; torchrun's own stays."""
        self.drain()
        for channel in [one for one in self._channels if one.rank >= 0]:
            self._close(channel)

    def _close(self, channel: Channel) -> None:
        if channel.sink and channel.prefixed:
            channel.sink.put(channel.prefixed.flush())
        self._channels.remove(channel)
        self._loop.forget(channel.descriptor)
        channel.close()
        if self._recording:
            self.records.put(channel.file.close, b"")

    def in_background(self, work: Callable[[], None]) -> None:
        """Do ``work`` after what was recorded until now; it must not raise."""
        if self._recording:
            self.records.put(lambda _: work(), b"")

    def settle(self, seconds: float) -> None:
        """Wait until all is in the files, at most ``seconds``."""
        if not self._stalled:
            self.records.wait(time.monotonic() + seconds)

    def unrecorded(self) -> str | None:
        """Say why output is missing in the record, None if none is."""
        if self._stalled:
            return f"the disk took nothing for {_STALLED_S:.0f} s"
        lost = [file for file in self._files if file.problem]
        if not lost:
            return None
        name = lost[0].path.rpartition("/")[2]
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        return f"{name}{more}: {lost[0].problem}"
