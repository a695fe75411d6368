"""Ends processes of this machine that were found earlier: sends signals, grants a grace period, waits until they end.

Each signal goes through a pidfd, so that the pid cannot be reused between the check and the signal:
https://man7.org/linux/man-pages/man2/pidfd_open.2.html. psutil's `send_signal` compares the start time too, but leaves
that gap between its check and its `os.kill`.
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

#: A process by pid and start time, which together are unique within a boot.
_AnyProcess = TypeVar("_AnyProcess", Process, ProcessStat)

#: "sent"; "gone": no such process; "other": the pid belongs to another process by now; "denied": no permission.
Sent = Literal["sent", "gone", "other", "denied"]

_RUN_IDS = (RUN_ID, LAUNCH, "TORCHELASTIC_RUN_ID")
_PAUSE_S = 0.02
KILLED_S = 5.0  # a process that takes longer to end after SIGKILL waits in the kernel for a device or a file server


def send_signal(process: Process | ProcessStat, number: int) -> Sent:
    """Signal ``process`` if its pid still means the same process: same start time and, for a `Process`, same run ID.

    The run ID changes if a launcher execs the launcher of another run.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return "gone"
    except OSError:  # a kernel before 5.3, or a sandbox: only the pid is left to use
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
    """Return the processes to signal first: all except those that a Python process among them started.

    If DataLoader workers die first, their rank raises `DataLoader worker ... killed by signal` before it has saved, so
    workers end after their rank. But what a shell or a profiler started is the training itself, and such programs may
    not pass the signal on.
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
    """Return whether the executable of a process is a Python interpreter, whatever the process is named."""
    try:
        program = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - the guard imports no pathlib
    except OSError:  # the process is gone, or another user's
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
    if then is None or now.environment is None:  # unreadable now; the same if it was unreadable before
        return then is now.environment
    return all(then.get(name) == now.environment.get(name) for name in _RUN_IDS) or not now.environment


def remaining(processes: Iterable[Process | ProcessStat]) -> list[Process]:
    """Return the processes that still run, as they are now; zombies do not count."""
    current = ((read_process(process.pid), process.start_ticks) for process in processes)
    return [now for now, start_ticks in current if now is not None and now.start_ticks == start_ticks and now.alive]


def wait_gone(processes: Iterable[Process | ProcessStat], deadline_s: float) -> list[Process]:
    """Wait at most ``deadline_s`` seconds until all have ended; return those that still run."""
    end = time.monotonic() + deadline_s
    running = remaining(processes)
    while running and time.monotonic() < end:
        time.sleep(_PAUSE_S)
        running = remaining(running)
    return running


class ProcessEnds(NamedTuple):
    """Which processes ended by SIGTERM or otherwise, which by SIGKILL, and which remain."""

    ended: tuple[Process, ...]
    killed: tuple[Process, ...]
    remaining: tuple[Process, ...]


def ends_of(processes: Iterable[Process], killed: Iterable[Process], remaining: Sequence[Process]) -> ProcessEnds:
    """Sort ``processes`` by how they ended; ``killed`` were sent SIGKILL, ``remaining`` still run."""
    running_pids = {process.pid for process in remaining}
    hard = tuple(process for process in killed if process.pid not in running_pids)
    not_soft = running_pids | {process.pid for process in hard}
    return ProcessEnds(tuple(each for each in processes if each.pid not in not_soft), hard, tuple(remaining))


def end_processes(processes: Sequence[Process], grace_s: float) -> ProcessEnds:
    """Send SIGTERM, after ``grace_s`` seconds SIGKILL to those that still run, and return how all ended."""
    for process in processes:
        send_signal(process, signal.SIGTERM)
    killed = wait_gone(processes, grace_s)
    for process in killed:
        send_signal(process, signal.SIGKILL)
    return ends_of(processes, killed, wait_gone(killed, KILLED_S))


def signal_at_parents_end(number: int) -> None:
    """Have the kernel send ``number`` to this process when its parent ends (PR_SET_PDEATHSIG, prctl(2)).

    The parent is the thread that started this process, or the process that adopted it; it may have ended already. Call
    this in the main thread, or between fork and exec (exec keeps the setting). Raises OSError.
    """
    import ctypes  # imported here: it takes as long as the rest of this module

    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(1, ctypes.c_ulong(number)):  # PR_SET_PDEATHSIG
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))


_PIDFD_INFO = struct.Struct("=Q52xi")  # struct pidfd_info: the mask, unused fields, the status
_PIDFD_INFO_EXIT = 8  # linux/pidfd.h
_PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, struct pidfd_info)


def status_of_reaped(handle: int) -> int | None:
    """Return the waitpid(2) status of an ended process by its pidfd, even after its parent has reaped it.

    Linux 6.15 and later keep the status for holders of a pidfd (PIDFD_INFO_EXIT in linux/pidfd.h); None on older
    kernels.
    """
    info = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, 0))
    try:
        import fcntl

        fcntl.ioctl(handle, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, status = _PIDFD_INFO.unpack(info)
    return status if mask & _PIDFD_INFO_EXIT else None
