"""SIGTERM and SIGHUP while ddplaunch waits break the wait off in order; refuses to replace a handler that is there."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind what waits; 128 + signal is the exit status.

    Others can be told then, and the first process of a container, to which signals do nothing by default, ends at all.
    """

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
