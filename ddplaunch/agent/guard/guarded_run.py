"""One run as its guard knows it: what it is told, who ends, what must be ended; refuses to explain anything."""

from __future__ import annotations

import _thread
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ddplaunch.agent.end.handover import get_ready, speak_of_attempt
from ddplaunch.agent.guard.attempt import Attempt, process_table
from ddplaunch.agent.guard.capture import Capture
from ddplaunch.agent.guard.loop import Launcher, Loop, listen
from ddplaunch.agent.guard.output import Console, replace_json
from ddplaunch.agent.guard.sweep import Owner, Sweeps, left_by, unannounced
from ddplaunch.agent.protocol import Failure, receive, send
from ddplaunch.launch.settings import Settings
from ddplaunch.machine.processes.process_table import ProcessStat, own_processes, read_stat
from ddplaunch.machine.processes.stop_processes import send_signal

if TYPE_CHECKING:
    from ddplaunch.agent.guard.hang_watch import HangWatch
    from ddplaunch.explain.diagnosis import Diagnosis
    from ddplaunch.watch.recording import Recorder

RECORD_PATIENCE_S = 5.0
_LOOK_EVERY_S = 0.1  # where the kernel does not tell: as often as torchrun


class GuardedRun:
    """All that the guard knows of a run. Methods are called by the guard's loop, one at a time."""

    def __init__(self, channel: socket.socket, settings: Settings) -> None:
        """Watch the socket, the launcher, and the signals that reach this process."""
        self.settings, self.channel = settings, channel
        self.launcher = Launcher(os.getppid())
        self.host = os.uname().nodename
        self.started_s = time.time()
        self.loop = Loop()
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.console = Console(self.wake)
        self.console.hurried = self._hurried
        self.directory = settings.node_directory
        self.capture = Capture(self.loop, self.console, self.wake, self.directory, self.host)
        self.attempts: list[Attempt] = []
        self.sweeps = Sweeps()
        self.end: dict[str, Any] = {}  # torchrun's last words
        self.launcher_died = False
        self.signal: int | None = None
        self.interrupts = self.interrupts_told = 0
        self.killed = self.prepared = False
        self.speaking = 0
        self.recorder: Recorder | None = None
        self.stopped: Diagnosis | None = None  # why the guard ended the run itself
        self.stacks_file = ""
        self.hang: HangWatch | None = None
        if settings.hang_timeout_s is not None or settings.timeout_s is not None:
            from ddplaunch.agent.guard.hang_watch import HangWatch

            self.hang = HangWatch(self)
        self.loop.watch(channel.fileno(), self._told)
        self.loop.watch(self.wake, self._woken)
        self.launcher.watch(self.loop, self._launcher_ended)
        listen(self.loop, self._interrupted, self._looked_at_signals)

    def once(self) -> None:
        """Wait for the next thing to happen, and do what is due."""
        hang_s = self.hang.due_s() if self.hang else None
        due = [at_s for at_s in (self.capture.due_s(), self.sweeps.due_s(), hang_s) if at_s is not None]
        if self.attempts and self.attempts[-1].looked_at:
            due.append(time.monotonic() + _LOOK_EVERY_S)
            self.attempts[-1].look()
            if os.getppid() != self.launcher.pid:
                self._launcher_ended()
        self.loop.once(max(0.0, min(due) - time.monotonic()) if due else None)
        self.capture.tick()
        self.sweeps.tick()
        if self.hang:
            self.hang.tick()

    # What happens

    def _told(self) -> None:
        try:
            message, descriptors = receive(self.channel)
        except OSError:  # ECONNRESET comes before what was still said
            self._drain_messages()
            message, descriptors = None, []
        if message is None:
            self._launcher_gone()
        else:
            self._hear(message, descriptors)

    def _hear(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if told := getattr(self, f"_told_{message['op']}", None):
            told(message, descriptors)

    def _told_attempt(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if self.attempts:
            self._attempt_over(self.attempts[-1], message.get("failures_before", ()))
        attempt = Attempt(message["attempt"], message["ranks"])
        self.attempts.append(attempt)
        show = self.settings.show
        position = 0
        for rank in message["ranks"]:
            streams = len(rank["streams"])
            ends = descriptors[position : position + streams]
            self.capture.add_rank(rank, ends, show, attempt.number, len(descriptors))
            position += streams

    def _told_started(self, message: dict[str, Any], _: list[int]) -> None:
        attempt = next((one for one in self.attempts if one.number == message["attempt"]), None)
        if attempt is None:
            return
        for handle in attempt.started(message["pids"], self.launcher.seen):
            self.loop.watch(handle, lambda handle=handle: self._rank_ended(attempt, handle))  # type: ignore[misc]
        if self.directory:
            table = process_table(self.settings.run_id, self.host, self.launcher.seen, attempt)
            self.capture.in_background(lambda: replace_json(f"{self.directory}/processes.json", table))
            self._record_metrics(self.directory, table)

    def _record_metrics(self, directory: str, table: dict[str, Any]) -> None:
        if not self.settings.record_metrics:
            return
        from ddplaunch.watch.recording import Recorder  # for the few runs that ask for it

        self.recorder = self.recorder or Recorder()
        self.recorder.start(directory, table)

    def _told_launcher(self, _: dict[str, Any], descriptors: list[int]) -> None:
        self.capture.add_launcher(descriptors[0], verbose=self.settings.verbose)

    def _told_signal(self, message: dict[str, Any], _: list[int]) -> None:
        self.signal = message["signal"]
        self.interrupts_told += message["signal"] == signal.SIGINT
        self._order_to_end()

    def _told_closed(self, message: dict[str, Any], _: list[int]) -> None:
        self.capture.close_stream(message["rank"], message["stream"])

    def _told_end(self, message: dict[str, Any], _: list[int]) -> None:
        self.end = message
        self.loop.forget(self.channel.fileno())
        if self.attempts:
            self.sweeps.begin(self._find(self.attempts[-1], workers_only=message.get("state") == "succeeded"))

    def _rank_ended(self, attempt: Attempt, handle: int) -> None:
        self.loop.forget(handle)
        attempt.has_ended(handle)
        if not self.prepared:
            self.prepared = True
            _thread.start_new_thread(get_ready, ())

    def _woken(self) -> None:
        os.eventfd_read(self.wake)
        for rank, stream in self.capture.newly_gone():
            try:
                send(self.channel, {"op": "closed", "rank": rank, "stream": stream})
                os.kill(self.launcher.pid, signal.SIGCHLD)  # it looks at its socket then, and ignores it otherwise
            except OSError:
                return

    # torchrun's death, and signals

    def _drain_messages(self) -> None:
        """Hear what torchrun said last: its death and its words may be seen in the other order."""
        self.channel.setblocking(False)
        while not self.end:
            try:
                message, descriptors = receive(self.channel)
            except OSError:
                return
            if message is None:
                return
            self._hear(message, descriptors)

    def _launcher_ended(self) -> None:
        self._drain_messages()
        self._launcher_gone()

    def _launcher_gone(self) -> None:
        if self.end:
            return
        self.launcher_died = True
        self.loop.forget(self.channel.fileno())
        self._order_to_end()
        self.end = {"state": "signal" if self.signal else "error", "signal": self.signal, "failures": [], "error": ""}
        if self.attempts:
            self.sweeps.begin(self._find(self.attempts[-1]))

    def _order_to_end(self) -> None:
        if self.attempts:
            self.attempts[-1].ordered_to_end = True

    def _interrupted(self) -> None:
        self.interrupts += 1  # at once, as nobody loops while the end is being said

    def _looked_at_signals(self, numbers: bytes) -> None:
        if signal.SIGWINCH in numbers:
            self._resized()
        if self.interrupts > 1 and not self.killed and self.attempts and not self.end:
            self.killed = True
            self._order_to_end()
            self.sweeps.begin(self._find(self.attempts[-1]), at_once=True)

    def _resized(self) -> None:
        """Follow the window, and tell the ranks that are shown as their terminal would."""
        shown = set(self.capture.resize())
        for watched in self.attempts[-1].ranks.values() if self.attempts else ():
            if watched.rank in shown and watched.pid is not None and (seen := read_stat(watched.pid)):
                send_signal(seen, signal.SIGWINCH)

    def _hurried(self) -> bool:
        return self.launcher_died or self.interrupts > 1 or os.getppid() != self.launcher.pid

    # Ends

    def _find(self, attempt: Attempt, *, workers_only: bool = False) -> Callable[[], list[ProcessStat]]:
        def find() -> list[ProcessStat]:
            if not attempt.announced and attempt is self.attempts[-1]:  # else they would be those of a later attempt
                for one in unannounced(own_processes(), self.settings.run_id, self.launcher.seen):
                    attempt.owners.setdefault(one.pid, Owner(one.pid, one))
            return left_by(attempt.owners, workers_only=workers_only)

        return find

    def _attempt_over(self, attempt: Attempt, failures: Sequence[Failure]) -> None:
        self.loop.forget(self.channel.fileno())  # what comes next is about the attempt that has not begun here yet
        self.loop.once(0)  # ends that nobody has looked at yet
        if not self.end:
            self.loop.watch(self.channel.fileno(), self._told)
        attempt.ended_s = time.time()
        attempt.complete(failures, succeeded=False)
        self.capture.end_attempt()
        self.sweeps.begin(self._find(attempt))
        self.speaking += 1
        _thread.start_new_thread(self._speak_of, (attempt,))

    def _speak_of(self, attempt: Attempt) -> None:
        try:
            self.capture.settle(RECORD_PATIENCE_S)
            speak_of_attempt(self.settings, attempt.ended(self.directory), self.console)
        finally:
            self.speaking -= 1
