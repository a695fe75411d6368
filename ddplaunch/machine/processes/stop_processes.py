"""Ends processes of this machine that were read before: signals, a grace, the wait until they are gone.

Each signal goes through a pidfd, which pins the process between the last look at it and the signal:
https://man7.org/linux/man-pages/man2/pidfd_open.2.html. psutil's `send_signal` compares the start time too, but the pid
may be given out again between its look and its `os.kill`.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

from ddplaunch.machine.processes.process_table import Process, ProcessStat, read_process, read_stat
from ddplaunch.values.variable_names import LAUNCH, RUN_ID

#: A process by pid and start time, which name it within a boot.
_AnyProcess = TypeVar("_AnyProcess", Process, ProcessStat)

#: "sent"; "gone": no such process; "other": the pid belongs to another process by now; "denied": no permission.
Sent = Literal["sent", "gone", "other", "denied"]

_RUN_IDS = (RUN_ID, LAUNCH, "TORCHELASTIC_RUN_ID")
_PAUSE_S = 0.02
_PR_SET_PDEATHSIG = 1
KILLED_S = 5.0  # from SIGKILL to the end; a process that takes longer waits in the kernel for a device or a file server


def send_signal(process: Process | ProcessStat, number: int) -> Sent:
    """Signal ``process`` if its pid still means the same process: start time, and for a `Process` run id, as they were.

    The run id changes where a launcher became that of another run by exec.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return "gone"
    except OSError:  # a kernel before 5.3, or a sandbox: nothing better than the number is to be had
        descriptor = -1
    try:
        if not is_same(process):
            return "other"
        if descriptor < 0:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        return "denied"
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return "sent"


def asked_first(processes: Iterable[_AnyProcess]) -> list[_AnyProcess]:
    """Return those of ``processes`` that a signal to end is meant for: all but what a Python process has started.

    A rank whose DataLoader workers die raises `DataLoader worker ... killed by signal` before it has saved, so
    workers go only after their rank. What is started by another program, a shell or a profiler, is the training
    itself, and that program may not pass the signal on.
    """
    by_pid = {process.pid: process for process in processes}
    started_by_python: set[int] = set()
    for process in by_pid.values():
        above = by_pid.get(process.parent)
        while above is not None and not runs_python(above.pid):
            above = by_pid.get(above.parent)
        if above is not None:
            started_by_python.add(process.pid)
    return [process for pid, process in by_pid.items() if pid not in started_by_python]


def runs_python(pid: int) -> bool:
    """Return whether the program of a process is a Python interpreter, whatever the process calls itself."""
    try:
        program = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - the guard imports no pathlib
    except OSError:  # gone, or another user's
        return False
    return program.rpartition("/")[2].startswith(("python", "pypy"))


def is_same(process: Process | ProcessStat) -> bool:
    """Return whether the pid still means this process."""
    if not isinstance(process, Process):
        stat = read_stat(process.pid)
        return stat is not None and stat.start_ticks == process.start_ticks
    now = read_process(process.pid)
    if now is None or now.start_ticks != process.start_ticks:
        return False
    then = process.environment
    if then is None or now.environment is None:  # not readable, as before
        return then is now.environment
    return all(then.get(name) == now.environment.get(name) for name in _RUN_IDS) or not now.environment


def remaining(processes: Iterable[Process | ProcessStat]) -> list[Process]:
    """Return those that still run, as they are now; a zombie does not."""
    current = ((read_process(process.pid), process.start_ticks) for process in processes)
    return [now for now, start_ticks in current if now is not None and now.start_ticks == start_ticks and now.alive]


def wait_gone(processes: Iterable[Process | ProcessStat], deadline_s: float) -> list[Process]:
    """Wait until none of them runs, at most ``deadline_s`` seconds; return those that still do."""
    end = time.monotonic() + deadline_s
    running = remaining(processes)
    while running and time.monotonic() < end:
        time.sleep(_PAUSE_S)
        running = remaining(running)
    return running


class ProcessEnds(NamedTuple):
    """How processes ended: by SIGTERM or otherwise, by SIGKILL, or not at all."""

    ended: tuple[Process, ...]
    killed: tuple[Process, ...]
    remaining: tuple[Process, ...]


def ends_of(processes: Iterable[Process], killed: Iterable[Process], remaining: Sequence[Process]) -> ProcessEnds:
    """Sort ``processes``, of which SIGKILL was sent to ``killed``, by how they ended."""
    running_pids = {process.pid for process in remaining}
    hard = tuple(process for process in killed if process.pid not in running_pids)
    not_soft = running_pids | {process.pid for process in hard}
    return ProcessEnds(tuple(each for each in processes if each.pid not in not_soft), hard, tuple(remaining))


def end_processes(processes: Sequence[Process], grace_s: float) -> ProcessEnds:
    """Send SIGTERM, after ``grace_s`` seconds SIGKILL to those that still run, and wait for their end."""
    for process in processes:
        send_signal(process, signal.SIGTERM)
    killed = wait_gone(processes, grace_s)
    for process in killed:
        send_signal(process, signal.SIGKILL)
    return ends_of(processes, killed, wait_gone(killed, KILLED_S))


def signal_at_parents_end(number: int) -> None:
    """Have the kernel send ``number`` to this process when its parent is gone (PR_SET_PDEATHSIG, prctl(2)).

    The parent is the thread that started this process, or the process that adopted it; it may be gone already. To be
    called by the main thread, or between fork and exec, which keeps it. Raises OSError.
    """
    import ctypes  # which takes as long as all else of this module

    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number), *[ctypes.c_ulong(0)] * 3) != 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))


_PIDFD_INFO = struct.Struct("=Q52xi")  # struct pidfd_info: the mask, what is not asked for, the status
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11  # _IOWR(0xFF, 11, struct pidfd_info)


def status_of_reaped(handle: int) -> int | None:
    """Return the status (waitpid(2)) of the ended process behind a pidfd, though its parent has taken it already.

    Linux 6.15 and later keep it for whoever holds a pidfd (PIDFD_INFO_EXIT in linux/pidfd.h); None before that.
    """
    info = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(info, 0, _PIDFD_INFO_EXIT, 0)
    try:
        import fcntl

        fcntl.ioctl(handle, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, status = _PIDFD_INFO.unpack_from(info)
    return status if mask & _PIDFD_INFO_EXIT else None
