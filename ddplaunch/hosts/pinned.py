"""Signals to a process whose pid cannot be given out again meanwhile; refuses to decide whether it is the right one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Literal

#: "sent"; "gone": no such process; "other": the pid belongs to another process by now; "denied": no permission.
Sent = Literal["sent", "gone", "other", "denied"]


def send_pinned(pid: int, number: int, is_same: Callable[[], bool]) -> Sent:
    """Send the signal if ``is_same`` holds while a pidfd pins the process.

    So nobody else can get the pid between the look and the signal: https://man7.org/linux/man-pages/man2/pidfd_open.2.html.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return "gone"
    except OSError:  # a kernel before 5.3, or a sandbox: nothing better than the number is to be had
        descriptor = -1
    try:
        if not is_same():
            return "other"
        if descriptor < 0:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        return "denied"
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return "sent"
