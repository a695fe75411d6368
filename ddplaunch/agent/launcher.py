"""torchrun as its guard sees it: who it is, and that it has ended; refuses to end it."""

from __future__ import annotations

import os
from collections.abc import Callable

from ddplaunch.agent.loop import Loop
from ddplaunch.agent.processes import Process, process


class Launcher:
    """The process that started the guard. ``seen`` is None if it was gone before the guard could look."""

    def __init__(self, pid: int) -> None:
        """Look at it while it lives."""
        self.pid = pid
        self.seen: Process | None = process(pid)

    def watch(self, loop: Loop, ended: Callable[[], None]) -> None:
        """Call ``ended()`` once at its end. A socket alone would not tell: what torchrun forks may hold it open."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return  # gone, and with it the other end of the socket, which the guard reads first

        def once() -> None:
            loop.forget(handle)
            os.close(handle)
            ended()

        loop.watch(handle, once)
