"""What a signal means to torchrun while the plug-in is there: the first one ends it in order; refuses to kill ranks.

Before ranks run, a signal ends torchrun at once. When they run, the first one does what torchrun's own handler does:
it raises SignalException, upon which the agent passes the signal on and waits for the ranks. Another one during that
would break it off and leave ranks behind, and Slurm sends SIGTERM twice: it is left to the guard, which counts Ctrl-C.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Signals:
    """The handlers of this process. ``tell`` is called with the number of the first signal that ends it."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self.first: int | None = None
        self._tell = tell
        #: Set by nohup and its like; torch would take SIGHUP back from it.
        self._ignored = frozenset(each for each in ENDING if signal.getsignal(each) is signal.SIG_IGN)

    def before_ranks(self, end: Callable[[int], None]) -> None:
        """Until ranks run, let a signal call ``end``, which does not return."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self._once(number):
                end(number)

        for each in ENDING:
            if each not in self._ignored:
                signal.signal(each, handle)

    def ranks_run(self, theirs: Any) -> None:
        """Put ours in front of ``theirs``, torch's handler, wherever torch has just set it."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self._once(number):
                theirs(number, frame)

        for each in signal.valid_signals():
            if signal.getsignal(each) is theirs:
                signal.signal(each, signal.SIG_IGN if each in self._ignored else handle)

    def ending(self) -> None:
        """Let nothing break off the end of the run any more."""
        for each in ENDING:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(each, signal.SIG_IGN)

    def _once(self, number: int) -> bool:
        if self.first is not None:
            return False
        self.first = number
        self._tell(number)
        return True
