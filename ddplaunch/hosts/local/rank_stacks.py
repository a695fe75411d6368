"""Where ranks of this machine are now: a signal makes each rank write its own stacks.

The signal is sent only to a process that catches it and holds the memory to write into, see
``ddplaunch.agent.rank_site``: it would kill any other process.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from ddplaunch.explain.stacks.parse import (
    RankStack,
    ThreadStack,
    from_faulthandler,
    place_of,
    waits_for_program,
)
from ddplaunch.machine.files import read_bytes
from ddplaunch.machine.processes.process_table import ProcessStat, catches, pids, read_stat
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable

#: As in ``ddplaunch/agent/rank_site/sitecustomize.py``, which imports nothing of this package and is not imported here.
MEMORY = "ddplaunch-stacks"
SIGNAL = int(signal.SIGRTMAX) - 6
_ANSWER_S = 2.0
_STABLE_S = 0.25
_PAUSE_S = 0.005
_AT_ONCE = 16
_WORKERS = 8
#: The last line of a complete dump: the bottom of the main thread's stack.
_BOTTOM = re.compile(r" in (?:<module>|_run_module_as_main)\n\Z")
#: read, pread64, readv, recvfrom, recvmsg as numbered in /proc/PID/syscall; their first argument is a descriptor.
_READING = {"x86_64": ("0", "17", "19", "45", "47"), "aarch64": ("63", "67", "65", "207", "212")}
_NOT_ASKED = "it does not answer the signal (`--no-stacks`, or no Python)"


@dataclass(frozen=True)
class LiveRank:
    """A rank's process: ``start_ticks`` (field 22 of /proc/PID/stat) tells it from a later process of the same pid."""

    rank: int
    pid: int
    start_ticks: int


