"""Runs work that may hang forever (a dead mount, a silent DNS server) in forked children, and kills the late ones."""

from __future__ import annotations

import marshal
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from ddplaunch.values.frozen import dataclass

_REAP_S = 0.1  # how long to wait for a killed child to disappear before abandoning it


@dataclass(frozen=True)
class Child:
    """A forked child that will write one marshalled answer to ``fd``; ``error`` says why no child was started."""

    pid: int = 0
    fd: int = -1
    error: str | None = None


@dataclass(frozen=True)
class Answer:
    """The return value of the function, or in ``error`` the reason why there is none."""

    value: Any = None
    error: str | None = None


def start(function: Callable[[], Any]) -> Child:
    """Run ``function`` in a forked child and return at once; never raises.

    ``function`` must return what `marshal` can write: numbers, text, None, and tuples, lists and dicts of them.
    It does not run in a thread, because a thread blocked in a system call on a dead mount cannot be ended.
    """
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:  # process limit reached, or out of memory
        os.close(reader)
        os.close(writer)
        return Child(error=f"no process could be started: {error.strerror}")
    if pid:
        os.close(writer)
        return Child(pid, reader)
    _answer(function, writer)


def _answer(function: Callable[[], Any], writer: int) -> NoReturn:
    """Run in the child: never return, never run the parent's exit handlers, never flush its buffers."""
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
    """Return each child's answer in order, after at most ``deadline_s`` seconds in total.

    Late children get SIGKILL. A child that the kernel cannot end (state D on a dead NFS server) is abandoned: waiting
    for it would be the very hang that this module prevents.
    """
    until_s = time.monotonic() + deadline_s
    try:
        return [_answer_of(child, until_s, deadline_s) for child in children]
    finally:
        _end([child for child in children if child.error is None])


def _answer_of(child: Child, until_s: float, deadline_s: float) -> Answer:
    if child.error is not None:
        return Answer(error=child.error)
    poll = select.poll()
    poll.register(child.fd, select.POLLIN)
    if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
        return Answer(error=f"no answer within {deadline_s:g} s")
    data = b"".join(iter(partial(os.read, child.fd, 1 << 16), b""))  # the child writes everything at once, and ends
    try:
        good, value = marshal.loads(data)
    except (EOFError, ValueError, TypeError):
        return Answer(error="the child process that looked died without an answer")
    return Answer(value=value) if good else Answer(error=value)


def _end(children: Sequence[Child]) -> None:
    for child in children:
        os.close(child.fd)
    pids = [child.pid for child in children if not _reaped(child.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    give_up_s = time.monotonic() + _REAP_S
    while (pids := [pid for pid in pids if not _reaped(pid)]) and time.monotonic() < give_up_s:
        time.sleep(0.0005)


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # another SIGCHLD handler reaped it first
        return True
