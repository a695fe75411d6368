"""How a forked process leaves torchrun's Python frames for good; refuses to know what is done afterwards.

A script that runs under somebody else's frames can tell: by its recursion limit, by ``inspect.stack()``, by
faulthandler's dumps. So the fork raises an exception that nobody catches, and goes on where the interpreter hands it to
``sys.excepthook``: all Python frames are gone there. The hook consists of C callables alone (``max`` calls its key for
each of type, value and traceback), so that what its second step runs has no Python frame beneath it either.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

#: Seconds until a fork is killed that somebody's ``except BaseException`` kept: it must not act as torchrun.
_DEADLINE_S = 10
_CALLS_OF_HOOK = 6


class Handover(BaseException):
    """Unwinds to the interpreter's bottom. ``step`` of the class runs first, ``step`` of the instance second."""

    step: Callable[[], object]


def _uncount_calls() -> None:
    """Give the script its whole recursion limit: until 3.11 the C calls of the hook count like Python frames."""
    if sys.version_info < (3, 12):
        for _ in range(_CALLS_OF_HOOK):
            ctypes.pythonapi.Py_LeaveRecursiveCall()


def leave(first: Callable[[], Callable[[], object]]) -> NoReturn:
    """Unwind all frames, call ``first``, and then what it returned, with no Python frame beneath the latter.

    Never returns; the second callable has to end the process.
    """
    handover, hook = Handover(), sys.excepthook

    def arrive() -> None:
        signal.alarm(0)
        sys.excepthook = hook
        if handover.__traceback__ is not None:
            traceback.clear_frames(handover.__traceback__)
        handover.__traceback__ = None
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)
        handover.step = first()
        _uncount_calls()

    Handover.step = staticmethod(arrive)
    sys.excepthook = functools.partial(max, key=operator.methodcaller("step"))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_DEADLINE_S)
    raise handover