def take_stacks(ranks: Sequence[LiveRank]) -> tuple[RankStack, ...]:
    """Return where each of these ranks is, in their order; takes a few seconds at most, many ranks at once."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(pool.map(_stack, ranks))


def with_workers(stacks: Sequence[RankStack]) -> tuple[RankStack, ...]:
    """Return ``stacks`` together with those of the DataLoader workers, or of the programs, that ranks wait for."""
    if not any(map(_waits_below, stacks)):
        return tuple(stacks)
    stats = _stats()

    def of(stack: RankStack) -> RankStack:
        if not _waits_below(stack):
            return stack
        children = [LiveRank(-1, stat.pid, stat.start_ticks) for stat in stats if stat.parent == stack.pid]
        return replace(stack, workers=tuple(map(_stack, children[:_WORKERS])))

    return tuple(of(stack) for stack in stacks)


def _stats() -> list[ProcessStat]:
    """Return all live processes, the oldest first."""
    stats = [stat for pid in pids() if (stat := read_stat(pid)) and stat.alive]
    return sorted(stats, key=lambda stat: (stat.start_ticks, stat.pid))


def _waits_below(stack: RankStack) -> bool:
    return place_of(stack).kind == "loader" or waits_for_program(stack)


def open_memory(pid: int) -> tuple[int, int] | None:
    """Return the pid of rank ``pid``'s interpreter and a descriptor of the memory in which it counts; else None.

    The interpreter is the rank itself, or a process started by a shell script that is the rank. The memory's first 16
    bytes are the numbers of optimizer steps and of batches, in the machine's byte order.
    """
    for candidate in chain((pid,), _in_session(pid)):
        with suppress(OSError):
            if (memory := _memory(candidate)) is not None:
                return candidate, memory
    return None


def _in_session(pid: int) -> Iterator[int]:
    yield from (stat.pid for stat in _stats() if stat.session == pid)


def _stack(rank: LiveRank) -> RankStack:
    stat = read_stat(rank.pid)
    empty = RankStack(rank.rank, rank.pid)
    if stat is None or stat.start_ticks != rank.start_ticks or not stat.alive:
        return replace(empty, state="X", problem="it has ended")
    python = _python_process(rank.pid)
    stack = replace(
        empty,
        pid=python,
        state=(read_stat(python) or stat).state,
        kernel=_kernel(python),
        reads=_reads(python),
    )
    if stack.state in ("T", "t"):
        threads: tuple[ThreadStack, ...] | Unavailable = Unavailable("it is stopped")
    else:
        threads = _by_signal(python, rank.start_ticks if python == rank.pid else None)
    if isinstance(threads, Unavailable):
        return replace(stack, problem=threads.reason, programs=_below(rank.pid))
    return replace(stack, threads=threads, source="faulthandler")


def _by_signal(pid: int, start_ticks: int | None) -> tuple[ThreadStack, ...] | Unavailable:
    """Send the signal and return the stacks that faulthandler then writes, or why there are none."""
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        return Unavailable("it has ended" if isinstance(error, ProcessLookupError) else f"pidfd: {error.strerror}")
    try:
        memory = _memory(pid)
        if memory is None or not catches(pid, SIGNAL):
            return Unavailable(_NOT_ASKED)
        if start_ticks is not None and ((stat := read_stat(pid)) is None or stat.start_ticks != start_ticks):
            return Unavailable("it has ended")
        try:
            size_before = os.fstat(memory).st_size
            signal.pidfd_send_signal(handle, SIGNAL)
            text = _answer(memory, size_before)
        finally:
            os.close(memory)
    except PermissionError:
        return Unavailable("it belongs to another user")
    except OSError as error:
        return Unavailable(f"it did not answer: {error.strerror}")
    finally:
        os.close(handle)
    threads = from_faulthandler(text)
    return threads if threads else Unavailable("it did not answer: no thread of it returned from the kernel")


def _answer(memory: int, size_before: int) -> str:
    until_s = time.monotonic() + _ANSWER_S
    text, grown_s = "", time.monotonic()
    while (now_s := time.monotonic()) < until_s:
        size = os.fstat(memory).st_size - size_before
        if size > len(text):
            text = os.pread(memory, size, size_before).decode("ascii", "replace")  # faulthandler writes ASCII only
            grown_s = now_s
        if _BOTTOM.search(text) or (text and now_s - grown_s > _STABLE_S):
            break
        time.sleep(_PAUSE_S)
    return text


def _memory(pid: int) -> int | None:
    """Return a descriptor of the memory into which the process writes its stacks, None if it has none."""
    folder = f"/proc/{pid}/fd"
    for name in sorted(os.listdir(folder), key=int, reverse=True):  # noqa: PTH208
        try:
            if f"/memfd:{MEMORY}" in os.readlink(f"{folder}/{name}"):  # noqa: PTH115
                return os.open(f"{folder}/{name}", os.O_RDONLY)
        except FileNotFoundError:
            continue
    return None


def _python_process(pid: int) -> int:
    opened = open_memory(pid)
    if opened is None:
        return pid
    os.close(opened[1])
    return opened[0]


def _kernel(pid: int) -> str:
    """Return the kernel function in which the main thread waits; https://man7.org/linux/man-pages/man5/proc.5.html."""
    text = (read_bytes(f"/proc/{pid}/wchan") or b"").decode("ascii", "replace").strip("\0\n")
    return "" if text == "0" else text


def _reads(pid: int) -> str:
    """Return the file from which the main thread reads now; empty if it reads none or the kernel does not tell."""
    words = (read_bytes(f"/proc/{pid}/syscall") or b"").split()
    if len(words) < 2 or words[0].decode() not in _READING.get(os.uname().machine, ()):
        return ""
    try:
        return os.readlink(f"/proc/{pid}/fd/{int(words[1], 16)}")  # noqa: PTH115
    except (OSError, ValueError):
        return ""


def _below(pid: int) -> tuple[int, ...]:
    """Return the descendants of ``pid``."""
    family = {pid}
    for stat in _stats():
        if stat.parent in family:
            family.add(stat.pid)
    return tuple(sorted(family - {pid}))
