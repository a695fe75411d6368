"""Finds the processes of a table whose launcher is gone, and the files of /dev/shm that processes hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from ddplaunch.machine import files
from ddplaunch.machine.processes.process_table import Process, ProcessTable, descendants
from ddplaunch.machine.processes.run_processes import is_guard, is_launcher, rank_of
from ddplaunch.values.frozen import dataclass

#: Programs that adopt orphans without being process 1 (PR_SET_CHILD_SUBREAPER, prctl(2)).
_ADOPTERS = (
    "systemd",
    "init",
    "tini",
    "docker-init",
    "dumb-init",
    "catatonit",
    "conmon",
    "containerd-shim",
    "s6-svscan",
)


@dataclass(frozen=True)
class Orphans:
    """What one dead launcher left: ``ranks`` whose parent is whoever adopts orphans, and everything below them."""

    run_id: str  # ddplaunch's, else torchelastic's, which is "none" unless somebody names it
    kind: str  # "ddplaunch", "torchrun", "deepspeed"
    processes: tuple[Process, ...]


def orphans_in(table: ProcessTable, adopts: Callable[[Process], bool]) -> tuple[Orphans, ...]:
    """Return what dead launchers left, by run. ``adopts`` tells whether a parent is one that adopts orphans.

    In doubt a process is no orphan: it has to be a Python process that torchelastic or deepspeed started, adopted by
    somebody who is no launcher, and no rank of the same run may have its launcher still. A terminal multiplexer or
    another program that a rank started and detached is left alone; a Python server cannot be told from an orphan.
    """
    roots: dict[tuple[int, str, str, str], list[Process]] = {}
    looked_after: set[tuple[int, str, str, str]] = set()
    for process in table.values():
        if (
            (run_id := process.mark("DDPLAUNCH_RUN_ID"))
            and process.alive
            and (is_launcher(process) or is_guard(process))
        ):
            looked_after.add((process.uid, "ddplaunch", run_id, ""))
        key = _run_key(process)
        if key is None or not process.alive:
            continue
        parent = table.get(process.parent)
        if parent is None or (not is_launcher(parent) and adopts(parent)):
            if parent is not None or process.parent in (0, 1):
                roots.setdefault(key, []).append(process)
        elif is_launcher(parent):
            looked_after.add(key)
    return tuple(
        _orphans(key, found, table)
        for key, found in sorted(roots.items())
        if key not in looked_after and _python(found)
    )


def _run_key(process: Process) -> tuple[int, str, str, str] | None:
    """Return user, kind, run id and port of the rank or DataLoader worker that this is, None if it is neither."""
    if process.mark("LOCAL_RANK") is None or is_launcher(process):
        return None
    port = process.mark("MASTER_PORT") or ""
    elastic = process.mark("TORCHELASTIC_RUN_ID")
    if elastic is not None:
        ours = process.mark("DDPLAUNCH_RUN_ID")
        return (process.uid, "ddplaunch", ours, "") if ours else (process.uid, "torchrun", elastic, port)
    if process.mark("CROSS_RANK") is not None and process.mark("LOCAL_SIZE") is not None:
        return (process.uid, "deepspeed", "none", port)
    return None


def _python(processes: Iterable[Process]) -> list[Process]:
    return [process for process in processes if _is_python(process)]


def _is_python(process: Process) -> bool:
    program = process.command[0].rpartition("/")[2] if process.command else process.name
    return program.startswith(("python", "pypy", "pt_"))


def _orphans(key: tuple[int, str, str, str], roots: list[Process], table: ProcessTable) -> Orphans:
    pids = {process.pid for process in _python(roots)}
    pids |= descendants(table, pids)
    processes = [table[pid] for pid in pids if table[pid].uid == key[0] and table[pid].alive]
    return Orphans(
        key[2], key[1], tuple(sorted(processes, key=lambda process: (process.pid != process.session, rank_of(process))))
    )


def adopts_orphans(process: Process, proc: str = "/proc") -> bool:
    """Return whether orphans are given to this process: init, here or of a container, or a known subreaper.

    One that has loaded torch is a launcher of somebody's own making instead, also where it is process 1 of a container.
    """
    innermost = next(
        (
            line.split()[-1]
            for line in (files.read(f"{proc}/{process.pid}/status") or "").splitlines()
            if line[:5] == "NSpid"
        ),
        "",
    )
    if process.pid != 1 and innermost != "1" and not process.name.startswith(_ADOPTERS):
        return False
    return "libtorch" not in (files.read(f"{proc}/{process.pid}/maps") or "")


FOLDER = "/dev/shm/"
_DELETED = " (deleted)"


@dataclass(frozen=True)
class Segment:
    """One file of /dev/shm. ``named`` is False where only processes still hold it, and their end frees it."""

    path: str
    size_bytes: int
    named: bool
    holders: tuple[int, ...]


def held_segments(pids: Iterable[int], proc: str = "/proc") -> tuple[Segment, ...]:
    """Return what these processes hold there, each file once; a process that may not be looked into holds nothing."""
    sizes: dict[tuple[str, bool], int] = {}
    holders: dict[tuple[str, bool], set[int]] = {}
    for pid in pids:
        for path, size_bytes in [*_mapped(f"{proc}/{pid}/maps"), *_opened(f"{proc}/{pid}/fd")]:
            named = not path.endswith(_DELETED)
            key = (path.removesuffix(_DELETED), named)
            sizes[key] = max(sizes.get(key, 0), size_bytes)
            holders.setdefault(key, set()).add(pid)
    return tuple(
        Segment(path, sizes[path, named], named, tuple(sorted(holders[path, named]))) for path, named in sorted(sizes)
    )


def _mapped(path: str) -> list[tuple[str, int]]:
    """Return names and lengths in /proc/PID/maps, https://man7.org/linux/man-pages/man5/proc_pid_maps.5.html."""
    found = []
    try:
        with open(path, errors="surrogateescape") as lines:
            for line in lines:
                if FOLDER in line:
                    bounds, *_, name = line.rstrip("\n").split(maxsplit=5)
                    low, _, high = bounds.partition("-")
                    if name.startswith(FOLDER):
                        found.append((name, int(high, 16) - int(low, 16)))
    except (OSError, ValueError):
        pass
    return found


def _opened(folder: str) -> list[tuple[str, int]]:
    found = []
    try:
        for name in os.listdir(folder):  # noqa: PTH208 - a process may have thousands
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115
            if target.startswith(FOLDER):
                found.append((target, os.stat(f"{folder}/{name}").st_size))  # noqa: PTH116
    except OSError:  # it closed the file, ended, or belongs to somebody else
        pass
    return found
