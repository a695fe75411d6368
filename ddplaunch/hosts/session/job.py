"""The one program that a launcher starts on a host, and its end: by signal, then SIGKILL, then whatever is left.

When stdin ends, or nothing arrives for ``SILENCE_S``, the launcher is dead, asleep or cut off: the program is ended.

The program is ``python -m ddplaunch.cli.hosts.on_host``, which checks the launch here and then becomes torchrun with
the same pid. It reads its order from a file without a name, because arguments and secrets do not belong on a command
line.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ddplaunch.hosts.json_lines import OF_SSH, SILENCE_S, LineReader, message_in
from ddplaunch.machine.processes.process_table import Process, process_table
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.machine.processes.stop_processes import KILLED_S, send_signal, signal_at_parents_end, wait_gone
from ddplaunch.values.variable_names import own_command

_GUARD_S = 3.0  # for the guard to end the ranks of a torchrun that died
_AFTER_GRACE_S = 3.0
_LAST_OUTPUT_S = 10.0
_READ = 1 << 16
_TICK_MS = 500
_TICK_S = 0.1
_CANNOT_START = 126


class HostJob:
    """The program, its output on the way to ``sinks``, and how far its end has got."""

    def __init__(self, order: Mapping[str, Any], sinks: Mapping[str, int]) -> None:
        """Start the program. ``order`` is the launcher's message: ``python``, ``run_id``, ``token``, ``grace_s``,
        ``terminal``, and whatever ``on_host`` reads. ``sinks`` are descriptors for "out" and "err". Raises OSError
        where the program cannot be started.
        """
        self._run = (str(order["run_id"]), os.geteuid(), str(order["token"]))
        self._grace_s = float(order["grace_s"])
        self._kill_at = math.inf
        self.told = False  # whether it was asked to end
        self.unheard = False  # whether the launcher is lost, so that output goes nowhere
        todo = os.memfd_create("ddplaunch")
        os.write(todo, json.dumps(order).encode())
        os.lseek(todo, 0, os.SEEK_SET)
        reading, writing = _streams(sinks, order.get("terminal"))
        try:
            self.process = subprocess.Popen(
                own_command(str(order["python"]), "ddplaunch.cli.hosts.on_host", str(todo)),
                stdin=subprocess.DEVNULL,
                stdout=writing["out"],
                stderr=writing["err"],
                pass_fds=(todo,),
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        finally:
            for descriptor in {todo, *writing.values()}:
                os.close(descriptor)
        self._pumps = [
            threading.Thread(target=self._pump, args=(descriptor, sinks[name]), daemon=True)
            for descriptor, name in reading.items()
        ]
        for pump in self._pumps:
            pump.start()

    def _pump(self, reading: int, sink: int) -> None:
        """Pass output on. A launcher that pauses makes the ranks' guard wait; one that is gone does not."""
        os.set_blocking(sink, False)
        writable = select.poll()
        writable.register(sink, select.POLLOUT)
        with contextlib.suppress(OSError):  # EIO: the last process has closed the terminal's other end
            while data := os.read(reading, _READ):
                while data and not self.unheard:
                    with contextlib.suppress(BlockingIOError):
                        data = data[os.write(sink, data) if writable.poll(_TICK_MS) else 0 :]
        os.close(reading)

    def end(self, number: int) -> None:
        """Send signal ``number`` to the program; SIGKILL follows when the grace is over."""
        self.told = True
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace_s + _AFTER_GRACE_S)
        self.process.send_signal(number)

    def kill_if_due(self) -> None:
        """Kill the program if its time is over. The guard then ends what is left."""
        if time.monotonic() >= self._kill_at:
            self.process.kill()

    def sweep(self) -> None:
        """End what is left of this run after its program, first by the guard, then by SIGKILL; wait for the last
        output.
        """
        until_s = time.monotonic() + _GUARD_S
        while (processes := self._left()) and time.monotonic() < until_s:
            time.sleep(0.1)
        for process in processes:
            send_signal(process, signal.SIGKILL)
        wait_gone(processes, KILLED_S)
        for pump in self._pumps:
            pump.join(_LAST_OUTPUT_S)

    def _left(self) -> list[Process]:
        own_runs = (run for run in runs_in(process_table()) if (run.run_id, run.uid, run.launch) == self._run)
        return [process for run in own_runs for process in run.all if process.pid != os.getpid()]


def run_job(order: dict[str, Any], lines: LineReader, sinks: Mapping[str, int]) -> int:
    """Start the program of ``order``, end it when the launcher says so or is lost, and return its exit status."""
    try:
        job = HostJob(order, sinks)
    except OSError as error:
        sys.stderr.write(f"{error.strerror}: {error.filename}\n")
        return _CANNOT_START
    signal.signal(signal.SIGTERM, lambda number, _: job.end(number))
    lines.heard_s = time.monotonic()
    while job.process.poll() is None:
        line = None if job.unheard else lines.next(time.monotonic() + _TICK_S)
        if line is not None:
            with contextlib.suppress(OSError):
                os.write(2, b"\0")  # tells the launcher that this host is alive
            if (number := message_in(line).get("signal")) is not None:
                job.end(int(number))
        elif job.unheard:
            time.sleep(_TICK_S)
        elif lines.ended or time.monotonic() - lines.heard_s > SILENCE_S:
            _launcher_lost(job, str(order["record"]))
        job.kill_if_due()
    job.sweep()
    if job.unheard:
        return OF_SSH  # a launcher that wakes up again takes this host for lost
    status: int = job.process.returncode
    return min(status, OF_SSH - 1) if status >= 0 else 128 - status


def _launcher_lost(job: HostJob, record: str) -> None:
    """End the job, and note why in the record here, unless the launcher had begun to end it."""
    if not job.told:
        from ddplaunch.records.directory import note_stop

        with contextlib.suppress(Exception):  # ending the job matters more than the note
            note_stop(Path(record), launcher_lost=True)
    job.unheard = True
    job.end(signal.SIGTERM)


def _streams(names: Iterable[str], terminal: Mapping[str, Any] | None) -> tuple[dict[int, str], dict[str, int]]:
    """Return the descriptors to read from, with the names of their streams, and by name those that the program gets.

    ``terminal`` has the launcher's streams that are a terminal, and its size: the program gets a terminal for these.
    """
    reading, writing = dict[int, str](), dict[str, int]()
    if terminal:
        master, slave = os.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[1] &= ~termios.OPOST  # pass bytes unchanged
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        size = struct.pack("HHHH", int(terminal["rows"]), int(terminal["columns"]), 0, 0)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
        writing = dict.fromkeys(terminal["streams"], slave)
        reading[master] = terminal["streams"][0]
    for name in names:
        if name not in writing:
            end, writing[name] = os.pipe()
            reading[end] = name
    return reading, writing


def _die_with_parent() -> Callable[[], None]:
    """Return a ``preexec_fn``: the kernel sends SIGTERM to the child when this process dies in any way, see prctl(2).

    It also makes the child interruptible.
    """
    parent = os.getpid()

    def arrange() -> None:
        for number in (signal.SIGHUP, signal.SIGINT):  # ignored in this process; torchrun would inherit and keep that
            signal.signal(number, signal.SIG_DFL)
        signal_at_parents_end(signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(1)

    return arrange
