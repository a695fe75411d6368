"""The guard beside torchrun: captures ranks, outlives torchrun, leaves nothing running; refuses to explain anything.

A light interpreter of its own (no site, no torch), so that neither a busy agent nor its death touches what ranks print.
``ddplaunch.agent.protocol`` says what it is told and answers, ``aftermath`` what is said at the end.
"""

from __future__ import annotations

import _thread
import json
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from ddplaunch.agent.capture import Capture
from ddplaunch.agent.console import Console
from ddplaunch.agent.files import replace_json
from ddplaunch.agent.handover import conclude_run, speak_of_attempt
from ddplaunch.agent.loop import Loop
from ddplaunch.agent.processes import Process, boot_id, own_processes, process, send_signal
from ddplaunch.agent.protocol import SETTINGS, Settings, receive, send
from ddplaunch.agent.sweep import Owner, Sweep, left_by, unannounced
from ddplaunch.agent.watch import Attempt

if TYPE_CHECKING:
    from ddplaunch.agent.ended import EndedRun

_SWEEP_EVERY_S = 0.05
_SWEEP_GIVES_UP_S = 4.0  # a process in an uninterruptible wait cannot be killed
_RECORD_PATIENCE_S = 5.0
_SPEECH_PATIENCE_S = 10.0
_IGNORED = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGTTOU", "SIGTTIN", "SIGPIPE", "SIGUSR1", "SIGUSR2")


