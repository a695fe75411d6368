"""Ends processes of this machine, each known by pid and start time; refuses to choose which.

Signals to a process whose pid cannot be given out again meanwhile; refuses to decide whether it is the right one.

Processes as /proc shows them, and signals that cannot reach a stranger; refuses to choose whom to end.

Fields are those of proc_pid_stat(5): https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import time
from collections.abc import Callable, Iterable
from typing import Literal

from ddplaunch.machine.files import read_bytes
from ddplaunch.machine.processes.process_table import Process, read_process

#: "sent"; "gone": no such process; "other": the pid belongs to another process by now; "denied": no permission.
Sent = Literal["sent", "gone", "other", "denied"]


def send_pinned(pid: int, number: int, is_same: Callable[[], bool]) -> Sent:
    """Send the signal if ``is_same`` holds while a pidfd pins the process.

    So nobody else can get the pid between the look and the signal: https://man7.org/linux/man-pages/man2/pidfd_open.2.html.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return "gone"
    except OSError:  # a kernel before 5.3, or a sandbox: nothing better than the number is to be had
        descriptor = -1
    try:
        if not is_same():
            return "other"
        if descriptor < 0:
            os.kill(pid, number)
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


_PAUSE_S = 0.02


def send(process: Process, number: signal.Signals) -> Sent:
    """Signal ``process`` if its pid still means the same process: start time and marks as they were."""
    return send_pinned(process.pid, number, lambda: is_same(process))


def is_same(process: Process) -> bool:
    """Return whether the pid still means this process: start time and run id agree."""
    now = read_process(process.pid)
    if now is None or now.start_ticks != process.start_ticks:
        return False
    then, names = process.environment, ("DDPLAUNCH_RUN_ID", "TORCHELASTIC_RUN_ID")
    if then is None or now.environment is None:  # not readable, as before
        return then is now.environment
    return all(then.get(name) == now.environment.get(name) for name in names) or not now.environment


def remaining(processes: Iterable[Process]) -> list[Process]:
    """Return those that still run, as they are now; a zombie does not."""
    left = []
    for process in processes:
        now = read_process(process.pid)
        if now is not None and now.start_ticks == process.start_ticks and now.alive:
            left.append(now)
    return left


def wait_gone(processes: Iterable[Process], deadline_s: float) -> list[Process]:
    """Wait until none of them runs, at most ``deadline_s`` seconds; return those that still do."""
    end = time.monotonic() + deadline_s
    left = remaining(processes)
    while left and time.monotonic() < end:
        time.sleep(_PAUSE_S)
        left = remaining(left)
    return left


_PIDFD_INFO = struct.Struct("=Q52xi")  # struct pidfd_info: the mask, what is not asked for, the status
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11  # _IOWR(0xFF, 11, struct pidfd_info)


class PinnedProcess:
    """One line of the process table. ``start`` is in clock ticks since boot, ``status`` as waitpid(2) gives it."""

    __slots__ = ("name", "parent", "pid", "session", "start", "state", "status")

    def __init__(self, pid: int, stat: bytes) -> None:
        """Parse ``stat``; the name in it may hold blanks and parentheses."""
        self.pid = pid
        opened, closed = stat.index(b"("), stat.rindex(b")")
        fields = stat[closed + 2 :].split()
        self.name = stat[opened + 1 : closed]
        self.state = fields[0].decode()
        self.parent, self.session = int(fields[1]), int(fields[3])
        self.start = int(fields[19])
        self.status = int(fields[49])

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie holds no GPU, no memory and no file."""
        return self.state not in "ZX"

    @property
    def started_s(self) -> float:
        """When it started, in seconds since the epoch, to a hundredth."""
        since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.time() - since_boot_s + self.start / os.sysconf("SC_CLK_TCK")


def process(pid: int) -> PinnedProcess | None:
    """Return one process, None if there is none of that number."""
    stat = read_bytes(f"/proc/{pid}/stat")
    return PinnedProcess(pid, stat) if stat else None


def own_processes() -> list[PinnedProcess]:
    """Return all processes of this user that still run."""
    uid = os.geteuid()
    found = []
    for entry in os.scandir("/proc"):
        try:
            if not entry.name.isdigit() or entry.stat().st_uid != uid:
                continue
        except OSError:
            continue
        if (one := process(int(entry.name))) and one.alive:
            found.append(one)
    return found


def command_line(pid: int) -> bytes:
    """Return the arguments with a NUL behind each; nothing for a zombie."""
    return read_bytes(f"/proc/{pid}/cmdline") or b""


def has_variable(pid: int, variable: bytes) -> bool:
    """Say whether it was started with ``variable`` (b"NAME=value") in its environment."""
    return variable in (read_bytes(f"/proc/{pid}/environ") or b"").split(b"\0")


def send_signal(target: PinnedProcess, number: int) -> bool:
    """Send a signal to exactly this process, never to one that got its number later; return whether it was there."""
    return send_pinned(target.pid, number, lambda: _is_same(target)) == "sent"


def _is_same(target: PinnedProcess) -> bool:
    now = process(target.pid)
    return now is not None and now.start == target.start


def status_of_reaped(handle: int) -> int | None:
    """Return the status (waitpid(2)) of the ended process behind a pidfd, though its parent has taken it already.

    Linux 6.15 and later keep it for whoever holds a pidfd (PIDFD_INFO_EXIT in linux/pidfd.h); None before that.
    """
    info = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(info, 0, _PIDFD_INFO_EXIT, 0)
    try:
        fcntl.ioctl(handle, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, status = _PIDFD_INFO.unpack_from(info)
    return status if mask & _PIDFD_INFO_EXIT else None


def make_room(name: str) -> None:
    """Call this process ``name`` (15 bytes at most) in process tables, and let it open as many files as it may."""
    import resource

    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(name)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
