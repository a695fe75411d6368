"""The signals that reach the guard; refuses to be ended by any before its work is done.

The guard is in torchrun's process group, so that Ctrl-C and a changed window reach it too; batch systems signal every
process of a job.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from ddplaunch.agent.loop import Loop

_IGNORED = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGTTOU", "SIGTTIN", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGALRM")


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