class Guard:
    """All that the guard knows. Methods are called by its loop, one at a time."""

    def __init__(self, channel: socket.socket, settings: Settings) -> None:
        """Watch the socket, the launcher and the window; signals come by ``listen_to_signals``."""
        self.settings, self.channel = settings, channel
        self.launcher = os.getppid()
        self.launcher_seen = process(self.launcher)
        self.host = os.uname().nodename
        self.started_s = time.time()
        self.loop = Loop()
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.console = Console(self.wake)
        self.console.hurried = self._hurried
        directory = settings.get("directory")
        self.directory = f"{directory}/node-{settings.get('node', 0)}" if directory else None
        self.capture = Capture(self.loop, self.console, self.wake, self.directory, self.host)
        self.attempts: list[Attempt] = []
        self.sweeps: list[tuple[Sweep, float]] = []
        self.left_over: set[int] = set()
        self.end: dict[str, Any] = {}  # torchrun's last words
        self.launcher_died = False
        self.signal: int | None = None
        self.interrupts = self.interrupts_told = 0
        self.killed = False
        self.speaking = 0
        self.loop.watch(channel.fileno(), self._told)
        self.loop.watch(self.wake, self._woken)
        self._watch_launcher()

    def run(self) -> int:
        """Guard until the run has ended; return the exit status that it deserves."""
        while not self.end or self.sweeps:
            now_s = time.monotonic()
            due = [at_s for at_s in (self.capture.due_s(),) if at_s is not None]
            if self.sweeps:
                due.append(now_s + _SWEEP_EVERY_S)
            self.loop.once(max(0.0, min(due) - now_s) if due else None)
            self.capture.tick()
            self._sweep()
        return self._finish()

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
            self._attempt_over(self.attempts[-1])
        attempt = Attempt(message["attempt"], message["ranks"])
        self.attempts.append(attempt)
        show = self.settings.get("show") or "0"
        position = 0
        for rank in message["ranks"]:
            streams = len(rank["streams"])
            ends = descriptors[position : position + streams]
            self.capture.add_rank(rank, ends, show, attempt.number, len(descriptors))
            position += streams

    def _told_started(self, message: dict[str, Any], _: list[int]) -> None:
        attempt = self.attempts[-1]
        for handle in attempt.started(message["pids"]):
            self.loop.watch(handle, lambda handle=handle: self._rank_ended(attempt, handle))  # type: ignore[misc]
        if self.directory:
            path, value = f"{self.directory}/processes.json", self._processes(attempt)
            self.capture.in_background(lambda: replace_json(path, value))

    def _processes(self, attempt: Attempt) -> dict[str, Any]:
        own = process(os.getpid())
        return {
            "schema": 1,
            "run_id": self.settings.get("run_id"),
            "host": self.host,
            "boot_id": boot_id(),
            "launcher": {"pid": self.launcher, "start_time": self.launcher_seen and self.launcher_seen.start},
            "guard": {"pid": os.getpid(), "start_time": own and own.start},
            "attempt": attempt.number,
            "ranks": [
                {"rank": one.rank, "local_rank": one.local_rank, "pid": one.pid, "start_time": one.start_time}
                for one in attempt.ranks.values()
            ],
        }

    def _told_launcher(self, _: dict[str, Any], descriptors: list[int]) -> None:
        self.capture.add_launcher(descriptors[0], verbose=bool(self.settings.get("verbose")))

    def _told_signal(self, message: dict[str, Any], _: list[int]) -> None:
        self.signal = message["signal"]
        self.interrupts_told += message["signal"] == signal.SIGINT
        self._order_to_end()

    def _told_closed(self, message: dict[str, Any], _: list[int]) -> None:
        self.capture.close_stream(message["rank"], message["stream"])

    def _told_end(self, message: dict[str, Any], _: list[int]) -> None:
        self.end = message
        self.loop.forget(self.channel.fileno())
        workers_only = message.get("state") == "succeeded"
        if self.attempts:
            self._begin_sweep(self.attempts[-1].owners, workers_only=workers_only)

    def _rank_ended(self, attempt: Attempt, handle: int) -> None:
        self.loop.forget(handle)
        attempt.has_ended(handle)

    def _woken(self) -> None:
        os.eventfd_read(self.wake)
        for rank, stream in self.capture.newly_gone():
            try:
                send(self.channel, {"op": "closed", "rank": rank, "stream": stream})
                os.kill(self.launcher, signal.SIGCHLD)  # it looks at its socket then, and ignores it otherwise
            except OSError:
                return

    # torchrun's death, and signals

    def _watch_launcher(self) -> None:
        try:
            handle = os.pidfd_open(self.launcher)
        except OSError:
            return  # gone: the socket says so too

        def gone() -> None:
            self.loop.forget(handle)
            self._drain_messages()
            self._launcher_gone()

        self.loop.watch(handle, gone)

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

    def _launcher_gone(self) -> None:
        if self.end:
            return
        self.launcher_died = True
        self.loop.forget(self.channel.fileno())
        self._order_to_end()
        self.end = {"state": "signal" if self.signal else "error", "signal": self.signal, "failures": [], "error": ""}
        self._begin_sweep(self.attempts[-1].owners if self.attempts else {}, unannounced_too=True)

    def _order_to_end(self) -> None:
        if self.attempts:
            self.attempts[-1].ordered_to_end = True

    def listen_to_signals(self) -> None:
        """Take SIGINT and SIGWINCH, ignore what would end the guard before its work is done."""
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self.loop.watch(reading, lambda: self._signalled(reading))
        for name in _IGNORED:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        signal.signal(signal.SIGINT, self._interrupted)
        signal.signal(signal.SIGWINCH, lambda *_: None)  # the byte in the pipe says enough
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _interrupted(self, *_: object) -> None:
        self.interrupts += 1  # counted here, as nobody loops while the end is being said

    def _signalled(self, reading: int) -> None:
        numbers = os.read(reading, 512)
        if signal.SIGWINCH in numbers:
            self._resized()
        if self.interrupts > 1 and not self.killed and self.attempts and not self.end:
            self.killed = True
            self._order_to_end()
            self._begin_sweep(self.attempts[-1].owners, unannounced_too=True, at_once=True)

    def _resized(self) -> None:
        """Follow the window, and tell the ranks that are shown as their terminal would."""
        shown = set(self.capture.resize())
        for watched in self.attempts[-1].ranks.values() if self.attempts else ():
            if watched.rank in shown and watched.pid is not None and (seen := process(watched.pid)):
                send_signal(seen, signal.SIGWINCH)

    def _hurried(self) -> bool:
        return self.launcher_died or self.interrupts > 1 or os.getppid() != self.launcher

    # Ends

    def _begin_sweep(
        self,
        owners: dict[int, Owner],
        *,
        workers_only: bool = False,
        unannounced_too: bool = False,
        at_once: bool = False,
    ) -> None:
        def find() -> list[Process]:
            found = left_by(owners, workers_only=workers_only)
            return found + self._unannounced(owners) if unannounced_too else found

        now_s = time.monotonic()
        self.sweeps.append((Sweep(find, now_s, at_once=at_once), now_s + _SWEEP_GIVES_UP_S))
        self._sweep()

    def _unannounced(self, owners: dict[int, Owner]) -> list[Process]:
        run_id = self.settings.get("run_id")
        if owners or not run_id or self.launcher_seen is None:
            return []
        return unannounced(own_processes(), run_id, self.launcher, self.launcher_seen.start)

    def _sweep(self) -> None:
        now_s = time.monotonic()
        for sweep, until_s in list(self.sweeps):
            if sweep.tick(now_s) or now_s > until_s:
                self.sweeps.remove((sweep, until_s))
                self.left_over |= sweep.ended

    def _attempt_over(self, attempt: Attempt) -> None:
        self.loop.once(0)  # ends that nobody has looked at yet
        attempt.ended_s = time.time()
        attempt.complete((), succeeded=False)
        self.capture.end_attempt()
        self._begin_sweep(attempt.owners)
        self.speaking += 1
        _thread.start_new_thread(self._speak_of, (attempt,))

    def _speak_of(self, attempt: Attempt) -> None:
        try:
            self.capture.settle(_RECORD_PATIENCE_S)
            speak_of_attempt(self.settings, attempt.ended(self.directory), self.console)
        finally:
            self.speaking -= 1

    def _finish(self) -> int:
        self.loop.once(0)
        if self.attempts:
            last = self.attempts[-1]
            last.ended_s = time.time()
            last.complete(self.end.get("failures") or (), succeeded=self.end.get("state") == "succeeded")
        self.capture.end_attempt()
        self.capture.settle(_RECORD_PATIENCE_S)
        until_s = time.monotonic() + _SPEECH_PATIENCE_S
        while self.speaking and time.monotonic() < until_s:
            time.sleep(0.005)
        status = conclude_run(self.settings, self._ended(), self.console)
        self.console.drain()
        return status

    def _ended(self) -> EndedRun:
        from ddplaunch.agent.ended import EndedRun

        return EndedRun(
            host=self.host,
            started_s=self.started_s,
            ended_s=time.time(),
            attempts=tuple(attempt.ended(self.directory) for attempt in self.attempts),
            state=self.end.get("state", "error"),
            signal=self.end.get("signal") or self.signal,
            interrupts=max(self.interrupts, self.interrupts_told),
            launcher_died=self.launcher_died,
            error=self.end.get("error") or "",
            failures=tuple(self.end.get("failures") or ()),
            left_over=tuple(sorted(self.left_over)),
            unrecorded=self.capture.unrecorded(),
        )


def main(descriptor: int) -> None:
    """Guard the run whose plug-in holds the other end of the socket ``descriptor``; never returns."""
    status = 70  # EX_SOFTWARE: the plug-in starts another guard
    try:
        settings: Settings = json.loads(os.environ.get(SETTINGS) or "{}")
        with open("/proc/self/comm", "w", encoding="ascii") as name:
            name.write("ddplaunch-guard")
        _allow_many_files()
        channel = socket.socket(fileno=descriptor)
        os.set_inheritable(descriptor, False)
        guard = Guard(channel, settings)
        guard.listen_to_signals()
        exit_status = guard.run()
        status = 0
        send(channel, {"op": "done", "exit_status": exit_status})
    except OSError:
        pass  # torchrun is gone: nobody waits for the answer
    finally:
        os._exit(status)  # threads may hang in a write for ever


def _allow_many_files() -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
