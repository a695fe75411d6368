"""Reads processes of this machine from /proc, one or all as a table, with the variables that mark ranks.

psutil is not used: for 334 processes it takes 160 ms and this module 43 ms, for the children of one process 54 and
21 ms, and its import adds 17 ms. It does not report sessions, and the guard, which runs without site-packages, cannot
import it.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from ddplaunch.machine.files import read_bytes
from ddplaunch.values.variable_names import LAUNCH, RUN_ID, SETTINGS
from ddplaunch.values.words import own_id

#: Variables that torchelastic and ddplaunch set for their processes.
#: https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/agent/server/local_elastic_agent.py
_MARKS = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
    | {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "CUDA_VISIBLE_DEVICES"}
    | {RUN_ID, LAUNCH, "DDPLAUNCH_GLOBAL_BATCH_SIZE", SETTINGS, "DDPLAUNCH_DIR"}
)
_HINTS = (b"LOCAL_RANK=", b"TORCHELASTIC_RUN_ID=", b"DDPLAUNCH_RUN_ID=")
_KERNEL_THREADS = 2  # pid of kthreadd, the parent of all kernel threads
_TICKS_PER_S = 100  # USER_HZ of every architecture for which torch is built
_EXITING = 0x4
_ENV_END = 51  # field of proc_pid_stat(5); 0 until execve(2) is done, or if this user may not read it
_EXEC_PATIENCE_S = 0.25
_MOST_DIGITS = 20  # int() refuses thousands of digits


class ProcessStat:
    """/proc/PID/stat of one process: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html.

    ``start_ticks`` (clock ticks since boot) distinguishes the process from a later one with the same pid.
    """

    __slots__ = ("_fields", "name", "parent", "pid", "session", "start_ticks", "state")

    def __init__(self, pid: int, line: bytes) -> None:
        """Parse ``line``. Raises ValueError or IndexError if it is not in Linux's format."""
        opened, closed = line.index(b"("), line.rindex(b")")  # the name between may contain spaces and parentheses
        self._fields = fields = line[closed + 2 :].split()
        self.pid, self.name = pid, line[opened + 1 : closed].decode(errors="replace")
        self.state = fields[0].decode()
        self.parent, self.session, self.start_ticks = int(fields[1]), int(fields[3]), int(fields[19])

    def field(self, number: int) -> int:
        """Return a field by its number in proc_pid_stat(5), where field 3 is the state."""
        return int(self._fields[number - 3])

    @property
    def alive(self) -> bool:
        """Whether the process still runs; a zombie holds no GPU, no memory and no file."""
        return self.state not in ("Z", "X")

    @property
    def stopped(self) -> bool:
        """Whether the process is stopped by a signal or a debugger."""
        return self.state in ("T", "t")

    @property
    def started_s(self) -> float:
        """The start time in seconds since the epoch, to a hundredth."""
        return start_s(self.start_ticks)

    @property
    def cpu_s(self) -> float:
        """CPU time of all threads of the process so far, in seconds."""
        return (self.field(14) + self.field(15)) / _TICKS_PER_S

    @property
    def children_cpu_s(self) -> float:
        """CPU time of the children that ended and were waited for, in seconds."""
        return (self.field(16) + self.field(17)) / _TICKS_PER_S

    @property
    def major_fault_bytes(self) -> int:
        """Bytes read from disk because the process touched pages that were not in memory."""
        return self.field(12) * mmap.PAGESIZE

    @property
    def threads(self) -> int:
        """The number of threads of the process."""
        return self.field(20)

    @property
    def rss_bytes(self) -> int:
        """The resident memory in bytes, shared pages included."""
        return self.field(24) * mmap.PAGESIZE

    @property
    def exit_status(self) -> int:
        """The exit status as waitpid(2) gives it; 0 if this user may not read it."""
        return self.field(52)


class Process(NamedTuple):  # not a dataclass: the guard reads this file too, see planning/settings.py
    """One process of a table. ``environment`` contains only the variables that mark a launch; None if unreadable."""

    pid: int
    parent: int
    session: int
    state: str
    start_ticks: int
    uid: int
    name: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None

    def mark(self, name: str) -> str | None:
        """Return a variable of the environment that the process was started with, or None."""
        return self.environment.get(name) if self.environment is not None else None

    def number(self, name: str) -> int | None:
        """Return a variable of that environment as a number; None if it is not a number, or absurdly long."""
        text = self.mark(name) or ""
        return int(text) if text.isdecimal() and len(text) < _MOST_DIGITS else None

    @property
    def alive(self) -> bool:
        """Whether the process still runs; a zombie holds no resources any more."""
        return self.state not in ("Z", "X")


ProcessTable = Mapping[int, Process]


def process_table(proc: str = "/proc") -> dict[int, Process]:
    """Return every process by pid, without kernel threads; a process that vanishes while being read is left out."""
    table = {}
    for pid in pids(proc):
        process = read_process(pid, proc)
        if process is not None and process.parent != _KERNEL_THREADS:
            table[pid] = process
    return table


def pids(proc: str = "/proc") -> list[int]:
    """Return all pids, in order."""
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdecimal())  # noqa: PTH208 - half the time
    except OSError:
        return []


