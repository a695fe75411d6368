"""The one program that a launcher has a host start, and its end: by signal, then SIGKILL, then whatever is left.

The program is ``python -m ddplaunch.cli.hosts.on_host``, which checks the launch here and becomes torchrun, pid and
all. It reads what to do from a file without a name, because neither arguments nor secrets belong on a command line.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddplaunch.machine.processes.process_table import Process, process_table
from ddplaunch.machine.processes.run_processes import RunProcesses, runs_in
from ddplaunch.machine.processes.stop_processes import KILLED_S, send_signal, signal_at_parents_end, wait_gone
from ddplaunch.values.variable_names import own_command

_PATIENCE_S = 2.0  # how long torchrun may take to pass a signal on, before anybody asks why
_CONNECT_S = 1.0
_LOOK_S = 0.5
_GUARD_S = 3.0  # how long the guard may need to end the ranks of a torchrun that died
_AFTER_GRACE_S = 3.0


class HostJob:
    """The program, the reading ends of its output, and how far its end has got."""

    def __init__(self, order: dict[str, Any]) -> None:
        """Start it. ``order`` is the body of LAUNCH: ``python``, ``run_id``, ``token``, ``grace_s``, ``terminal``,
        ``launch``. Raises OSError where it cannot be started.
        """
        self.run_id, self._token = str(order["run_id"]), str(order.get("token", ""))
        self._grace_s = float(order["grace_s"])
        self._kill_at: float | None = None
        self.told = False  # to end
        self._stuck = StuckTorchrun(order, self._ranks)
        self.streams: dict[int, str] = {}
        todo = os.memfd_create("ddplaunch")
        os.write(todo, json.dumps(order["launch"]).encode())
        os.lseek(todo, 0, os.SEEK_SET)
        self._terminal: int | None = None
        given = [self._stream(name, order.get("terminal")) for name in ("out", "err")]
        die_with_parent = _die_with_parent()
        try:
            self.process = subprocess.Popen(
                own_command(str(order["python"]), "ddplaunch.cli.hosts.on_host", str(todo)),
                stdin=subprocess.DEVNULL,
                stdout=given[0],
                stderr=given[1],
                pass_fds=(todo,),
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        finally:
            for descriptor in {todo, *given}:
                os.close(descriptor)

    def _stream(self, name: str, terminal: dict[str, Any] | None) -> int:
        """Return the end that the program writes to; a terminal where the launcher has one for this stream."""
        if terminal and name in terminal["streams"]:
            if self._terminal is None:
                self._terminal, slave = os.openpty()
                attributes = termios.tcgetattr(slave)
                attributes[1] &= ~termios.OPOST  # bytes arrive as they were written
                termios.tcsetattr(slave, termios.TCSANOW, attributes)
                self.resize(int(terminal["rows"]), int(terminal["columns"]))
                self.streams[self._terminal] = name
                self._slave = slave
                return slave
            return os.dup(self._slave)
        reading, writing = os.pipe()
        self.streams[reading] = name
        return writing

    def resize(self, rows: int, columns: int) -> None:
        """Pass on the size of the launcher's terminal."""
        if self._terminal is not None:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            if hasattr(self, "process") and self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGWINCH)  # its group: it leads one, and ranks have others

    def end(self, number: int) -> None:
        """Ask it to end by signal ``number``; SIGKILL follows when the grace is over."""
        now, self.told = time.monotonic(), True
        if number == signal.SIGKILL:
            self._kill_at = now
        elif self.process.returncode is None:
            self.process.send_signal(number)
            self._stuck.signalled(number)
            self._kill_at = min(self._kill_at or now + 1e9, now + self._grace_s + _AFTER_GRACE_S)
        self.kill_if_due()

    def kill_if_due(self) -> None:
        """Kill it if its time is over, or it is stuck without ranks. The guard then ends what is left."""
        if self._kill_at is None or self.process.returncode is not None:
            return
        if time.monotonic() >= self._kill_at or self._stuck.over():
            self.process.kill()

    def sweep(self, pause: Callable[[float], None]) -> list[int]:
        """End what is left of this run when the program is gone: the guard's turn first, then SIGKILL.

        Returns the pids that had to be killed. ``pause`` waits, and moves output meanwhile.
        """
        until = time.monotonic() + _GUARD_S
        while (left := self._left()) and time.monotonic() < until:
            pause(0.1)
        for process in left:
            send_signal(process, signal.SIGKILL)
        wait_gone(left, KILLED_S)
        return [process.pid for process in left]

    def _left(self) -> list[Process]:
        return [each for run in self._runs() for each in run.all if each.pid != os.getpid()]

    def _ranks(self) -> list[Process]:
        return [each for run in self._runs() for each in run.ranks]

    def _runs(self) -> list[RunProcesses]:
        mine = (self.run_id, os.geteuid(), self._token)
        return [run for run in runs_in(process_table()) if (run.run_id, run.uid, run.launch) == mine]


def _die_with_parent() -> Callable[[], None]:
    """Return what has the kernel send SIGTERM to a child when this process dies, however it dies: prctl(2).

    The child can be interrupted, too.
    """
    parent = os.getpid()

    def arrange() -> None:
        for number in (signal.SIGHUP, signal.SIGINT):  # ignored here, and torchrun leaves alone what was ignored before
            signal.signal(number, signal.SIG_DFL)
        signal_at_parents_end(signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(1)

    return arrange


class StuckTorchrun:
    """Signals the ranks in the place of a torchrun that waits for a store whose host is silent.

    The store lives in the first node's torchrun. Where that host went without a word, the others' torchruns sit in a
    call to it, in C++, where Python runs no signal handler: for up to a quarter of an hour. A store whose host still
    answers, if only to refuse, holds nobody up. After the first signal the store is asked once.
    """

    def __init__(self, order: Mapping[str, Any], ranks: Callable[[], Sequence[Process]]) -> None:
        """``order`` is the body of LAUNCH, ``ranks`` returns the ranks that live here."""
        self._store, self._ranks = store_of(order), ranks
        self._number: int = signal.SIGTERM
        self._look_at: float | None = None
        self._told = False

    def signalled(self, number: int) -> None:
        """Torchrun got signal ``number``."""
        if self._look_at is None:
            self._number, self._look_at = number, time.monotonic() + _PATIENCE_S

    def over(self) -> bool:
        """Look after the ranks of a torchrun that is stuck; return whether they are gone, and it may be killed."""
        if self._look_at is None or time.monotonic() < self._look_at:
            return False
        if not self._told:
            if self._store is None or not is_silent(*self._store):
                self._store = self._look_at = None
                return False
            for rank in self._ranks():
                send_signal(rank, self._number)
            self._told = True
        self._look_at = time.monotonic() + _LOOK_S
        return not self._ranks()


def store_of(order: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return address and port of the store, None where the launch names none."""
    try:
        options = order["launch"]["options"]
        return str(options["master_addr"]["value"]), int(options["master_port"]["value"])
    except (KeyError, TypeError, ValueError):
        return None


def is_silent(address: str, port: int) -> bool:
    """Return whether nothing comes back from there, not even a refusal; it is waited for a second."""
    try:
        socket.create_connection((address, port), timeout=_CONNECT_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return False
