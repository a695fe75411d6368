"""The processes that a record names: those of each node, and the launcher of a run on other hosts; which are alive.

A node's processes are in ``node-K/processes.json``, a launcher that stays on this machine is in ``launcher.json``. Such
a launcher keeps ``runs/ID/launcher.json`` open while it lives: it has no ranks below it, and its environment does not
name the run, so only the open file connects the process with the run ID.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ddplaunch.machine.files import boot_id, open_plain
from ddplaunch.machine.processes.process_table import Process, ProcessTable, ancestors, read_process
from ddplaunch.machine.processes.run_processes import RunProcesses, is_launcher
from ddplaunch.records.find import numbered
from ddplaunch.records.json_files import as_number, read_object, replace_file
from ddplaunch.values.codec import from_plain, plain
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.variable_names import RUN_ID

FILE = "launcher.json"
_GRACE_S = 30.0


@dataclass(frozen=True)
class Place:
    """One host of a run: its node rank, its name for ssh, its Python interpreter, and the run's directory there.

    ``clock_ahead_s`` is how far its clock is ahead of the launcher's. ``record`` is empty in notes of earlier versions.
    """

    node: int
    host: str
    python: str
    record: str = ""
    clock_ahead_s: float = 0.0


@dataclass(frozen=True)
class Launched:
    """A launcher's note on itself. ``pid`` is only valid on ``host``, in the boot ``boot_id``.

    ``start_ticks`` is as in ``Process``; ``grace_s`` is how many seconds ranks get to end; ``launch`` is the token that
    identifies the launch's processes on every host; ``begun_s`` is when the launch began.
    """

    run_id: str
    directory: Path
    host: str
    boot_id: str
    pid: int
    start_ticks: int
    places: tuple[Place, ...]
    grace_s: float = _GRACE_S
    launch: str = ""
    begun_s: float = 0.0


def launched_by_me(
    directory: Path,
    run_id: str,
    places: Sequence[Place],
    grace_s: float,
    launch: str,
    begun_s: float,
) -> Launched:
    """Return the note of this process as the launcher of a run."""
    me = read_process(os.getpid())
    start = me.start_ticks if me is not None else 0
    identity = (os.uname().nodename, boot_id() or "", os.getpid(), start)
    return Launched(run_id, directory, *identity, tuple(places), grace_s, launch, begun_s)


@contextmanager
def holding(launched: Launched) -> Iterator[None]:
    """Write the launcher's note and keep it open during the block; if it cannot be written, go on without.

    Children do not inherit the open file.
    """
    with suppress(OSError):
        _write(launched)
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(open(open_plain(launched.directory / FILE), "rb"))
        yield


def _write(launched: Launched) -> None:
    data = {
        "schema": 1,
        "run_id": launched.run_id,
        "launch": launched.launch,
        "host": launched.host,
        "boot_id": launched.boot_id,
        "launcher": {"pid": launched.pid, "start_time": launched.start_ticks},
        "grace_s": launched.grace_s,
        "begun_s": launched.begun_s,
        "nodes": plain(launched.places),
    }
    replace_file(launched.directory / FILE, json.dumps(data) + "\n")


def read_launched(directory: Path) -> Launched | None:
    """Return the note of the launcher of a run over several hosts; None if there is none or it cannot be read."""
    try:
        data = read_object(directory / FILE)
        launcher = from_plain(data.get("launcher"), RecordedProcess)
        return Launched(
            str(data["run_id"]),
            directory,
            str(data["host"]),
            str(data["boot_id"]),
            launcher.pid,
            launcher.start_time,
            from_plain(data.get("nodes"), tuple[Place, ...]),
            as_number(data.get("grace_s")) or _GRACE_S,
            str(data.get("launch", "")),
            as_number(data.get("begun_s")) or 0.0,
        )
    except (OSError, ValueError, KeyError):
        return None


def is_of_launch(directory: Path, token: str) -> bool:
    """Return whether this launch's note is in ``directory``: then this host shares the launcher's file system."""
    launched = read_launched(directory)
    return launched is not None and launched.launch == token


def launcher_of(launched: Launched, table: ProcessTable, boot: str | None, host: str) -> Process | None:
    """Return the launcher if it is alive: host, boot, pid and start time match, and it holds this run's file open.

    Otherwise None; also for another user's process that may not be inspected.
    """
    process = table.get(launched.pid)
    if process is None or not process.alive:
        return None
    if (launched.host, launched.boot_id, launched.start_ticks) != (host, boot, process.start_ticks):
        return None
    return process if launched.directory.resolve() in _held(process.pid) else None


def residents_in(table: ProcessTable, host: str) -> tuple[tuple[Launched, Process], ...]:
    """Return the launchers of multi-host runs that live on this machine, wherever their records are; newest first.

    Only root finds those of other users.
    """
    boot = boot_id()
    residents = []
    for process in table.values():
        if is_launcher(process):
            residents += [
                (launched, process)
                for directory in _held(process.pid)
                if (launched := read_launched(directory)) is not None
                and launched.pid == process.pid
                and launcher_of(launched, table, boot, host) is not None
            ]
    return tuple(sorted(residents, key=lambda pair: -pair[1].start_ticks))


def _held(pid: int) -> list[Path]:
    """Return the directories whose ``launcher.json`` the process has open."""
    directories = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with suppress(OSError):
                path = Path(os.readlink(f"/proc/{pid}/fd/{name}"))  # noqa: PTH115
                if path.name == FILE:
                    directories.add(path.parent)
    return sorted(directories)


def held_by(process: Process) -> Path | None:
    """Return the record of the run that this process launched, or None."""
    return next(iter(_held(process.pid)), None) if is_launcher(process) else None


def with_residents(
    alive: Sequence[RunProcesses], residents: Sequence[tuple[Launched, Process]]
) -> tuple[RunProcesses, ...]:
    """Return the runs, including those whose launcher lives here, each merged with its other processes here."""
    rest, joined = list(alive), []
    for launched, process in residents:
        run = RunProcesses(launched.run_id, process.uid, (process,), launch=launched.launch)
        key = run.run_id, run.uid, run.launch
        for same in [part for part in rest if (part.run_id, part.uid, part.launch) == key]:
            rest.remove(same)
            run = replace(
                run,
                launchers=(*run.launchers, *(each for each in same.launchers if each.pid != process.pid)),
                ranks=(*run.ranks, *same.ranks),
                children=(*run.children, *same.children),
                guards=(*run.guards, *same.guards),
            )
        joined.append(run)
    return (*joined, *rest)


# Processes on this machine that a record names


@dataclass(frozen=True)
class RecordedProcess:
    """One process as a record names it: ``start_time`` is its ``start_ticks``; ``rank`` is None if it is not a rank."""

    pid: int
    start_time: int
    rank: int | None = None


@dataclass(frozen=True)
class NodeProcesses:
    """``node-K/processes.json``: what ran on one node. Pids are only valid on ``host``, in the boot ``boot_id``."""

    node: int
    run_id: str | None
    host: str
    boot_id: str
    launcher: RecordedProcess | None
    attempt: int = 0
    ranks: tuple[RecordedProcess, ...] = ()


def read_processes(directory: Path, without: Container[int] = ()) -> tuple[NodeProcesses, ...]:
    """Return the recorded processes of each node, ``without`` some nodes; unreadable or newer files are skipped."""
    nodes = []
    for node, folder in numbered(directory, "node"):
        if node not in without:
            with suppress(OSError, ValueError):
                nodes.append(from_plain({**read_object(folder / "processes.json"), "node": node}, NodeProcesses))
    return tuple(nodes)


def still_running(
    recorded: RecordedProcess | None, node: NodeProcesses, table: ProcessTable, boot: str | None
) -> Process | None:
    """Return the recorded process if it is alive: boot, pid, start time and run ID all match; otherwise None.

    A pid alone is not enough, because pids are reused. The run ID is read from the environment of the process or, if
    that was overwritten, of an ancestor.
    """
    if recorded is None or boot is None or node.boot_id != boot:
        return None
    process = table.get(recorded.pid)
    if process is None or not process.alive or process.start_ticks != recorded.start_time:
        return None
    named = process.mark(RUN_ID)
    if process.environment == {}:  # setproctitle overwrites the environment with its title
        named = next((mark for ancestor in ancestors(table, process.pid) if (mark := ancestor.mark(RUN_ID))), None)
    return process if named == node.run_id else None
