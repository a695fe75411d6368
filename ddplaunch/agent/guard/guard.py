"""The guard, a light process beside torchrun: it captures ranks' output, outlives torchrun, and ends leftover ranks.

As a process of its own, without site-packages or torch (``python -ISE``), it captures output even if torchrun's agent
is busy or dies. ``ddplaunch.agent.protocol`` describes the messages that it receives and sends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from ddplaunch.agent.guard.attempt import Attempt, processes_note
from ddplaunch.agent.guard.loop import Guarding, LauncherSignals, Loop
from ddplaunch.agent.guard.numbers_watch import NumbersWatch
from ddplaunch.agent.guard.output import Console, Writer
from ddplaunch.agent.guard.rank_streams import Streams
from ddplaunch.agent.guard.record_file import record_crash
from ddplaunch.agent.guard.sweep import Owner, Sweeps, grace_of_left, left_by, unannounced
from ddplaunch.agent.protocol import RankFailure, receive, send
from ddplaunch.agent.rank_site.sitecustomize import is_watched, starting_line
from ddplaunch.machine.processes.process_table import is_ending, own_processes, read_stat
from ddplaunch.machine.processes.stop_processes import send_signal
from ddplaunch.planning.settings import Settings
from ddplaunch.records.first_failure import steady_s
from ddplaunch.records.json_files import replace_file
from ddplaunch.values.variable_names import LAUNCH, SETTINGS

if TYPE_CHECKING:
    from ddplaunch.agent.end.ended import EndedAttempt, EndedRun
    from ddplaunch.explain.diagnosis import Diagnosis

_RECORD_PATIENCE_S, _SHOWN_PATIENCE_S, _SPEECH_PATIENCE_S = 5.0, 1.0, 10.0
_LONGER_S = 20.0  # longer than the grace until SIGKILL: a torchrun that waits in C++ runs no handler


def main(descriptor: int) -> None:
    """Guard the run whose plug-in holds the other end of the socket ``descriptor``; never returns."""
    status = 70  # EX_SOFTWARE: the plug-in starts another guard
    settings = Settings()
    try:
        settings = Settings.from_json(os.environ[SETTINGS])
        with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
            file.write("ddplaunch-guard")  # the name in process tables
        channel = socket.socket(fileno=descriptor)
        exit_status = GuardedRun(channel, settings).guard()
        status = 0
        with contextlib.suppress(OSError):  # torchrun is gone, and does not wait for the answer
            send(channel, {"op": "done", "exit_status": exit_status})
    except BaseException as error:
        record_crash(settings.node_directory, error)
    finally:
        os._exit(status)  # threads may block in a write forever


class GuardedRun:
    """The state of a guarded run. The guard's loop calls the methods, one at a time."""

    def __init__(self, channel: socket.socket, settings: Settings) -> None:
        """Watch the socket, torchrun, and the signals that torchrun passes on."""
        self._settings, self._channel = settings, channel
        # who made the socket, not the parent: torchrun may be gone by now
        self._launcher_pid = memoryview(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)).cast("i")[0]
        self._launcher = read_stat(self._launcher_pid)  # None if torchrun is gone already
        self._host = os.uname().nodename
        self._started_s = steady_s()
        self._loop = Loop()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._console = Console(self._wake)
        self._console.hurried = self._hurried
        self._streams = Streams(self._loop, self._console, self._wake, settings, self._host)
        self._attempts: list[Attempt] = []
        self._sweeps = Sweeps(self._loop.at)
        self._end: dict[str, Any] = {}  # torchrun's "end" message
        self._elsewhere: dict[str, Any] = {}  # how another node ended
        self._launcher_died = False
        self._stopped: Diagnosis | None = None  # why the run was ended at a time-out
        self._background = Writer(self._wake, 0)
        run = Guarding(settings, self._loop, self._console.say, self._aside, self._latest)
        if settings.hang_timeout_s is not None or settings.timeout_s is not None:
            from ddplaunch.agent.guard.hang_watch import HangWatch

            began_s = self._launcher.started_s if self._launcher else time.time()
            HangWatch(run, self._streams, self._host, began_s, self._stop)
        self._numbers = NumbersWatch(run)
        self._loop.watch(channel.fileno(), self._told)
        self._loop.watch(self._wake, self._woken)
        self._loop.watch_process(self._launcher_pid, self._launcher_ended)
        self._signals = LauncherSignals(run)
        if is_watched():
            from ddplaunch.watch.status_line import StatusLine

            self._console.passing = True
            StatusLine(run, self._console, starting_line)

    def guard(self) -> int:
        """Guard the run until it has ended and none of its processes is left; return its exit status."""
        while not self._end or self._sweeps.running:
            self._loop.once()
        self._loop.once(0)
        if self._attempts:
            last = self._attempts[-1]
            last.ended_s = steady_s()
            last.complete(self._end.get("failures") or (), succeeded=self._end.get("state") == "succeeded")
        self._streams.end_attempt()
        self._streams.settle(_RECORD_PATIENCE_S)
        self._console.settle(_SHOWN_PATIENCE_S)
        self._background.wait(time.monotonic() + _SPEECH_PATIENCE_S)
        status = self._conclude(self._ended())
        self._console.drain()
        return status

    def _conclude(self, ended: EndedRun) -> int:
        """Write and show the outcome; return the exit status, which is the same if explaining fails."""
        try:
            from ddplaunch.agent.end.conclude import conclude

            return conclude(self._settings, ended, self._console.say, self._loop.once)
        except Exception as error:
            first = ended.first_failed()
            how = f"rank {first.rank} failed first" if first else ended.state
            self._console.say(f"ddplaunch: the run has ended ({how}); explaining it failed: {error!r}\n")
            return ended.exit_status(first)

    def _ended(self) -> EndedRun:
        from ddplaunch.agent.end.ended import EndedRun

        state = self._end.get("state", "error")
        if state == "signal" and self._attempts and self._attempts[-1].unasked:
            state = "failed"  # while ranks saved their state: what they send to torchrun, or an impatient user
        return EndedRun(
            host=self._host,
            started_s=self._started_s,
            ended_s=steady_s(),
            attempts=tuple(map(self._ended_attempt, self._attempts)),
            state=state,
            signal=self._end.get("signal") or self._signals.first,
            launcher_died=self._launcher_died,
            error=self._end.get("error") or "",
            failures=tuple(self._end.get("failures") or ()),
            left_over=tuple(sorted(self._sweeps.ended)),
            unrecorded=self._streams.unrecorded(),
            stopped=self._stopped if state != "succeeded" else None,
            told=self._numbers.told,
            elsewhere=self._elsewhere,
            announced=self._signals.announced,
        )

    def _ended_attempt(self, attempt: Attempt) -> EndedAttempt:
        return attempt.ended(self._settings, self._host, self._streams.unwritten())

    def _latest(self) -> Attempt | None:
        """Return the attempt whose ranks run; None before the first one and after the end of the run."""
        return self._attempts[-1] if self._attempts and not self._end else None

    def _aside(self, work: Callable[[], None], failed: str) -> None:
        """Do ``work`` in the background thread, after all earlier work; say ``failed`` if it raises."""

        def safely() -> None:
            try:
                work()
            except Exception as error:  # nothing that is done there may end the run
                self._console.say(f"ddplaunch: {failed}: {error!r}\n")
            os.eventfd_write(self._wake, 1)

        self._background.put(safely)

    # Messages from torchrun's plug-in

    def _told(self) -> None:
        try:
            message, descriptors = receive(self._channel)
        except OSError:
            message = None
        if message is None:
            self._launcher_gone()
        else:
            self._hear(message, descriptors)

    def _hear(self, message: dict[str, Any], descriptors: list[int]) -> None:
        self._elsewhere.update(message.get("outcome", {}))
        match message["op"]:
            case "launcher":
                self._streams.add_launcher(descriptors[0])
            case "listen":
                self._signals.pipe = descriptors[0]
                self._loop.watch(descriptors[0], self._signalled)
            case "attempt":
                self._begin_attempt(message, descriptors)
            case "started":
                self._note_pids(message)
            case "closing":
                self._attempts[-1].close(message["pids"], message["signal"])
            case "failed":
                self._attempt_over(message["failures"])
            case "end":
                self._signalled()  # a signal that came before
                self._end = message  # another node may still report its end
                if self._attempts:
                    self._sweep(self._attempts[-1], workers_only=message.get("state") == "succeeded")

    def _begin_attempt(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if self._attempts:
            self._attempt_over(())
        attempt = Attempt(message["attempt"], message["ranks"])
        self._attempts.append(attempt)
        ends = iter(descriptors)
        for rank in message["ranks"]:
            self._streams.add_rank(rank, list(islice(ends, len(rank["streams"]))), attempt.number)
        self._streams.without = message.get("without")

    def _note_pids(self, message: dict[str, Any]) -> None:
        attempt = self._attempts[-1]
        for handle in attempt.started(message["pids"], self._launcher):
            self._loop.watch(handle, lambda handle=handle: self._rank_ended(attempt, handle))  # type: ignore[misc]
        self._resize()
        self._numbers.begin(attempt.number, attempt.ranks)
        directory = self._settings.node_directory
        if self._settings.stacks:
            self._streams.timed_out = lambda: self._aside(
                lambda: _look_around(attempt, directory), "ranks could not be looked at"
            )
        if directory:
            note = processes_note(self._settings.run_id, self._host, self._launcher, attempt)
            self._streams.in_background(lambda: _write_note(f"{directory}/processes.json", note))

    # Ends

    def _rank_ended(self, attempt: Attempt, handle: int) -> None:
        self._loop.forget(handle)
        if self._launcher is None or is_ending(self._launcher):  # its death signals the ranks before we see it
            self._order_to_end()
        attempt.has_ended(handle)
        self._aside(_get_ready, "the end could not be prepared")

    def _attempt_over(self, failures: Sequence[RankFailure]) -> None:
        attempt = self._attempts[-1]
        if attempt.ended_s:
            return
        self._loop.forget(self._channel.fileno())  # the next message is about the new attempt, which has not begun here
        self._loop.once(0)  # ends of ranks that are not handled yet
        if not self._end:
            self._loop.watch(self._channel.fileno(), self._told)
        attempt.ended_s = steady_s()
        attempt.complete(failures, succeeded=False)
        self._streams.end_attempt()
        self._sweep(attempt)
        self._aside(lambda: self._judge(attempt), f"attempt {attempt.number} has ended; explaining it failed")

    def _judge(self, attempt: Attempt) -> None:
        """Explain an attempt that has ended, and answer whether a restart cannot help."""
        final = False
        try:
            self._streams.settle(_RECORD_PATIENCE_S)
            from ddplaunch.agent.end.conclude import attempt_ended

            text, final = attempt_ended(self._settings, self._ended_attempt(attempt))
            self._console.say(text)
        finally:
            with contextlib.suppress(OSError):  # torchrun is gone
                send(self._channel, {"op": "verdict", "attempt": attempt.number, "final": final})

    def _launcher_ended(self) -> None:
        """Receive torchrun's last messages: its death may be noticed before the last of them is read."""
        self._signalled()
        self._channel.setblocking(False)
        while not self._end:
            self._told()

    def _launcher_gone(self) -> None:
        self._loop.forget(self._channel.fileno())
        if self._end:
            return
        self._launcher_died = True
        self._order_to_end()
        self._end = {"state": "signal" if self._signals.first else "error", "signal": self._signals.first}
        if self._attempts:
            attempt = self._attempts[-1]
            if not attempt.owners:
                for one in unannounced(own_processes(), os.environ.get(LAUNCH, ""), self._launcher):
                    attempt.owners[one.pid] = Owner(one.pid, one)
            self._sweep(attempt)

    def _stop(self, diagnosis: Diagnosis) -> None:
        """End the run by SIGTERM to torchrun, as a person would: ranks may save, and are killed after the grace."""
        if self._launcher and not self._end:
            self._stopped = diagnosis
            self._loop.at(time.monotonic() + self._settings.grace_s + _LONGER_S, self._kill_launcher)
            send_signal(self._launcher, signal.SIGTERM)

    def _kill_launcher(self) -> None:
        if self._launcher and not self._end:
            send_signal(self._launcher, signal.SIGKILL)

    def _order_to_end(self) -> None:
        if self._attempts:
            self._attempts[-1].ordered_to_end = True

    def _sweep(self, attempt: Attempt, *, workers_only: bool = False, at_once: bool = False) -> None:
        """End the processes left by ``attempt``."""
        self._sweeps.begin(
            lambda: left_by(attempt.owners, workers_only=workers_only),
            None if at_once else grace_of_left(attempt.owners, self._settings.grace_s),
        )

    # Console and signals

    def _woken(self) -> None:
        os.eventfd_read(self._wake)
        self._streams.resume()

    def _signalled(self) -> None:
        """Handle a signal that torchrun's process got."""
        self._signals.read()
        self._resize()
        if self._end or not self._attempts:
            return
        if self._signals.first:
            self._order_to_end()
            if self._stopped is None:  # a person or a scheduler sent it
                self._signals.tell_waiting(self._signals.first)
        if self._signals.interrupts > 1:
            self._sweep(self._attempts[-1], at_once=True)

    def _resize(self) -> None:
        """Give ranks' terminals a new window size, and send the ranks SIGWINCH, as a terminal would.

        A rank may run, and its window change, before torchrun has told which process it is.
        """
        if not self._signals.resized or not self._attempts or not self._attempts[-1].owners:
            return
        self._signals.resized = False
        shown = set(self._streams.resize())
        for one in self._attempts[-1].ranks.values():
            if one.rank in shown and one.pid is not None and (seen := read_stat(one.pid)):
                send_signal(seen, signal.SIGWINCH)

    def _hurried(self) -> bool:
        self._signals.read()  # the loop does not run while the end is being shown
        return self._signals.interrupts > 1 or os.getppid() != self._launcher_pid


def _write_note(path: str, text: str) -> None:
    with contextlib.suppress(OSError):
        replace_file(path, text)


def _get_ready() -> None:
    """Import the explaining code while torchrun still notices the ranks' end; importing earlier would treble memory."""
    import ddplaunch.agent.end.conclude  # noqa: F401


def _look_around(attempt: Attempt, node_directory: str | None) -> None:
    """Record ranks' stacks when a collective has timed out.

    Time is short, but importing the code takes 80 ms: less than a rank needs to end and torchrun to notice it.
    """
    from ddplaunch.agent.guard.hang_report import look_around

    look_around(attempt, node_directory)
