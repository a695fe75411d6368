"""The launcher's ssh sessions with many hosts: starts ssh, sends messages, returns what arrives, keeps them alive.

Both sides send messages of ``ddplaunch.hosts.json_lines``. A shell's start-up files may print before the host's first
message; ``GREETING`` marks where that ends. Once a host has started the requested program, the session's stdout, stderr
and exit status are that program's, and a NUL on stderr answers each message. Either side gives up after ``SILENCE_S``
without hearing from the other.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from ddplaunch.hosts.json_lines import GREETING, SILENCE_S, json_line
from ddplaunch.hosts.ssh import environment
from ddplaunch.values.frozen import dataclass

BEAT_S = 2.0
_LONGEST_LINE = 64 << 20
_NOISE = 4096
_READ = 1 << 18
_SAID = 1 << 16
_CLOSING_S = 0.5  # for all sessions together: do not wait for a host that is gone
_DESCRIPTORS = 4  # for each host: stdin, stdout, stderr, and its record as it arrives
_OWN_DESCRIPTORS = 128  # the interpreter's own, and those of sessions that are being started


@dataclass(frozen=True)
class Event:
    """An event of one host: a message as a line, output of its program, or the end of its session."""

    link: Link
    kind: Literal["message", "out", "err", "end"]
    body: bytes = b""


class Link:
    """One host's session. ``before`` is what its shell printed before the greeting, ``said`` the end of stderr.

    ``started``: stdout and stderr now belong to a program.
    """

    def __init__(self, name: str, argv: Sequence[str], unsent: set[Link]) -> None:
        """Start ``argv`` where this terminal's Ctrl-C does not reach it; ``unsent`` contains links with a queue."""
        self.name = name
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environment(),
        )
        self.said = b""
        self.greeted, self.before = False, b""
        self.started = False
        self._pending = b""
        self.queue = bytearray()
        self._unsent = unsent
        self.heard_s = time.monotonic()
        self.closed = False
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._input, self.outputs = self.process.stdin, (self.process.stdout, self.process.stderr)
        self._open = len(self.outputs)
        for stream in (self._input, *self.outputs):
            os.set_blocking(stream.fileno(), False)

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue one message; do nothing where the session is over."""
        if not self.closed:
            self.queue += json_line(message)
            self._unsent.add(self)
            self.flush()

    def hand_over(self, what: str, **order: Any) -> None:
        """Have the host start the program of ``order``; from now on silence counts."""
        self.heard_s, self.said, self.started = time.monotonic(), b"", True
        self.send({"what": what, **order})

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self._open == 0

    def flush(self) -> None:
        """Write as much of the queue as the pipe takes."""
        while self.queue and not self.closed:
            try:
                written = os.write(self._input.fileno(), self.queue[:_READ])
            except BlockingIOError:
                return
            except OSError:
                self.queue.clear()
                break
            del self.queue[:written]
        self._unsent.discard(self)

    def lines(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that ``data`` completes. Raises ValueError for a message that is too long."""
        self._pending += data
        if not self.greeted:
            self.before, greeting, rest = self._pending.partition(GREETING)
            self.greeted, self._pending = bool(greeting), rest if greeting else self.before[-_NOISE:]
        if self.greeted and b"\n" in data:
            *whole, self._pending = self._pending.split(b"\n")
            yield from whole
        if len(self._pending) > _LONGEST_LINE:
            raise ValueError(f"a line of more than {_LONGEST_LINE} bytes")

    def ended(self) -> bool:
        """Note the end of one stream; return whether it was the last."""
        self._open -= 1
        return self.over

    def close(self) -> None:
        """End the session without waiting; the host then ends what it runs."""
        self.closed = True
        self._unsent.discard(self)
        for stream in (self._input, *self.outputs):
            with contextlib.suppress(OSError):  # unsent data is lost
                stream.close()

    def kill(self) -> None:
        """Kill ssh at once, with its ProxyCommand; the host notices by itself."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def reap(self, deadline_s: float) -> int | None:
        """Return ssh's status, None where it had to be killed after ``deadline_s`` seconds."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
            return None


class Links:
    """All sessions of one command."""

    def __init__(self) -> None:
        """Open none yet."""
        self.all: list[Link] = []
        self._unsent: set[Link] = set()
        self._selector = selectors.DefaultSelector()
        self._beat_at_s = 0.0

    def __enter__(self) -> Links:
        """Return itself."""
        return self

    def __exit__(self, *problem: object) -> None:
        """Close every session. A host whose session closes ends what it runs."""
        for link in self.all:
            if not link.closed:
                self.close(link)
        until = time.monotonic() + _CLOSING_S
        for link in self.all:
            if link.process.returncode is None:
                link.reap(max(0.0, until - time.monotonic()))

    def open(self, name: str, argv: Sequence[str]) -> Link:
        """Start a session. Raises OSError where there is no ssh."""
        link = Link(name, argv, self._unsent)
        self.all.append(link)
        for stream in link.outputs:
            self._selector.register(stream, selectors.EVENT_READ, link)
        return link

    def close(self, link: Link) -> None:
        """End one session."""
        for stream in link.outputs:
            with contextlib.suppress(KeyError, ValueError):  # unregistered when it ended
                self._selector.unregister(stream)
        link.close()

    def keep_alive(self, links: Collection[Link]) -> list[Link]:
        """Send a beat to each of ``links`` when one is due; kill and return those that were silent too long.

        Call this several times a second while programs run: a host ends its program when no beat arrives.
        """
        now = time.monotonic()
        if now >= self._beat_at_s:
            self._beat_at_s = now + BEAT_S
            for link in links:
                link.send({})
        silent = [link for link in links if now - link.heard_s > SILENCE_S]
        for link in silent:
            link.kill()
        return silent

    def wait(self, timeout_s: float) -> list[Event]:
        """Return the events that arrive within ``timeout_s`` seconds."""
        for link in tuple(self._unsent):
            link.flush()
        if self._unsent:
            timeout_s = min(timeout_s, 0.02)
        events: list[Event] = []
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            events += self._read(key.data, key.fileobj)
        return events

    def _read(self, link: Link, stream: Any) -> list[Event]:
        try:
            data = os.read(stream.fileno(), _READ)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(stream)
            return [Event(link, "end")] if link.ended() else []
        link.heard_s = time.monotonic()
        if stream is link.process.stderr:
            data = data.replace(b"\0", b"")
            link.said = (link.said + data)[-_SAID:]
            return [Event(link, "err", data)] if data and link.started else []
        if link.started:
            return [Event(link, "out", data)]
        try:
            return [Event(link, "message", line) for line in link.lines(data)]
        except ValueError as problem:
            link.said += f"\n{link.name} sent what is no message: {problem}\n".encode()
            self._selector.unregister(stream)
            link.kill()
            return [Event(link, "end")] if link.ended() else []


def allow_many(hosts: int) -> None:
    """Raise the soft limit on open files to what ``hosts`` sessions need, or to the hard limit."""
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = hosts * _DESCRIPTORS + _OWN_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        descriptors = min(descriptors, hard)
    if soft != resource.RLIM_INFINITY and soft < descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
