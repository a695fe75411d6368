"""The plug-in's side of the guard: starts it, passes it the ranks' pipes, and starts another if it dies.

The guard is ``python -ISE -c … FD``: no site-packages, no torch, starts in about 12 ms. It gets the settings in the
environment, its end of the socket as descriptor FD, the launcher's own stdout and stderr, and /dev/null as stdin. It
runs in its own session, so that killing torchrun's process group does not kill it, and starts with the signals blocked
that a scheduler sends to all processes, so that it lives until everything is reported.

All messages to the guard are kept, with their descriptors, so that a new guard can get them again and every pipe of a
rank always has a reader. When no guard can be started any more, this process reads them.

If ranks cannot have pipes, they write to the console; the guard then sees none of their output, but still how they
end. Without a guard too, torchrun goes on as it would alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import ddplaunch
from ddplaunch.agent.open_files import require
from ddplaunch.agent.plugin.outlets import Kind, Outlet, close, drain, open_outlets
from ddplaunch.agent.protocol import IGNORED, PASSED_ON, Rank, RankFailure, receive, send
from ddplaunch.machine.processes.process_table import read_stat
from ddplaunch.planning.settings import Settings
from ddplaunch.records.own.own_files import open_place
from ddplaunch.values.frozen import dataclass

#: Signals that are blocked when the guard starts; it unblocks those that it handles.
_BLOCKED = (*IGNORED, *PASSED_ON)
_CODE = "import sys; sys.path.append({root!r}); from ddplaunch.agent.guard.guard import main; main(int(sys.argv[1]))"


@dataclass(frozen=True)
class Guard:
    """A started guard: its process id, and this side of the socket."""

    pid: int
    channel: socket.socket


def guard_argv(descriptor: int) -> list[str]:
    """Return the guard's command line. The package's folder comes last in ``sys.path``, so it cannot shadow modules."""
    root = str(Path(ddplaunch.__file__).resolve().parents[1])
    cache = ["-B"] if sys.dont_write_bytecode else []
    return [sys.executable, "-ISE", *cache, "-c", _CODE.format(root=root), str(descriptor)]


_NEW_GUARDS = 3  # per run: a guard that keeps dying at once is of no use
_JUDGES_S = 60.0  # the guard reads and explains the ranks' output, on a machine that may be busy
#: Descriptors for a guard (the original stderr, its socket, two pipes), and for a rank beside its outlets: torchrun
#: opens both outlets again, and has a pidfd and a connection to its store.
_OF_GUARD, _OF_RANK = 8, 4


class Session:
    """One run's conversation with its guard. ``without`` is why ranks write to the console, None if they do not."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], shown: tuple[Kind, ...]) -> None:
        self.settings = settings
        self.attempt = -1
        self._shown = shown
        self._environ = dict(environ)
        self._spare = _NEW_GUARDS
        self._over = False  # the guard has reported the end
        self._said: dict[str, tuple[dict[str, Any], list[int]]] = {}  # by op: messages and descriptors for a new guard
        self._outlets: list[Outlet] = []
        self.pids: tuple[int, ...] = ()  # of the ranks of the attempt
        self.without: str | None = None
        self.stderr = 2  # the console, also while torchrun writes to the guard
        self._guard: Guard | None = None

    def start(self) -> None:
        """Start the guard. Raises OSError if it cannot start."""
        require(_OF_GUARD)
        self.stderr = os.dup(2)
        self._guard = self._start_guard()

    def _start_guard(self) -> Guard:
        """Start a guard whose stderr is the console's. Raises OSError if it cannot start."""
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            os.set_inheritable(its.fileno(), True)
            pid = os.posix_spawn(
                sys.executable,
                guard_argv(its.fileno()),
                self._environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, self.stderr, 2),
                ],
                setsid=True,
                setsigmask=_BLOCKED,
                setsigdef=_BLOCKED,
            )
        except BaseException:
            mine.close()
            raise
        finally:
            its.close()
        return Guard(pid, mine)

    def part(self) -> None:
        """End the guard, if there is one: a closed socket alone would look to it like the death of torchrun."""
        guard, self._guard = self._guard, None
        if guard is not None:
            _part_with(guard)

    def give_up(self, exception: Exception) -> None:
        """Let ranks and torchrun write to the console from now on, and say why."""
        self.without = getattr(exception, "strerror", None) or f"{type(exception).__name__}: {exception}"
        self.give_stderr_back()
        with contextlib.suppress(OSError):
            os.write(2, f"ddplaunch: output is not recorded, ranks write to the console: {self.without}\n".encode())

    @property
    def alive(self) -> bool:
        """Whether there is a guard to talk to."""
        return self._guard is not None

    def watch(self) -> None:
        """Notice by SIGCHLD that the guard has died; the earlier handler still runs first."""
        before = signal.getsignal(signal.SIGCHLD)

        def died(number: int, frame: FrameType | None) -> None:
            if callable(before):
                before(number, frame)
            self._look_after_guard()

        signal.signal(signal.SIGCHLD, died)
        signal.siginterrupt(signal.SIGCHLD, False)  # a rank's end must not interrupt a call into the store

    def take_signals(self) -> None:
        """Pass each signal's number to the guard from C code, as Python may be waiting in a store's C++.

        Raises OSError, and ValueError outside the main thread.
        """
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._say({"op": "listen"}, [reading])
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def take_stderr(self) -> None:
        """Send torchrun's own messages, those from C++ included, to the guard, not the console. Raises OSError."""
        (pipe,) = open_outlets(("pipe",))
        os.dup2(pipe.write, 2, inheritable=True)
        os.close(pipe.write)
        self._say({"op": "launcher"}, [pipe.read])

    def give_stderr_back(self) -> None:
        """Let torchrun write to the console again."""
        if self.stderr != 2:
            with contextlib.suppress(OSError):
                os.dup2(self.stderr, 2, inheritable=True)

    def begin(self, ranks: Sequence[tuple[int, int]]) -> list[list[int]]:
        """Announce an attempt of these (rank, local rank); return each rank's descriptors, none for the console."""
        opened: list[Outlet] = []
        wanted: list[tuple[Kind, ...]] = [
            self._shown if self.settings.shows_alone(rank) else ("pipe", "pipe") for rank, _ in ranks
        ]
        try:
            if self.without is None:
                require(2 * sum(map(len, wanted)) + _OF_RANK * len(ranks))
                opened = open_outlets([kind for each in wanted for kind in each])
        except OSError as exception:
            self.give_up(exception)
        if self.without is not None:
            wanted = [() for _ in ranks]
        before, self._outlets = self._outlets, opened
        self.attempt += 1
        for op in ("started", "closing", "failed"):
            self._said.pop(op, None)
        told = [
            Rank(rank=rank, local_rank=local_rank, streams=["out", "err"][: len(each)])
            for (rank, local_rank), each in zip(ranks, wanted, strict=True)
        ]
        message = {"op": "attempt", "attempt": self.attempt, "ranks": told, "without": self.without}
        self._say(message, [outlet.read for outlet in opened])
        close(before)  # only now: until the guard knows of the new attempt it may still read the old one
        left = iter(opened)
        return [[next(left).write for _ in each] for each in wanted]

    def started(self, pids: Mapping[int, int]) -> None:
        """Tell the guard the pid of each rank of the attempt."""
        self.pids = tuple(pids.values())
        self._say({"op": "started", "pids": {str(rank): pid for rank, pid in pids.items()}})

    def closing(self, told: int | None) -> None:
        """Tell the guard which ranks torchrun is about to end, those that still run; ``told`` is a signal to do so."""
        self._say(
            {
                "op": "closing",
                "pids": [pid for pid in self.pids if (seen := read_stat(pid)) and seen.alive],
                "signal": told,
            }
        )

    def is_final(self, failures: Sequence[RankFailure]) -> bool:
        """Tell how ranks of the attempt failed; return whether a restart cannot help, False if that is not known."""
        self._say({"op": "failed", "failures": failures})
        return bool(self._answer({"op": "verdict", "attempt": self.attempt}, _JUDGES_S).get("final"))

    def elsewhere(self, outcome: Mapping[str, Any]) -> None:
        """Tell the guard how another node failed, which ends this one; do nothing if the end was reported already."""
        if not self._over:
            self._say({"op": "elsewhere", "outcome": outcome})

    def end(self, message: dict[str, Any]) -> int | None:
        """Send the end, wait until the guard has reported it, and return the exit status, None if no guard is left.

        Waits as long as the console blocks.
        """
        self._say({"op": "end", **message})
        answer = self._answer({"op": "done"})
        self._over = bool(answer)  # the guard ends then, and must not be replaced
        return int(answer["exit_status"]) if answer else None

    def _answer(self, wanted: dict[str, Any], within_s: float | None = None) -> dict[str, Any]:
        """Wait for a message of the guard with these items; return {} if none is left, or none comes ``within_s``.

        A guard that dies meanwhile is replaced: the new one is told the same, and answers in its place.
        """
        while (guard := self._guard) is not None:
            answers = select.poll()  # select(2) takes no descriptor from 1024 on
            with contextlib.suppress(OSError, ValueError):
                answers.register(guard.channel, select.POLLIN)
                while answers.poll(None if within_s is None else within_s * 1000):
                    message, _ = receive(guard.channel)
                    if message is None:
                        break
                    if wanted.items() <= message.items():
                        return message
                else:
                    return {}
            self._replace_guard(guard)
        return {}

    def directory(self) -> Path | None:
        """Create and return the directory of this attempt on this node; None if that fails."""
        if self.settings.node_directory is None:
            return None
        path = Path(self.settings.node_directory, f"attempt-{self.attempt}")
        try:
            os.close(open_place(path, create=True))
        except OSError:
            return None
        return path

    def _say(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        self._said[message["op"]] = (message, list(descriptors))
        if guard := self._guard:
            try:
                send(guard.channel, message, descriptors)
            except OSError:
                self._replace_guard(guard)

    def _look_after_guard(self) -> None:
        guard = self._guard
        if guard is None or "end" in self._said:  # it may end now; ``end`` notices if it died early
            return
        with contextlib.suppress(OSError):
            if os.waitid(os.P_PID, guard.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self._replace_guard(guard)

    def _replace_guard(self, guard: Guard) -> None:
        """Start another guard and send it all messages again; give up after ``_NEW_GUARDS`` of them."""
        if self._guard is not guard:
            return  # a signal handler was quicker
        self._guard = None
        _part_with(guard)
        while self._spare > 0:
            self._spare -= 1
            new = None
            try:
                new = self._start_guard()
                for op in ("launcher", "listen", "attempt", "started", "closing", "failed", "elsewhere", "end"):
                    if op in self._said:
                        send(new.channel, *self._said[op])
            except OSError:
                if new is not None:
                    _part_with(new)  # else the closed socket looks to it like the death of torchrun
                continue
            self._guard = new
            return
        drain([outlet.read for outlet in self._outlets])  # so that no rank blocks
        self.give_up(ChildProcessError(0, "the process that records it died several times"))


def _part_with(guard: Guard) -> None:
    """Close the socket, and kill the guard if it still lives; it is reaped when this process ends."""
    with contextlib.suppress(OSError):
        guard.channel.shutdown(socket.SHUT_RDWR)
    guard.channel.close()
    with contextlib.suppress(OSError):
        os.kill(guard.pid, signal.SIGKILL)  # our own child, not reaped yet, so the pid is not reused
