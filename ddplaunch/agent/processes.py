"""Processes as /proc shows them, and signals that cannot reach a stranger; refuses to choose whom to end.

Fields are those of proc_pid_stat(5): https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html.
"""

from __future__ import annotations

import os
import signal
import time


class Process:
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


def _read(path: str) -> bytes | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = b""
        while more := os.read(file, 1 << 16):
            data += more
        return data
    except OSError:  # the process ended while it was read
        return None
    finally:
        os.close(file)


def process(pid: int) -> Process | None:
    """Return one process, None if there is none of that number."""
    stat = _read(f"/proc/{pid}/stat")
    return Process(pid, stat) if stat else None


def own_processes() -> list[Process]:
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
    return _read(f"/proc/{pid}/cmdline") or b""


def has_variable(pid: int, variable: bytes) -> bool:
    """Say whether it was started with ``variable`` (b"NAME=value") in its environment."""
    return variable in (_read(f"/proc/{pid}/environ") or b"").split(b"\0")


def send_signal(target: Process, number: int) -> bool:
    """Send a signal to exactly this process, never to one that got its number later; return whether it was there."""
    try:
        handle = os.pidfd_open(target.pid)
    except OSError:
        return False
    try:
        now = process(target.pid)
        if now is None or now.start != target.start:
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def boot_id() -> str:
    """Return what tells this boot of this machine from all others; "" where the kernel does not say."""
    return (_read("/proc/sys/kernel/random/boot_id") or b"").decode().strip()


def make_room(name: str) -> None:
    """Call this process ``name`` (15 bytes at most) in process tables, and let it open as many files as it may."""
    import resource

    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(name)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
