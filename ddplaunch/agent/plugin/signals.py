"""Handles signals to torchrun while the plug-in is loaded: the first one ends the run in order.

Before ranks run, a signal ends torchrun at once. A handler could not do that: while torchrun waits for other nodes in
the store's C++ code, for up to 15 minutes, Python runs no handlers. So a thread waits for signals until ranks start.

While ranks run, the first signal calls torchrun's own handler: it raises SignalException, and the agent passes the
signal on and waits for the ranks. A second signal would interrupt that and leave ranks behind, and Slurm sends SIGTERM
twice. So torchrun ignores it, and the guard, which counts Ctrl-C, decides.

Signals meant for ranks, and those of the terminal, do nothing to torchrun: the guard learns of every signal that has
a handler here (``Session.take_signals``), and passes them on.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from ddplaunch.agent.protocol import ENDING, PASSED_ON

#: Signals that only the guard acts on.
HEARD = (*PASSED_ON, signal.SIGWINCH)
_WAKE = signal.SIGURG  # ends the thread; not sent by others, and ignored by default


class Signals:
    """The handlers of this process."""

    def __init__(self) -> None:
        """Block the signals that end this process until ``before_ranks`` handles them."""
        self.first: int | None = None
        self._waiting: threading.Thread | None = None
        #: SIGHUP under nohup; torch would undo it. A shell's ``&`` ignores SIGINT too, but one that is sent is meant.
        self._ignored = frozenset(each for each in (signal.SIGHUP,) if signal.getsignal(each) is signal.SIG_IGN)
        self._wanted = {each for each in ENDING if each not in self._ignored} | {_WAKE}
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set while torch was imported
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._wanted) - {signal.SIGINT}

    def let_go(self) -> None:
        """Unblock the signals again."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def only_heard(self) -> None:
        """Leave the signals of ``HEARD`` to the guard, unless they have a handler or are ignored."""
        for each in HEARD:
            if signal.getsignal(each) is signal.SIG_DFL:
                signal.signal(each, lambda *_: None)
                signal.siginterrupt(each, False)

    def before_ranks(self, end: Callable[[int], None]) -> None:
        """Until ``ranks_start``, call ``end`` in a thread when a signal arrives; it does not return."""

        def wait() -> None:
            number = signal.sigwait(self._wanted)
            if number != _WAKE:
                end(number)

        self._waiting = threading.Thread(target=wait, daemon=True)
        self._waiting.start()

    def ranks_start(self) -> None:
        """Stop the thread and unblock: ranks inherit blocked signals, and torch is about to set its own handlers."""
        thread, self._waiting = self._waiting, None
        if thread is not None and thread.ident is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pthread_kill(thread.ident, _WAKE)
            thread.join()  # forever, if a signal came first: it is ending the process
            self.let_go()

    def ranks_run(self, theirs: Any) -> None:
        """Wrap ``theirs``, torch's handler, wherever torch has just set it: only the first signal reaches it.

        Do nothing if it is None: the handler of this torch is not known.
        """

        def handle(number: int, frame: FrameType | None) -> None:
            if self.first is None:
                self.first = number
                theirs(number, frame)

        for each in signal.valid_signals():
            if theirs is not None and signal.getsignal(each) is theirs:
                signal.signal(each, signal.SIG_IGN if each in self._ignored else handle)

    def ending(self) -> None:
        """Ignore signals that would interrupt the end of the run."""

        for each in ENDING:
            with contextlib.suppress(OSError, ValueError):  # ValueError: in the thread, where they are blocked anyway
                signal.signal(each, signal.SIG_IGN if each in self._ignored else lambda *_: None)
