"""The launchers that stay on this machine while their run is on other hosts (``launcher.json``).

Such a launcher keeps ``runs/ID/launcher.json`` open as long as it lives. No ranks run below it, and its environment
says nothing of the run, so that open file is what ties the process to the run id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.machine.files import boot_id
from ddplaunch.machine.processes.process_table import Process, ProcessTable, read_process
from ddplaunch.machine.processes.run_processes import RunProcesses, is_launcher
from ddplaunch.records.json_files import read_object, replace_file
from ddplaunch.values.frozen import dataclass

FILE = "launcher.json"
_GRACE_S = 30.0


@dataclass(frozen=True)
class Place:
    """One host of a run: its node rank, what ssh is given, and the interpreter there."""

    node: int
    host: str
    python: str


@dataclass(frozen=True)
class Launched:
    """What a launcher noted of itself. ``pid`` means something on ``host`` in the boot ``boot_id`` only.

    ``start_ticks`` is as in ``Process``; ``grace_s`` is how long it lets ranks take to end, in seconds.
    """

    run_id: str
    directory: Path
    host: str
    boot_id: str
    pid: int
    start_ticks: int
    places: tuple[Place, ...]
    grace_s: float = _GRACE_S


@contextmanager
def holding(directory: Path, run_id: str, places: Sequence[Place], grace_s: float) -> Iterator[None]:
    """Note this process as the launcher of a run, and hold the note open meanwhile; without a disk go on unnoted."""
    descriptor = None
    with suppress(OSError):
        descriptor = _write(directory, run_id, places, grace_s)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def still_holding(directory: Path | None) -> Iterator[None]:
    """Hold the note of a run open that has ended on its hosts: `ps` and `stop` find who is about to launch it again."""
    descriptor = None
    with suppress(OSError):
        descriptor = None if directory is None else os.open(directory / FILE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _write(directory: Path, run_id: str, places: Sequence[Place], grace_s: float) -> int:
    """Return a descriptor of the file; children do not inherit it."""
    me = read_process(os.getpid())
    data = {
        "schema": 1,
        "run_id": run_id,
        "host": os.uname().nodename,
        "boot_id": boot_id(),
        "launcher": {"pid": os.getpid(), "start_time": me.start_ticks if me is not None else None},
        "grace_s": grace_s,
        "nodes": [{"node": each.node, "host": each.host, "python": each.python} for each in places],
    }
    replace_file(directory / FILE, json.dumps(data) + "\n")
    return os.open(directory / FILE, os.O_RDONLY | os.O_CLOEXEC)


def read_launched(directory: Path) -> Launched | None:
    """Return what the launcher of a run over several hosts noted, None where there is none or it cannot be read."""
    try:
        data = read_object(directory / FILE)
        launcher, nodes = data["launcher"], data["nodes"]
        return Launched(
            run_id=str(data["run_id"]),
            directory=directory,
            host=str(data["host"]),
            boot_id=str(data["boot_id"]),
            pid=int(launcher["pid"]),
            start_ticks=int(launcher["start_time"]),
            places=tuple(_place(each) for each in nodes),
            grace_s=float(data.get("grace_s", _GRACE_S)),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _place(node: Mapping[str, Any]) -> Place:
    return Place(int(node["node"]), str(node["host"]), str(node["python"]))


def launcher_of(launched: Launched, table: ProcessTable, boot: str | None, host: str) -> Process | None:
    """Return the launcher if it still lives: host, boot, pid and start time agree, and it holds this run's file open.

    None otherwise, and where another user's process may not be looked at.
    """
    process = table.get(launched.pid)
    if process is None or not process.alive or boot is None:
        return None
    if (launched.host, launched.boot_id, launched.start_ticks) != (host, boot, process.start_ticks):
        return None
    return process if _holds(process.pid, launched.directory / FILE) else None


def _holds(pid: int, path: Path) -> bool:
    with suppress(OSError):
        wanted = path.stat()
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - half the time
            with suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), wanted):  # noqa: PTH116
                    return True
    return False


def residents_in(table: ProcessTable, host: str, boot: str | None = None) -> tuple[tuple[Launched, Process], ...]:
    """Return the launchers of runs on several hosts that live here, wherever their records are; the youngest first.

    Those of other users are found by root alone.
    """
    boot = boot or boot_id()
    found = []
    for process in table.values():
        if process.alive and is_launcher(process):
            found += [
                (launched, process)
                for directory in _held(process.pid)
                if (launched := read_launched(directory)) is not None
                and launched.pid == process.pid
                and launcher_of(launched, table, boot, host) is not None
            ]
    return tuple(sorted(found, key=lambda pair: -pair[1].start_ticks))


def _held(pid: int) -> list[Path]:
    """Return the directories whose ``launcher.json`` the process has open."""
    found = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with suppress(OSError):
                path = Path(os.readlink(f"/proc/{pid}/fd/{name}"))  # noqa: PTH115
                if path.name == FILE:
                    found.add(path.parent)
    return sorted(found)


def held_by(process: Process) -> Path | None:
    """Return the record of the run that this process is the launcher of, None if it holds none."""
    return next(iter(_held(process.pid)), None) if is_launcher(process) else None


def with_residents(
    alive: Sequence[RunProcesses], residents: Sequence[tuple[Launched, Process]]
) -> tuple[RunProcesses, ...]:
    """Return the runs together with those whose launcher lives here; what else lives here of one joins it."""
    left, joined = list(alive), []
    for launched, process in residents:
        run = RunProcesses(launched.run_id, process.uid, (process,))
        for same in [each for each in left if (each.run_id, each.uid) == (run.run_id, run.uid)]:
            left.remove(same)
            run = replace(
                run,
                launchers=(*run.launchers, *(each for each in same.launchers if each.pid != process.pid)),
                ranks=(*run.ranks, *same.ranks),
                children=(*run.children, *same.children),
                guards=(*run.guards, *same.guards),
            )
        joined.append(run)
    return (*joined, *left)
