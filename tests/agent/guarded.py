"""A guard with real ranks and without torchrun: what the plug-in does, done by a test."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ddplaunch.agent.end.ended import EndedRun
from ddplaunch.agent.protocol import RankFailure, receive, send
from ddplaunch.machine.processes.process_table import read_stat
from ddplaunch.values.variable_names import SETTINGS

ROOT = Path(__file__).parents[2]
CODE = (
    "import sys; sys.path.insert(0, sys.argv[2]); import tests.agent.ended_to_file as instead; "
    "sys.modules['ddplaunch.agent.end.conclude'] = instead; "
    "from ddplaunch.agent.guard.guard import main; main(int(sys.argv[1]))"
)
#: How long something takes that takes a second on a quiet machine, at most: deadlines grow with the load.
SLOWNESS = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
PATIENCE_S = 60.0 * SLOWNESS
_ENDED = os.WEXITED | os.WNOWAIT | os.WNOHANG


def open_files() -> set[tuple[str, str]]:
    """Return the descriptors with what they lead to: one that a collector closes meanwhile hides none that is new."""
    found = set()
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # the one that lists the directory
            found.add((entry.name, str(entry.readlink())))
    return found


def until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until ``condition()`` holds; fail with ``what`` if it never does."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {patience_s:.0f} s: {what}"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether there is such a process, zombies not counted."""
    seen = read_stat(pid)
    return seen is not None and seen.alive


def waits_for(file: Path) -> str:
    """Return the lines of a rank's program that wait until ``file`` exists."""
    return f"import os, time\nwhile not os.path.exists({str(file)!r}): time.sleep(0.01)\n"


def failure(rank: int, pid: int, code: int, at_s: int = 5) -> RankFailure:
    """Return what torchrun says of a rank that failed."""
    return RankFailure(rank=rank, pid=pid, exit_code=code, timestamp_s=at_s)


