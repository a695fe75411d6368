"""``python -m ddplaunch.hosts.remote``: a host's side of a session, which serves one launcher over stdin and stdout.

When stdin ends, or nothing arrives for ``SILENCE_S``, the launcher is dead, asleep or cut off: whatever it had started
here is ended, at once or after the launch's ``orphan_s``; until then another launcher may take its place. There is one
thread, because a child that is to die with its parent dies with the thread that made it.
At the end the run's record goes back as pieces of a tar archive, small files before large ones: a launcher that stops
waiting then has most of what explains a failure.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddplaunch.hosts.session.frames import GREETING, SILENCE_S, Frames, Kind, pack, unpack

_UNUSED_S = 300.0  # before anything was started; the launcher may be waiting for other hosts
_TICK_S = 0.1
_IDLE_TICK_S = 1.0  # nothing runs that could end
_READ = 1 << 16
_QUEUE = 4 << 20  # output that the launcher has not taken yet; beyond it the ranks' guard has to wait


class Service:
    """One launcher's session on this host."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        """Serve on these descriptors."""
        self._incoming, self._outgoing = incoming, outgoing
        self._frames = Frames()
        self._queue = bytearray(GREETING)
        self._selector = selectors.PollSelector()  # epoll takes no /dev/null
        self._selector.register(incoming, selectors.EVENT_READ)
        self._job: Any = None
        self._ended = False
        self._leaving = False
        self._told_end = False
        self._orphaned = False  # the launcher is gone, and none is waited for
        self._until_s: float | None = None  # how long another launcher is waited for, where none is heard
        self._open = True  # the session with the launcher
        self._door: Any = None
        self._killed: list[int] = []
        self._order: dict[str, Any] = {}
        self._heard_s = time.monotonic()
        self._meeting: Any = None
        for descriptor in (incoming, outgoing):
            os.set_blocking(descriptor, False)

    def serve(self) -> int:
        """Return when the launcher has left, or is gone and everything of its run has ended."""
        while not self._leaving or self._queue:
            self._turn(_IDLE_TICK_S if self._job is None else _TICK_S)
            if self._job is not None and not self._ended:
                self._job.kill_if_due()
                if self._job.process.poll() is not None:
                    self._finish()
            if self._ended and not self._told_end and not self._alone:
                self._tell_end()
            patience_s = SILENCE_S if self._job is not None else _UNUSED_S
            if not self._alone and time.monotonic() - self._heard_s > patience_s:
                self.launcher_lost(silent=True)
            if self._until_s is not None and time.monotonic() > self._until_s:
                self._note_lost()
                self.end_job()
            if self._orphaned and (self._job is None or self._ended):
                return 0
        return 0

    def _turn(self, timeout_s: float) -> None:
        """Wait for input and pass it on, for at most ``timeout_s`` seconds."""
        self._flush()
        if self._queue and self._open:
            timeout_s = min(timeout_s, 0.02)
        for key, _ in self._selector.select(timeout_s):
            if key.fd == self._incoming:
                self._read()
            elif self._door is not None and key.fd == self._door.fileno():
                self._take_over()
            elif self._meeting is not None and key.fd == self._meeting.fileno():
                self._meeting.greet()
            elif len(self._queue) < _QUEUE or self._alone:
                self._output(key.fd, key.data)
            else:
                time.sleep(0.01)
        self._flush()

    def _flush(self) -> None:
        while self._queue and self._open:
            try:
                written = os.write(self._outgoing, self._queue[:_READ])
            except BlockingIOError:
                return
            except OSError:
                self.launcher_lost()
                return
            del self._queue[:written]
        if not self._open:
            self._queue.clear()

    @property
    def _alone(self) -> bool:
        """Whether no launcher is heard."""
        return self._orphaned or self._until_s is not None

    def _send(self, kind: Kind, body: bytes | dict[str, Any] = b"") -> None:
        if not self._alone:
            self._queue += pack(kind, body)

    def _read(self) -> None:
        try:
            data = os.read(self._incoming, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.launcher_lost()
            return
        self._heard_s, self._until_s = time.monotonic(), None
        for kind, body in self._frames.feed(data):
            self._act(kind, unpack(body) if body else {})

    def launcher_lost(self, silent: bool = False) -> None:
        """Wait for another launcher where the launch says so, else end the job. One that was ``silent`` may go on."""
        if self._door is None:
            self._note_lost()
            self.end_job()
            return
        if not silent:
            self._close_session()
        if not self._alone:
            self._until_s = time.monotonic() + float(self._order["orphan_s"])

    def _note_lost(self) -> None:
        """Leave in the record here why the run is about to be ended, unless the launcher had begun to end it."""
        if self._job is None or self._ended or self._job.told or self._orphaned:
            return
        from ddplaunch.records.directory import note_stop

        with contextlib.suppress(Exception):  # its end does not wait for a note
            note_stop(Path(str(self._order["record"])), float(self._order.get("orphan_s") or 0.0))

    def _close_session(self) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._incoming)
        self._open = False

    def _take_over(self) -> None:
        """Let another launcher in, where none is heard."""
        connection = self._door.accepted(self._alone and not self._orphaned)
        if connection is None:
            return
        self._close_session()
        self._incoming = self._outgoing = connection
        self._frames, self._queue = Frames(), bytearray()
        self._open, self._told_end = True, False
        self._heard_s, self._until_s = time.monotonic(), None
        self._selector.register(connection, selectors.EVENT_READ)

    def end_job(self) -> None:
        """End the job: SIGTERM, then SIGKILL when its grace is over. No launcher is waited for."""
        if self._orphaned:
            return
        self._orphaned, self._until_s = True, None
        self._close_session()
        if self._job is not None and not self._ended:
            self._job.end(signal.SIGTERM)

    def _act(self, kind: Kind, order: dict[str, Any]) -> None:
        if kind is Kind.BEAT:
            self._send(Kind.BEAT, {**order, "wall": time.time()})
        elif kind is Kind.ASK:
            self._answer(order)
        elif kind is Kind.LAUNCH:
            self._launch(order)
        elif kind is Kind.SIGNAL and self._job is not None and not self._ended:
            self._job.end(signal.SIGKILL if order.get("kill") else int(order["signal"]))
        elif kind is Kind.SIZE and self._job is not None:
            self._job.resize(int(order["rows"]), int(order["columns"]))
        elif kind is Kind.TELL and self._job is not None:
            self._job.give(order)
        elif kind is Kind.LEAVE:
            self._leaving = True
            if self._job is not None and not self._ended:
                self.end_job()

    def _answer(self, order: dict[str, Any]) -> None:
        from ddplaunch.hosts.session import answers

        self._close_meeting()
        try:
            answer, self._meeting = answers.answer(order)
            if self._meeting is not None:
                self._selector.register(self._meeting, selectors.EVENT_READ)
        except Exception as error:  # told to the launcher, which knows who can do something about it
            answer = {"problem": f"{type(error).__name__}: {error}"}
        self._heard_s = time.monotonic()  # what took long here was no silence of the launcher's
        self._send(Kind.ANSWER, {"id": order.get("id"), **answer})

    def _close_meeting(self) -> None:
        if self._meeting is not None:
            self._selector.unregister(self._meeting)
            self._meeting.close()
            self._meeting = None

    def _launch(self, order: dict[str, Any]) -> None:
        from ddplaunch.hosts.session.job import HostJob, LauncherDoor

        self._order = order
        self._close_meeting()
        try:
            self._job = HostJob(order)
        except OSError as error:
            self._ended = self._told_end = True
            self._send(Kind.ENDED, {"status": 126, "problem": f"{error.strerror}: {error.filename}"})
            return
        for descriptor, name in self._job.streams.items():
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, name)
        if order.get("orphan_s"):
            with contextlib.suppress(OSError):
                self._door = LauncherDoor(str(order["token"]), int(order["node"]))
                self._selector.register(self._door, selectors.EVENT_READ)

    def _output(self, descriptor: int, name: str) -> bool:
        """Pass on what is there; return whether there was something."""
        try:
            data = os.read(descriptor, _READ)
        except BlockingIOError:
            return False
        except OSError:  # EIO: the last holder of a terminal's other end is gone
            data = b""
        if not data:
            self._selector.unregister(descriptor)
            os.close(descriptor)
            del self._job.streams[descriptor]
            return False
        self._send(Kind.OUT if name == "out" else Kind.ERR, data)
        return True

    def _finish(self) -> None:
        """The program is gone: end what it left, and pass on its last output."""
        self._ended = True
        killed = self._job.sweep(self._turn)
        for descriptor, name in list(self._job.streams.items()):
            while descriptor in self._job.streams and self._output(descriptor, name):
                self._turn(0)
        self._killed = killed

    def _tell_end(self) -> None:
        """Say how the program ended, and send the record."""
        self._told_end = True
        status = self._job.process.returncode
        self._send(Kind.ENDED, {"status": status if status >= 0 else 128 - status, "killed": self._killed})
        for piece in pieces(self._order.get("record"), self._order.get("marker")):
            self._send(Kind.RECORD, piece)
            while len(self._queue) > _QUEUE and not self._alone:
                self._turn(_TICK_S)
        self._send(Kind.RECORD)


