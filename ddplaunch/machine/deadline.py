"""Runs work that may hang for ever (a dead mount, a silent DNS server) in forked children, and kills the late ones."""

from __future__ import annotations

import marshal
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ddplaunch.values.frozen import dataclass

_REAP_S = 0.1  # how long a killed child may take to disappear before it is abandoned


@dataclass(frozen=True)
class Child:
    """A forked child that will write one marshalled answer to ``fd``; ``error`` says why there is none."""

    pid: int = 0
    fd: int = -1
    error: str | None = None


@dataclass(frozen=True)
class Answer:
    """``value`` is what the function returned; otherwise ``error`` says why there is none."""

    value: Any = None
    error: str | None = None
    late: bool = False  # the deadline passed


def start(function: Callable[[], Any]) -> Child:
    """Run ``function`` in a forked child and return at once; never raises.

    It must return what `marshal` can write: numbers, text, None, and tuples, lists and dicts of them.
    A thread would not do: nothing can end a thread that sits in a system call on a dead mount.
    """
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:  # the limit on processes, or no memory
        os.close(reader)
        os.close(writer)
        return Child(error=f"no process could be started: {error.strerror}")
    if pid:
        os.close(writer)
        return Child(pid, reader)
    _answer(function, writer)


def _answer(function: Callable[[], Any], writer: int) -> NoReturn:
    """Be the child: never return, never run the parent's exit handlers, never flush its buffers."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            data = marshal.dumps((True, function()))
        except BaseException as error:
            data = marshal.dumps((False, f"{type(error).__name__}: {error}"))
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


def collect(children: Sequence[Child], deadline_s: float) -> list[Answer]:
    """Return each child's answer in order, after ``deadline_s`` seconds for all together at most.

    Children that are late get SIGKILL. One that the kernel cannot end (state D on a dead NFS server) is left
    to the kernel: waiting for it would be the very hang that this file prevents.
    """
    until = time.monotonic() + deadline_s
    started = [child for child in children if child.error is None]
    received: dict[int, bytes] = {child.fd: b"" for child in started}
    finished: set[int] = set()
    poll = select.poll()
    for fd in received:
        poll.register(fd, select.POLLIN | select.POLLHUP)
    try:
        while len(finished) < len(received):
            ready = poll.poll(max(0.0, until - time.monotonic()) * 1000)
            if not ready:
                break
            for fd, _ in ready:
                chunk = os.read(fd, 65536)
                received[fd] += chunk
                if not chunk:
                    poll.unregister(fd)
                    finished.add(fd)
    finally:
        _end(started, finished)
    return [_read(child, received[child.fd] if child.fd in finished else None) for child in children]


def _read(child: Child, data: bytes | None) -> Answer:
    if data is None:
        return Answer(error=child.error, late=child.error is None)
    try:
        good, value = marshal.loads(data)
    except (EOFError, ValueError, TypeError):
        return Answer(error="the child process that looked died without an answer")
    return Answer(value=value) if good else Answer(error=value)


def _end(children: Sequence[Child], finished: set[int]) -> None:
    for child in children:
        if child.fd not in finished:
            os.kill(child.pid, signal.SIGKILL)
        os.close(child.fd)
    give_up = time.monotonic() + _REAP_S
    left = [child.pid for child in children]
    while left:
        left = [pid for pid in left if not _reaped(pid)]
        if not left or time.monotonic() > give_up:
            return
        time.sleep(0.0005)


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # somebody else's SIGCHLD handling was quicker
        return True
