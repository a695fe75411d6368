"""The processes of this machine with what marks a rank in their environment, from /proc; refuses to judge or to signal.

psutil is not used: a look at every process costs it five times as much, and it does not tell sessions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from ddplaunch.machine import files
from ddplaunch.machine.files import read_bytes
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.variables import SETTINGS

#: What torchelastic, deepspeed (CROSS_RANK, CROSS_SIZE, LOCAL_SIZE) and ddplaunch give to the processes they start.
#: https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/agent/server/local_elastic_agent.py
#: https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/launch.py
_MARKS = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "CROSS_RANK", "LOCAL_SIZE"}
    | {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "CUDA_VISIBLE_DEVICES"}
    | {"DDPLAUNCH_RUN_ID", "DDPLAUNCH_GLOBAL_BATCH_SIZE", SETTINGS, "DDPLAUNCH_DIR"}
)
_HINTS = (b"LOCAL_RANK=", b"TORCHELASTIC_RUN_ID=", b"DDPLAUNCH_RUN_ID=")
_KERNEL_THREADS = 2  # the parent of all of them


@dataclass(frozen=True)
class Process:
    """One process. ``start_ticks`` is field 22 of /proc/PID/stat (clock ticks since boot), which a pid that was given
    out again does not share. ``environment`` holds only what marks a launch; None where it may not be read.
    """

    pid: int
    parent: int
    session: int
    state: str  # R, S, D, T, Z …: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    start_ticks: int
    uid: int
    name: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None

    def mark(self, name: str) -> str | None:
        """Return a variable of the environment that it was started with."""
        return self.environment.get(name) if self.environment is not None else None

    @property
    def alive(self) -> bool:
        """Whether it still runs: a zombie holds nothing any more."""
        return self.state not in ("Z", "X")


Table = Mapping[int, Process]


def process_table(proc: str = "/proc") -> dict[int, Process]:
    """Return every process by pid, without kernel threads; one that vanishes while being read is left out."""
    found = {}
    for pid in _pids(proc):
        process = read_process(pid, proc)
        if process is not None and process.parent != _KERNEL_THREADS:
            found[pid] = process
    return found


def read_process(pid: int, proc: str = "/proc") -> Process | None:
    """Return one process as it is now, None if there is none."""
    folder = f"{proc}/{pid}"
    stat = read_bytes(f"{folder}/stat")
    if not stat:
        return None
    # the name in parentheses may hold blanks and parentheses itself
    name, _, rest = stat.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    try:
        uid = os.stat(folder).st_uid  # noqa: PTH116 - half the time
        return Process(
            pid=pid,
            parent=int(fields[1]),
            session=int(fields[3]),
            state=fields[0].decode(),
            start_ticks=int(fields[19]),
            uid=uid,
            name=name.decode(errors="replace"),
            command=_words(f"{folder}/cmdline"),
            environment=_marks(f"{folder}/environ"),
        )
    except (OSError, IndexError, ValueError):  # it went away, or /proc is not Linux's
        return None


def descendants(table: Table, roots: set[int]) -> set[int]:
    """Return the pids below ``roots``, without the roots themselves."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    left = list(roots)
    while left:
        for child in children.get(left.pop(), ()):
            if child not in found and child not in roots:
                found.add(child)
                left.append(child)
    return found


def ancestors(table: Table, pid: int) -> Iterator[Process]:
    """Yield the parent, its parent and so on, as far as they can be seen."""
    seen = {pid}
    process = table.get(pid)
    while process is not None and process.parent not in seen:
        seen.add(process.parent)
        process = table.get(process.parent)
        if process is not None:
            yield process


def start_s(start_ticks: int, proc: str = "/proc") -> float | None:
    """Return a start time in seconds since the epoch, None where /proc does not tell when the machine started."""
    uptime = (files.read(f"{proc}/uptime") or "").split()
    try:
        import time

        return time.time() - float(uptime[0]) + start_ticks / os.sysconf("SC_CLK_TCK")
    except (IndexError, ValueError, OSError):
        return None


def _pids(proc: str) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdecimal())  # noqa: PTH208 - half the time
    except OSError:
        return []


def _words(path: str) -> tuple[str, ...]:
    text = read_bytes(path) or b""
    return tuple(word.decode(errors="replace") for word in text.rstrip(b"\0").split(b"\0")) if text else ()


def _marks(path: str) -> dict[str, str] | None:
    text = read_bytes(path)
    if text is None:
        return None
    if not any(hint in text for hint in _HINTS):
        return {}
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in text.split(b"\0"))
    return {name: value for name, _, value in pairs if name in _MARKS}
