"""What ranks and what they started have used so far, from /proc; refuses to judge whether that is much."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from ddplaunch.agent.movement import Usage
from ddplaunch.agent.processes import own_processes
from ddplaunch.probes.proc import read_bytes

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def usage(pids: Mapping[int, int]) -> Usage:
    """Return what each rank of ``pids`` (rank to pid), and what is in its session, has used since it started.

    CPU time counts that of children that have ended, and the time in which a busy machine let the main thread wait for
    a CPU: proc_pid_stat(5) fields 12 and 14 to 17, https://docs.kernel.org/scheduler/sched-stats.html. Bytes are those
    of proc_pid_io(5) and the pages that had to be fetched.
    """
    ranks = {pid: rank for rank, pid in pids.items()}
    cpu_s = dict.fromkeys(pids, 0.0)
    io_bytes = dict.fromkeys(pids, 0)
    for one in own_processes():
        rank = ranks.get(one.session, ranks.get(one.pid))
        if rank is not None:
            used_s, faults = _cpu_s(one.pid)
            cpu_s[rank] += used_s + _starved_s(one.pid)
            io_bytes[rank] += _io_bytes(one.pid) + faults * _PAGE_BYTES
    return Usage(time.monotonic(), cpu_s, io_bytes)


def uses_gpu(pid: int) -> bool:
    """Return whether the process has an NVIDIA device open."""
    folder = f"/proc/{pid}/fd"
    try:
        return any(
            os.readlink(f"{folder}/{name}").startswith("/dev/nvidia")  # noqa: PTH115
            for name in os.listdir(folder)  # noqa: PTH208
        )
    except OSError:
        return False


def _cpu_s(pid: int) -> tuple[float, int]:
    """Return CPU seconds and major faults."""
    fields = (read_bytes(f"/proc/{pid}/stat") or b"").rpartition(b")")[2].split()
    return (sum(map(int, fields[11:15])) / _TICKS_PER_S, int(fields[9])) if len(fields) > 15 else (0.0, 0)


def _starved_s(pid: int) -> float:
    fields = (read_bytes(f"/proc/{pid}/schedstat") or b"").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def _io_bytes(pid: int) -> int:
    found = 0
    for line in (read_bytes(f"/proc/{pid}/io") or b"").splitlines():
        if line.startswith((b"rchar:", b"wchar:")):
            found += int(line.split()[1])
    return found