def read_process(pid: int, proc: str = "/proc") -> Process | None:
    """Return one process as it is now, or None if it does not exist."""
    stat = read_stat(pid, proc)
    if stat is None:
        return None
    try:
        uid = os.stat(f"{proc}/{pid}").st_uid  # noqa: PTH116 - half the time
    except OSError:  # the process is gone
        return None
    command = tuple(word.decode(errors="replace") for word in read_command(pid, proc))
    parent, session, ticks = stat.parent, stat.session, stat.start_ticks
    marks = _marks(_started_with(pid, "environ", proc))
    return Process(pid, parent, session, stat.state, ticks, uid, stat.name, command, marks)


def read_stat(pid: int, proc: str = "/proc") -> ProcessStat | None:
    """Return the numbers in /proc/PID/stat, or None if there is no such process."""
    line = read_bytes(f"{proc}/{pid}/stat")
    try:
        return ProcessStat(pid, line) if line else None
    except (IndexError, ValueError):  # /proc is not in Linux's format
        return None


def is_ending(process: ProcessStat) -> bool:
    """Return whether a process that was read before is gone or exiting (PF_EXITING in linux/sched.h)."""
    now = read_stat(process.pid)
    return now is None or now.start_ticks != process.start_ticks or not now.alive or bool(now.field(9) & _EXITING)


def own_processes() -> list[ProcessStat]:
    """Return all processes of this user that still run."""
    uid = own_id()
    running = []
    for pid in pids():
        with suppress(OSError):  # the process has ended
            is_ours = os.stat(f"/proc/{pid}").st_uid == uid  # noqa: PTH116 - half the time
            if is_ours and (stat := read_stat(pid)) and stat.alive:
                running.append(stat)
    return running


def read_command(pid: int, proc: str = "/proc") -> tuple[bytes, ...]:
    """Return the words of the command line; none for a zombie."""
    text = _started_with(pid, "cmdline", proc)
    return tuple(text.rstrip(b"\0").split(b"\0")) if text else ()


def read_variable(pid: int, name: bytes, proc: str = "/proc") -> bytes | None:
    """Return a variable of the environment that the process was started with; None if unset or unreadable."""
    text = b"\0" + (_started_with(pid, "environ", proc) or b"")
    _, assignment, rest = text.partition(b"\0" + name + b"=")
    return rest.partition(b"\0")[0] if assignment else None


def _started_with(pid: int, name: str, proc: str) -> bytes | None:
    """Return the arguments or environment of a program's start; waits for a process that is in the middle of execve(2).

    The parent goes on once execve(2) has closed close-on-exec descriptors, and only then the kernel lays out arguments
    and environment (begin_new_exec and create_elf_tables in fs/binfmt_elf.c): until then both files are empty.
    """
    path, until_s = f"{proc}/{pid}/{name}", 0.0
    while (text := read_bytes(path)) == b"":
        stat, now_s = read_stat(pid, proc), time.monotonic()
        until_s = until_s or now_s + _EXEC_PATIENCE_S
        if stat is None or not _is_executing(stat) or now_s > until_s:
            break
        time.sleep(0.001)
    return text


def _is_executing(stat: ProcessStat) -> bool:
    if stat.pid == _KERNEL_THREADS or stat.parent == _KERNEL_THREADS or not stat.alive:
        return False
    with suppress(IndexError):  # missing in kernels before 3.5
        return not stat.field(9) & _EXITING and stat.field(_ENV_END) == 0
    return False


def starved_s(task: int | str) -> float:
    """Return the seconds that a process's main thread, or a thread ``PID/task/TID``, has waited for a CPU so far."""
    fields = (read_bytes(f"/proc/{task}/schedstat") or b"").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def io_bytes_of(task: int | str) -> int:
    """Return the bytes that a process, or a thread ``PID/task/TID``, has read and written (rchar + wchar)."""
    lines = (read_bytes(f"/proc/{task}/io") or b"").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"rchar:", b"wchar:")))


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, from proc_pid_status(5)."""
    mask = (read_bytes(f"/proc/{pid}/status") or b"").partition(b"\nSigCgt:")[2].split()[:1]
    return mask != [] and int(mask[0], 16) >> (number - 1) & 1 == 1


def descendants(table: ProcessTable, roots: set[int]) -> set[int]:
    """Return the pids of all descendants of ``roots``, without the roots."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    below: set[int] = set()
    to_visit = list(roots)
    while to_visit:
        for child in children.get(to_visit.pop(), ()):
            if child not in below and child not in roots:
                below.add(child)
                to_visit.append(child)
    return below


def ancestors(table: ProcessTable, pid: int) -> Iterator[Process]:
    """Yield the parent, its parent and so on, as far as the table contains them."""
    visited = {pid}
    process = table.get(pid)
    while process is not None and process.parent not in visited:
        visited.add(process.parent)
        process = table.get(process.parent)
        if process is not None:
            yield process


def start_s(start_ticks: int) -> float:
    """Return the time of ``start_ticks`` (clock ticks since boot) in seconds since the epoch."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + start_ticks / _TICKS_PER_S


def _marks(text: bytes | None) -> dict[str, str] | None:
    if text is None:
        return None
    if not any(hint in text for hint in _HINTS):
        return {}
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in text.split(b"\0"))
    return {name: value for name, _, value in pairs if name in _MARKS}


def is_written(path: str | os.PathLike[str]) -> bool:
    """Return whether a process that this user may inspect has the file open for writing, as `tee` would."""
    import psutil

    real = os.path.realpath(path)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(file.path == real and file.mode != "r" for file in process.open_files()):
                return True
    return False
