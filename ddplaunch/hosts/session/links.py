"""The launcher's ssh sessions with many hosts, all on one asyncio loop: starts ssh, asks hosts, keeps sessions alive.

Both sides send messages of ``ddplaunch.hosts.json_lines``. A shell's start-up files may print before the host's first
message; ``GREETING`` marks where that ends. Once a host has started the requested program, the session's stdout, stderr
and exit status are that program's, and a NUL on stderr answers each message.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, Literal, TypeVar

from ddplaunch.hosts.json_lines import GREETING, json_line, message_in
from ddplaunch.hosts.ssh import environment, failure
from ddplaunch.records.first_failure import steady_s
from ddplaunch.values.finding import Finding

BEAT_S = 2.0
_SILENT_S = 10.0  # a host answers each beat, within seconds also where it is busy
_LONGEST_LINE = 64 << 20
_NOISE = 4096
_READ = 1 << 18
_STDERR_KEPT = 1 << 16
_CLOSING_S = 0.5  # for all sessions together: do not wait for a host that is gone

Result = TypeVar("Result")
#: Takes output of a host's program, or "end" when the session is over.
Receiver = Callable[["Link", Literal["out", "err", "end"], bytes], None]


class Link:
    """One host's session. ``before`` is what its shell printed before the greeting, ``stderr_end`` the end of stderr.

    ``over``: nothing more will come; ``status`` is then ssh's, None where it had to be killed. ``tries`` counts the
    sessions begun with this host, ``until_s`` is when its time to answer is over, by time.monotonic; ``limit_s`` is
    how long that time was. ``silence`` is from when to when, by ``steady_s``, nothing was heard for the last time.
    """

    def __init__(self, name: str, argv: Sequence[str], loop: asyncio.AbstractEventLoop, arrival: asyncio.Event) -> None:
        """Start ``argv`` where this terminal's Ctrl-C does not reach it. ``arrival`` is set when anything arrives."""
        self.name, self._loop, self._arrival = name, loop, arrival
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environment(),
        )
        self.before = self.stderr_end = b""
        self.greeted = self.over = self.closed = False
        self.status: int | None = None
        self.tries, self.until_s, self.limit_s = 0, 0.0, 0.0
        self.heard_s = time.monotonic()
        self.silence = 0.0, 0.0
        self._ended = asyncio.Event()
        self._stdout = asyncio.StreamReader(_LONGEST_LINE, loop)
        self._received_bytes = 0
        self._unsent = bytearray()
        self._receive: Receiver | None = None
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._input, self._outputs = self.process.stdin, [self.process.stdout, self.process.stderr]
        os.set_blocking(self._input.fileno(), False)
        for stream in self._outputs:
            os.set_blocking(stream.fileno(), False)
            loop.add_reader(stream, self._read, stream)

    def _read(self, stream: IO[bytes]) -> None:
        """Take what ssh wrote to stdout or stderr: messages, or output of the host's program."""
        try:
            data = os.read(stream.fileno(), _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._arrival.set()
        if not data:
            self._end(stream)
            return
        self.heard_s = time.monotonic()
        if stream is self.process.stderr:
            data = data.replace(b"\0", b"")
            self.stderr_end = (self.stderr_end + data)[-_STDERR_KEPT:]
        if self._receive is not None:
            self._receive(self, "out" if stream is self.process.stdout else "err", data)
        elif stream is self.process.stdout:
            self._stdout.feed_data(data)
            self._received_bytes += len(data)
            if self._received_bytes > _LONGEST_LINE:
                self.stderr_end += f"\n{self.name} sent more than {_LONGEST_LINE} bytes\n".encode()
                self.kill()

    def _end(self, stream: IO[bytes]) -> None:
        """Stop reading ``stream``; after the last one, the session is over."""
        self._loop.remove_reader(stream)
        stream.close()
        self._outputs.remove(stream)
        if not self._outputs:
            self.over, self.status = True, self.reap(_CLOSING_S)
            self._stdout.feed_eof()
            self._ended.set()
            if self._receive is not None:
                self._receive(self, "end", b"")

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message as soon as the pipe takes it; do nothing where the session is over."""
        if not self.closed:
            self._unsent += json_line(message)
            self._flush()

    def _flush(self) -> None:
        """Write as much as the pipe takes; the loop calls this again when it takes more."""
        try:
            del self._unsent[: os.write(self._input.fileno(), self._unsent[:_READ])]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()
        if self._unsent:
            self._loop.add_writer(self._input, self._flush)
        else:
            self._loop.remove_writer(self._input)

    async def ask(self, message: Mapping[str, Any], until_s: float) -> dict[str, Any] | None:
        """Send a question and return the answer; None where none arrives by ``until_s``."""
        self.send(message)
        with suppress(asyncio.TimeoutError, ValueError):  # ValueError: a line that is too long
            line = await asyncio.wait_for(self._stdout.readline(), until_s - time.monotonic())
            return message_in(line) if line.endswith(b"\n") else None
        return None

    async def begins(self, until_s: float) -> bool:
        """Wait until ``until_s`` for the greeting or the end of ssh; return whether the host has greeted."""
        with suppress(asyncio.TimeoutError, asyncio.LimitOverrunError):
            await asyncio.wait_for(self._greeting(), until_s - time.monotonic())
        return self.greeted

    async def _greeting(self) -> None:
        if not self.greeted:
            try:
                await self._stdout.readuntil(GREETING)
                self.greeted = True
            except asyncio.IncompleteReadError as end:
                self.before += end.partial[-_NOISE:]
                await self._ended.wait()

    def hand_over(self, what: str, receive: Receiver, **order: Any) -> None:
        """Have the host start the program of ``order``; what that writes goes to ``receive``."""
        self._receive = receive
        if self.over:
            receive(self, "end", b"")
            return
        self.heard_s, self.stderr_end = time.monotonic(), b""
        self.send({"what": what, **order})

    @property
    def stderr_text(self) -> str:
        """What ssh wrote, and the shell's start-up files before the greeting."""
        return (self.before + b"\n" + self.stderr_end).decode("utf-8", "replace")

    def failure(self, python: str) -> Finding:
        """Return the finding for a missing greeting or answer; ``python`` is the host's interpreter."""
        return failure(self.name, python, self.status, self.stderr_text, self.tries, self.limit_s)

    def close(self) -> None:
        """End the session without waiting; the host then ends what it runs."""
        self.closed = True
        self._loop.remove_writer(self._input)
        for stream in self._outputs:
            self._loop.remove_reader(stream)
        for stream in (self._input, *self._outputs):
            with suppress(OSError):  # unsent data is lost
                stream.close()

    def kill(self) -> None:
        """Kill ssh at once, with its ProxyCommand; the host notices by itself."""
        with suppress(OSError):
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
    """All sessions of one command, and the loop on which they and all that waits for them run."""

    def __init__(self) -> None:
        """Open none yet; raise the soft limit on open files to the hard one: a session takes four, its client more."""
        import resource  # not on Windows

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.all: list[Link] = []
        self._loop = asyncio.new_event_loop()
        self._arrival = asyncio.Event()
        self._beat_at_s = 0.0

    def __enter__(self) -> Links:
        """Return itself."""
        return self

    def __exit__(self, *problem: object) -> None:
        """Close every session. A host whose session closes ends what it runs."""
        for link in self.all:
            if not link.closed:
                link.close()
        until_s = time.monotonic() + _CLOSING_S
        for link in self.all:
            if link.process.returncode is None:
                link.reap(max(0.0, until_s - time.monotonic()))
        self._loop.set_exception_handler(lambda loop, context: None)  # of tasks that an exception left behind
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run ``work``, and meanwhile whatever the sessions do; return its result."""
        return self._loop.run_until_complete(work)

    async def arrival(self, timeout_s: float) -> None:
        """Return when anything has arrived from any host, or when ``timeout_s`` has passed."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._arrival.wait(), timeout_s)
        self._arrival.clear()

    def open(self, name: str, argv: Sequence[str]) -> Link:
        """Start a session. Raises OSError where there is no ssh."""
        link = Link(name, argv, self._loop, self._arrival)
        self.all.append(link)
        return link

    def keep_alive(self, links: Collection[Link], silence_s: float) -> list[Link]:
        """Send a beat to each of ``links`` when one is due; kill and return those that were silent for ``silence_s``.

        Call this several times a second while programs run: a host ends its program when no beat arrives.
        """
        now = time.monotonic()
        if now >= self._beat_at_s:
            self._beat_at_s = now + BEAT_S
            for link in links:
                link.send({})
        for link in links:  # a launcher that was stopped itself has read by now what had arrived
            if now - link.heard_s > _SILENT_S:
                link.silence = steady_s() - now + link.heard_s, steady_s()
        silent = [link for link in links if now - link.heard_s > silence_s]
        for link in silent:
            link.kill()
        return silent