def main() -> int:
    """Serve the launcher at the other end of stdin and stdout."""
    os.environ.pop("PYTHONSAFEPATH", None)  # the launcher set it for this interpreter; the ranks are not to inherit it
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what a library prints must not stand between frames
    os.close(null)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    service = Service(incoming, outgoing)
    signal.signal(signal.SIGTERM, lambda *_: service.end_job())
    return service.serve()


_PIECE = 1 << 18
_KEPT = 256 << 20  # bytes of one file's end; sending more takes too long


def pieces(record: str | None, marker: str | None) -> Iterator[bytes]:
    """Yield the archive of the directory ``record``; nothing where ``marker`` is in it: the launcher sees the same one.

    Of a very large file only the end is sent. A file that cannot be read is left out.
    """
    if not record or (marker and Path(record, marker).exists()):
        return
    piece = bytearray()
    for size, path in sorted(_files(Path(record))):
        with contextlib.suppress(OSError):
            for block in _archived(path, str(path.relative_to(record)), size):
                piece += block
                if len(piece) >= _PIECE:
                    yield bytes(piece)
                    piece.clear()
    yield bytes(piece) + bytes(1024)  # which ends an archive


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.rglob("[!.]*"):
        if path.is_file() and not path.is_symlink():
            yield path.stat().st_size, path


def _archived(path: Path, name: str, size: int) -> Iterator[bytes]:
    """Yield the end of a file as a member of an archive; zeros where it has shrunk since it was measured."""
    import tarfile  # not for a host that only tells its facts

    with path.open("rb") as file:
        member = tarfile.TarInfo(name)
        member.size, member.mtime, member.mode = min(size, _KEPT), path.stat().st_mtime, 0o600
        yield member.tobuf()
        file.seek(size - member.size)
        left = member.size
        while left:
            data = file.read(min(left, _PIECE)) or bytes(min(left, _PIECE))
            left -= len(data)
            yield data
        yield bytes(-member.size % tarfile.BLOCKSIZE)


if __name__ == "__main__":
    ended = main()
    sys.stderr.flush()
    os._exit(ended)  # to free everything first takes an eighth of the CPU time of a host that only tells its facts
