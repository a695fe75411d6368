"""What signals do to torchrun while the plug-in is there: the first one ends the run in order.

Before ranks run, a signal ends torchrun at once. A handler could not do that: while torchrun waits for other nodes in
the store's C++ code, for up to 15 minutes, Python runs none. So a thread waits for signals until ranks are started.

When they run, the first one does what torchrun's own handler does: it raises SignalException, upon which the agent
passes the signal on and waits for the ranks. A second one during that would break it off and leave ranks behind, and
Slurm sends SIGTERM twice: it is left to the guard, which counts Ctrl-C.

Signals that mean something to ranks, and those of the terminal, do nothing to torchrun: the guard hears of every signal
that has a handler here (``Session.take_signals``), and passes them on.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from ddplaunch.agent.guard.loop import PASSED_ON

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
#: What the guard alone does something about.
HEARD = (*PASSED_ON, signal.SIGWINCH)
_WAKE = signal.SIGURG  # ends the thread; nobody sends it, and its default is to do nothing


class Signals:
    """The handlers of this process."""

    def __init__(self) -> None:
        """Hold back what ends this process until ``before_ranks`` says how it ends."""
        self.first: int | None = None
        self._tell: Callable[[int], None] = lambda _: None
        self._waiting: threading.Thread | None = None
        #: nohup's, which torch would take back. A shell's ``&`` ignores SIGINT too, but whoever sends that means it.
        self._ignored = frozenset(each for each in (signal.SIGHUP,) if signal.getsignal(each) is signal.SIG_IGN)
        self._wanted = {each for each in ENDING if each not in self._ignored} | {_WAKE}
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # so that torch's import ended quietly
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._wanted) - {signal.SIGINT}

    def let_go(self) -> None:
        """Hold nothing back any more."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def only_heard(self) -> None:
        """Let the guard alone do something about the signals of ``HEARD``, unless they were ignored."""
        for each in HEARD:
            if signal.getsignal(each) is signal.SIG_DFL:
                signal.signal(each, lambda *_: None)
                signal.siginterrupt(each, False)

    def before_ranks(self, tell: Callable[[int], None], end: Callable[[int], None]) -> None:
        """Until ``ranks_start``, let a signal call ``end``, which does not return, in a thread of its own.

        ``tell`` is called with the number of the first signal that ends this process, here and later.
        """
        self._tell = tell

        def wait() -> None:
            number = signal.sigwait(self._wanted)
            if number != _WAKE and self._once(number):
                end(number)

        self._waiting = threading.Thread(target=wait, daemon=True)
        self._waiting.start()

    def ranks_start(self) -> None:
        """Stop waiting: ranks inherit what is blocked, and torch is about to set handlers of its own."""
        thread, self._waiting = self._waiting, None
        if thread is not None and thread.ident is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pthread_kill(thread.ident, _WAKE)
            thread.join()  # for ever, if a signal was quicker: it is ending the process
            self.let_go()

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
            with contextlib.suppress(OSError, ValueError):  # ValueError: in the thread, where they are blocked anyway
                signal.signal(each, signal.SIG_IGN if each in self._ignored else lambda *_: None)

    def _once(self, number: int) -> bool:
        if self.first is not None:
            return False
        self.first = number
        self._tell(number)
        return True