def at_rest(pid: int) -> bool:
    """Whether the process sleeps, with no signal left that it has not looked at."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value.strip()}
    return status["State"] == "S" and not int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)


class Guarded:
    """One guard whose launcher is this process. ``out`` and ``err`` are its console."""

    def __init__(self, folder: Path, out: int | IO[bytes], err: int | IO[bytes], **settings: Any) -> None:
        self.run_id = f"guard-{os.getpid()}-{time.monotonic_ns()}"
        given = {"run_id": self.run_id, "directory": str(folder / "run"), "node": 0, "show": "0", **settings}
        self.directory, self.ended_file = Path(given["directory"]), folder / "ended.pickle"
        known_by = {"DDPLAUNCH_RUN_ID": self.run_id, "DDPLAUNCH_LAUNCH": self.run_id}
        self.environment = {**os.environ, **known_by, "GUARD_TEST_ENDED": str(self.ended_file)}
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", CODE, str(theirs.fileno()), str(ROOT)],
            pass_fds=[theirs.fileno()],
            stdout=out,
            stderr=err,
            start_new_session=True,
            env={**self.environment, SETTINGS: json.dumps(given)},
        )
        theirs.close()
        comm = Path(f"/proc/{self.guard.pid}/comm")  # as in a launch: ranks start seconds after the guard
        until(lambda: comm.read_text() == "ddplaunch-guard\n", "the guard is up")
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.held: list[int] = []
        self.verdicts: dict[int, bool] = {}  # by attempt: whether a restart cannot help
        self.signals = os.pipe2(os.O_NONBLOCK)
        send(self.channel, {"op": "listen"}, [self.signals[0]])

    def attempt(
        self,
        programs: Sequence[str],
        number: int = 0,
        *,
        terminal: bool = False,
        one: bool = False,
        announce: bool = True,
    ) -> None:
        """Start one rank for each Python program; rank 0 on a ``terminal``, or all with ``one`` pipe for both."""
        ranks, given, taken = [], [], []
        for rank in range(len(programs)):
            on_terminal = terminal and rank == 0
            streams = ["out"] if one or on_terminal else ["out", "err"]
            ends = [pty.openpty() if on_terminal else os.pipe() for _ in streams]
            if on_terminal:
                tty.setraw(ends[0][1])
            ranks.append({"rank": rank, "local_rank": rank, "streams": streams})
            given += [reading for reading, _ in ends]
            taken.append([writing for _, writing in ends])
        send(self.channel, {"op": "attempt", "attempt": number, "ranks": ranks}, given)
        for rank, (program, ends_of_rank) in enumerate(zip(programs, taken, strict=True)):
            self.ranks[rank] = subprocess.Popen(
                [sys.executable, "-u", "-c", program],
                stdout=ends_of_rank[0],
                stderr=ends_of_rank[-1],
                start_new_session=True,
                env={**self.environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
        self.held += [*given, *(end for ends_of_rank in taken for end in ends_of_rank)]
        if announce:
            self.started()

    def failed(self, *failures: RankFailure) -> None:
        """Say how ranks failed, before torchrun would start them again."""
        send(self.channel, {"op": "failed", "failures": failures})

    def signalled(self, number: int) -> None:
        """Let the guard know of a signal to its launcher, as ``signal.set_wakeup_fd`` does."""
        os.write(self.signals[1], bytes([number]))

    def started(self) -> None:
        pids = {str(rank): process.pid for rank, process in self.ranks.items()}
        send(self.channel, {"op": "started", "pids": pids})

    def wait(self) -> None:
        """Wait for all ranks, and reap them no earlier than torchrun would: once the guard knows of them."""
        for process in self.ranks.values():
            if process.returncode is None:
                until(lambda pid=process.pid: os.waitid(os.P_PID, pid, _ENDED), "a rank ends")  # type: ignore[misc]
        until(self._has_heard, "the guard has read what it was sent")
        for process in self.ranks.values():
            process.wait(PATIENCE_S)

    def _has_heard(self) -> bool:
        """Whether the guard has taken all messages and sleeps again, or is stopped or gone."""
        guard, left = read_stat(self.guard.pid), bytearray(4)
        fcntl.ioctl(self.channel, termios.TIOCOUTQ, left)
        return guard is None or guard.state in "TtZX" or (guard.state == "S" and not any(left))

    def end(self, state: str = "succeeded", **more: Any) -> tuple[int, EndedRun]:
        """Say ``end`` and return the answer and what the guard saw."""
        send(self.channel, {"op": "end", "state": state, "signal": None, "failures": [], "error": "", **more})
        return self.done()

    def done(self) -> tuple[int, EndedRun]:
        self.channel.settimeout(PATIENCE_S)
        message, _ = receive(self.channel)
        assert message, "the guard died"
        while message["op"] != "done":
            self.verdicts[message["attempt"]] = message["final"]
            message, _ = receive(self.channel)
            assert message, "the guard died"
        assert self.guard.wait(PATIENCE_S) == 0
        return message["exit_status"], self.seen()

    def seen(self) -> EndedRun:
        ended = pickle.loads(self.ended_file.read_bytes())
        assert isinstance(ended, EndedRun)
        return ended

    def file(self, name: str) -> bytes:
        """Return what is in the record by now; nothing for a file that is not there yet."""
        path = self.directory / "node-0" / name
        return path.read_bytes() if path.exists() else b""

    def __enter__(self) -> Guarded:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in [*self.ranks.values(), self.guard]:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        self.channel.close()
        for descriptor in (*self.held, *self.signals):
            os.close(descriptor)


def read_for(descriptor: int, enough: Callable[[bytes], bool], patience_s: float = PATIENCE_S) -> bytes:
    """Read until what came is ``enough``; fail if it never is."""
    data, deadline_s = b"", time.monotonic() + patience_s
    while not enough(data):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline_s - time.monotonic()))
        assert ready, f"only this came: {data[-500:]!r}"
        more = os.read(descriptor, 1 << 16)
        if not more:
            break
        data += more
    return data
