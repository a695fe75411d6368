"""The guard's event loop: one epoll(7) that calls back for descriptors, the end of a process, and signals."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

#: The guard is in torchrun's process group, so that Ctrl-C and a changed window reach it. Batch systems signal every
#: process of a job; the guard has to outlast that.
_IGNORED = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGTTOU", "SIGTTIN", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGALRM")


class Loop:
    """Waits for descriptors. A callback may forget any descriptor, its own too."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[], None]] = {}

    def watch(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call ``call()`` whenever ``descriptor`` is readable, or its other side is gone."""
        if descriptor not in self._calls:
            self._epoll.register(descriptor, select.EPOLLIN)
        self._calls[descriptor] = call

    def forget(self, descriptor: int) -> None:
        """Watch it no more; to be done before it is closed."""
        if self._calls.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def once(self, timeout_s: float | None) -> None:
        """Wait until something happens, at most ``timeout_s`` (None: for ever), and make the calls."""
        for descriptor, _ in self._epoll.poll(timeout_s):
            if call := self._calls.get(descriptor):
                call()

    def watch_process(self, pid: int, ended: Callable[[], None]) -> None:
        """Call ``ended()`` once at the end of ``pid``, if it is not gone already.

        A socket to torchrun does not tell: what torchrun forks may hold it open.
        """
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return

        def once() -> None:
            self.forget(handle)
            os.close(handle)
            ended()

        self.watch(handle, once)


def listen(loop: Loop, interrupted: Callable[[], None], look: Callable[[bytes], None]) -> None:
    """Call ``interrupted()`` at once for each SIGINT, and ``look(numbers)`` from the loop after SIGINT and SIGWINCH.

    Signals that were blocked when the guard was started are let through now.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    loop.watch(reading, lambda: look(os.read(reading, 512)))
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGINT, lambda *_: interrupted())
    signal.signal(signal.SIGWINCH, lambda *_: None)  # the byte in the pipe says enough
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
