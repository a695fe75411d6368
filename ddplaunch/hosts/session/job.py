"""The one program that a launcher starts on a host, and its end: by signal, then SIGKILL, then whatever is left.

When stdin ends, or nothing arrives within ``--host-timeout``, the launcher is dead, asleep or cut off: the program is
ended.

The program is ``python -m ddplaunch.cli.hosts.on_host``, which checks the launch here and then becomes torchrun with
the same pid. It reads its order from stdin, a file without a name, because arguments and secrets do not belong on a
command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ddplaunch.hosts.json_lines import OF_SSH, LineReader, message_in
from ddplaunch.machine.processes.process_table import Process, process_table
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.machine.processes.stop_processes import KILLED_S, send_signal, signal_at_parents_end, wait_gone
from ddplaunch.values.variable_names import own_command

_GUARD_S = 3.0  # for the guard to end the ranks of a torchrun that died
_AFTER_GRACE_S = 3.0
_TICK_S = 0.1
_CANNOT_START = 126


class HostJob:
    """The program, which writes to this process's stdout and stderr, and ways to end it."""

    def __init__(self, order: Mapping[str, Any], stdout: int) -> None:
        """Start the program. ``order`` is the launcher's message: ``python``, ``run_id``, ``token``, ``grace_s``, and
        whatever ``on_host`` reads. Raises OSError where the program cannot be started.
        """
        self._run = (str(order["run_id"]), os.geteuid(), str(order["token"]))
        self._grace_s = float(order["grace_s"])
        self.told = False  # whether it was signalled to end
        with open(os.memfd_create("ddplaunch"), "w+b") as todo:
            todo.write(json.dumps(order).encode())
            todo.seek(0)
            self.process = subprocess.Popen(
                own_command(str(order["python"]), "ddplaunch.cli.hosts.on_host"),
                stdin=todo,
                stdout=stdout,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )

    def end(self, number: int) -> None:
        """Send signal ``number`` to the program; SIGKILL follows when the grace is over."""
        self.told = True
        self.process.send_signal(number)
        kill = threading.Timer(self._grace_s + _AFTER_GRACE_S, self.process.kill)
        kill.daemon = True
        kill.start()

    def sweep(self) -> None:
        """End what is left of this run after its program, first by the guard, then by SIGKILL."""
        until_s = time.monotonic() + _GUARD_S
        while (processes := self._left()) and time.monotonic() < until_s:
            time.sleep(_TICK_S)
        for process in processes:
            send_signal(process, signal.SIGKILL)
        wait_gone(processes, KILLED_S)

    def _left(self) -> list[Process]:
        own_runs = (run for run in runs_in(process_table()) if (run.run_id, run.uid, run.launch) == self._run)
        return [process for run in own_runs for process in run.all if process.pid != os.getpid()]


def run_job(order: dict[str, Any], lines: LineReader, stdout: int) -> int:
    """Start the program of ``order``, end it when the launcher says so or is lost, and return its exit status."""
    try:
        job = HostJob(order, stdout)
    except OSError as error:
        sys.stderr.write(f"{error.strerror}: {error.filename}\n")
        return _CANNOT_START
    signal.signal(signal.SIGTERM, lambda number, _: job.end(number))
    lines.heard_s, is_lost = time.monotonic(), False
    while job.process.poll() is None:
        line = None if is_lost else lines.next(time.monotonic() + _TICK_S)
        if line is not None:
            with contextlib.suppress(OSError):
                os.write(2, b"\0")  # tells the launcher that this host is alive
            if (number := message_in(line).get("signal")) is not None:
                job.end(int(number))
        elif is_lost:
            time.sleep(_TICK_S)
        elif lines.ended or time.monotonic() - lines.heard_s > order["host_timeout_s"]:
            is_lost = True
            with contextlib.suppress(OSError):  # for a launcher that was stopped, or whose machine slept
                os.write(2, b"\nddplaunch there heard nothing of the launcher for %d s\n" % order["host_timeout_s"])
            _launcher_lost(job, str(order["record"]))
    job.sweep()
    if is_lost:
        return OF_SSH  # a launcher that wakes up again must see this host as lost
    status: int = job.process.returncode
    return min(status, OF_SSH - 1) if status >= 0 else 128 - status


def _launcher_lost(job: HostJob, record: str) -> None:
    """End the job, and note why in the record here, unless the launcher had begun to end it."""
    if not job.told:
        from ddplaunch.records.directory import note_stop

        with contextlib.suppress(Exception):  # ending the job matters more than the note
            note_stop(Path(record), launcher_lost=True)
    job.end(signal.SIGTERM)


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
