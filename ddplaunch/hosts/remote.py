"""``python -m ddplaunch.hosts.remote``: a host's side of a session, which serves one launcher over stdin and stdout.

When stdin ends, or nothing arrives for ``SILENCE_S``, the launcher is dead, asleep or cut off: whatever it had started
here is ended. There is one thread, because a child that is to die with its parent dies with the thread that made it.
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
        self._alone = False  # the launcher is gone, or is told nothing more
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
            patience_s = SILENCE_S if self._job is not None else _UNUSED_S
            if not self._alone and time.monotonic() - self._heard_s > patience_s:
                self.launcher_lost()
            if self._alone and (self._job is None or self._ended):
                return 0
        return 0

    def _turn(self, timeout_s: float) -> None:
        """Wait for input and pass it on, for at most ``timeout_s`` seconds."""
        self._flush()
        if self._queue and not self._alone:
            timeout_s = min(timeout_s, 0.02)
        for key, _ in self._selector.select(timeout_s):
            if key.fd == self._incoming:
                self._read()
            elif self._meeting is not None and key.fd == self._meeting.fileno():
                self._meeting.greet()
            elif len(self._queue) < _QUEUE or self._alone:
                self._output(key.fd, key.data)
            else:
                time.sleep(0.01)
        self._flush()

    def _flush(self) -> None:
        while self._queue and not self._alone:
            try:
                written = os.write(self._outgoing, self._queue[:_READ])
            except BlockingIOError:
                return
            except OSError:
                self.launcher_lost()
                return
            del self._queue[:written]
        if self._alone:
            self._queue.clear()

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
        self._heard_s = time.monotonic()
        for kind, body in self._frames.feed(data):
            self._act(kind, unpack(body) if body else {})

    def launcher_lost(self) -> None:
        """End the job; the record here tells why, unless the launcher had begun to end it."""
        if self._job is not None and not (self._ended or self._job.told or self._alone):
            from ddplaunch.records.directory import note_stop

            with contextlib.suppress(Exception):  # its end does not wait for a note
                note_stop(Path(str(self._order["record"])), launcher_lost=True)
        self.end_job()

    def end_job(self) -> None:
        """End the session and the job: SIGTERM, then SIGKILL when its grace is over."""
        if self._alone:
            return
        self._alone = True
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._incoming)
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
        from ddplaunch.hosts.session.job import HostJob

        self._order = order
        self._close_meeting()
        try:
            self._job = HostJob(order)
        except OSError as error:
            self._ended = True
            self._send(Kind.ENDED, {"status": 126, "problem": f"{error.strerror}: {error.filename}"})
            return
        for descriptor, name in self._job.streams.items():
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, name)

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
        """The program is gone: end what it left, pass on its last output, say how it ended, and send the record."""
        self._ended = True
        killed = self._job.sweep(self._turn)
        for descriptor, name in list(self._job.streams.items()):
            while descriptor in self._job.streams and self._output(descriptor, name):
                self._turn(0)
        if self._alone:
            return
        status = self._job.process.returncode
        self._send(Kind.ENDED, {"status": status if status >= 0 else 128 - status, "killed": killed})
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
