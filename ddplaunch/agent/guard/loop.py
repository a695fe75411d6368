"""The guard's event loop, and its handling of torchrun's signals: Ctrl-C, a resized window, SIGUSR1.

The guard leads its own session, so that killing torchrun's process group spares it; a terminal's signals therefore do
not reach it. Instead, torchrun's process writes each signal's number into a pipe, from C (``signal.set_wakeup_fd``),
so the guard sees a Ctrl-C at once, even while torchrun waits in C++ and runs no Python.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ddplaunch.agent.protocol import ENDING, IGNORED, PASSED_ON
from ddplaunch.machine.processes.process_table import ProcessStat, catches
from ddplaunch.machine.processes.stop_processes import send_signal
from ddplaunch.planning.settings import Settings
from ddplaunch.records.first_failure import steady_s
from ddplaunch.values.words import count, signal_name

if TYPE_CHECKING:
    from ddplaunch.agent.guard.attempt import Attempt


class Loop:
    """Calls functions when descriptors are readable or a time has come. A call may forget any descriptor."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[], None]] = {}
        self._due: dict[Callable[[], None], float] = {}
        self._looks = 0

    def watch(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call ``call()`` whenever ``descriptor`` is readable, or its other side is gone."""
        if descriptor not in self._calls:
            self._epoll.register(descriptor, select.EPOLLIN)
        self._calls[descriptor] = call

    def forget(self, descriptor: int) -> None:
        """Stop watching ``descriptor``; call this before closing it."""
        if self._calls.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        """Make ``call`` once, at ``at_s`` (time.monotonic()); this replaces an earlier time for the same ``call``.

        From another thread, wake the loop afterwards.
        """
        self._due[call] = at_s

    def once(self, timeout_s: float = math.inf) -> None:
        """Wait for descriptors and due times, at most ``timeout_s``, and make the calls of those that are ready."""
        wait_s = min([timeout_s, *(max(0.0, at_s - time.monotonic()) for at_s in list(self._due.values()))])
        found = self._epoll.poll(None if wait_s == math.inf else wait_s)
        self._looks = look = self._looks + 1
        for descriptor, _ in found:
            if look == self._looks and (ready := self._calls.get(descriptor)):  # a call may look itself, and handle all
                ready()
        for call, at_s in list(self._due.items()):
            if time.monotonic() >= at_s and call in self._due:
                del self._due[call]
                call()

    def watch_process(self, pid: int, ended: Callable[[], None]) -> None:
        """Call ``ended()`` once when the process ``pid`` ends; do nothing if it is already gone.

        The socket does not show torchrun's end, because processes that torchrun forked may hold it open.
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


class Guarding(NamedTuple):
    """What the parts of a guarded run share.

    ``aside`` does work in the background, in order, and says the text if it raises. ``latest`` returns the attempt
    whose ranks run, None before the first one and after the end of the run.
    """

    settings: Settings
    loop: Loop
    say: Callable[[str], None]
    aside: Callable[[Callable[[], None], str], None]
    latest: Callable[[], Attempt | None]


_ALL_AT_ONCE_S = 0.3  # within which a batch system signals all processes of a job
_TOLD_ALSO_S = 2.0


class LauncherSignals:
    """Handles the signals that torchrun's process gets, for the ranks that run."""

    def __init__(self, run: Guarding) -> None:
        """Unblock the signals that were blocked when the guard started; it ignores most of them."""
        self._run = run
        self._told = False
        self.pipe = -1  # where signal numbers are read; it does not block
        self.interrupts = 0
        self.first: int | None = None  # the signal that told torchrun to end
        self.resized = False
        self._own: dict[int, float] = {}  # signal number to when it reached this process
        self._waiting: set[int] = set()  # signals to pass on
        self.announced: tuple[str, float] | None = None  # the first of PASSED_ON that was for the ranks, and when
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: self._own.__setitem__(number, time.monotonic()))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def read(self) -> None:
        """Note the signals since the last call. May be called outside the loop too."""
        numbers = b""
        try:
            while more := os.read(self.pipe, 512):
                numbers += more
        except OSError:  # nothing left, or no pipe
            pass
        self.interrupts += numbers.count(signal.SIGINT)
        self.first = self.first or next((number for number in numbers if number in ENDING), None)
        self.resized = self.resized or signal.SIGWINCH in numbers
        for number in PASSED_ON:
            if number in numbers and number not in self._waiting:
                self._waiting.add(number)
                self._run.loop.at(time.monotonic() + _ALL_AT_ONCE_S, self._pass_on)
                self.announced = self.announced or (signal_name(number), steady_s())

    def tell_waiting(self, number: int) -> None:
        """After signal ``number`` told torchrun to end, say once that ranks are given time to save."""
        ranks = self._ranks()
        if self._told or self._run.settings.silent or not ranks:
            return
        self._told = True
        kills = f"; Ctrl-C again kills {'it' if len(ranks) == 1 else 'them'}" if number == signal.SIGINT else ""
        why = "" if kills else f"{signal_name(number)}: "
        waits = f"waiting up to {self._run.settings.grace_s:g} s for {count(len(ranks), 'rank')} to save"
        self._run.say(f"ddplaunch: {why}{waits}{kills}\n")

    def _ranks(self) -> list[ProcessStat]:
        attempt = self._run.latest()
        return [] if attempt is None else attempt.running()

    def _pass_on(self) -> None:
        """Send the waiting signals to the ranks that catch them; they would kill the others, which is not intended."""
        while self._waiting and self._run.latest() is not None:
            number = self._waiting.pop()
            if time.monotonic() - self._own.get(number, -_TOLD_ALSO_S) < _TOLD_ALSO_S:
                continue  # all processes got it, ranks too
            name = signal_name(number)
            catching = [one for one in self._ranks() if catches(one.pid, number)]
            told = [one for one in catching if send_signal(one, number) == "sent"]
            if told:
                self._run.say(f"ddplaunch: {name} passed on to {count(len(told), 'rank')}\n")
            else:
                self.announced = None
                self._run.say(f"ddplaunch: {name} received, but no rank catches it: ignored\n")
