"""The processes that a record names: those of each node, and the launcher of a run on other hosts; which still live.

A node's are in ``node-K/processes.json``, the launcher that stays on this machine is in ``launcher.json``.
Such a launcher keeps ``runs/ID/launcher.json`` open as long as it lives. No ranks run below it, and its environment
says nothing of the run, so that open file is what ties the process to the run id.
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
    """One host of a run: its node rank, what ssh is given, the interpreter there, and the run's directory there.

    ``clock_ahead_s`` is how far its clock is before the launcher's. Notes of earlier versions do not say the directory.
    """

    node: int
    host: str
    python: str
    record: str = ""
    clock_ahead_s: float = 0.0


@dataclass(frozen=True)
class Launched:
    """What a launcher noted of itself. ``pid`` means something on ``host`` in the boot ``boot_id`` only.

    ``start_ticks`` is as in ``Process``; ``grace_s`` is how long it lets ranks take to end, in seconds.
    ``launch`` is the token by which its processes are known on every host. ``begun_s`` is when the launch began.
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
    launch: str = "",
    begun_s: float = 0.0,
) -> Launched:
    """Return what this process notes of itself as the launcher of a run."""
    me = read_process(os.getpid())
    start = me.start_ticks if me is not None else 0
    identity = (os.uname().nodename, boot_id() or "", os.getpid(), start)
    return Launched(run_id, directory, *identity, tuple(places), grace_s, launch, begun_s)


@contextmanager
def holding(launched: Launched) -> Iterator[None]:
    """Note the launcher of a run, and hold the note open meanwhile; without a disk go on unnoted.

    Children do not inherit it.
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
    """Return what the launcher of a run over several hosts noted, None where there is none or it cannot be read."""
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
    """Return whether a host has the launcher's own directory: one file system. The note of that launch is in it."""
    launched = read_launched(directory)
    return launched is not None and launched.launch == token


def launcher_of(launched: Launched, table: ProcessTable, boot: str | None, host: str) -> Process | None:
    """Return the launcher if it still lives: host, boot, pid and start time agree, and it holds this run's file open.

    None otherwise, and where another user's process may not be looked at.
    """
    process = table.get(launched.pid)
    if process is None or not process.alive or boot is None:
        return None
    if (launched.host, launched.boot_id, launched.start_ticks) != (host, boot, process.start_ticks):
        return None
    return process if launched.directory.resolve() in _held(process.pid) else None


def residents_in(table: ProcessTable, host: str) -> tuple[tuple[Launched, Process], ...]:
    """Return the launchers of runs on several hosts that live here, wherever their records are; the youngest first.

    Those of other users are found by root alone.
    """
    boot = boot_id()
    residents = []
    for process in table.values():
        if process.alive and is_launcher(process):
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
    """Return the record of the run that this process is the launcher of, None if it holds none."""
    return next(iter(_held(process.pid)), None) if is_launcher(process) else None


def with_residents(
    alive: Sequence[RunProcesses], residents: Sequence[tuple[Launched, Process]]
) -> tuple[RunProcesses, ...]:
    """Return the runs together with those whose launcher lives here; what else lives here of one joins it."""
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


# What a record names on this machine


@dataclass(frozen=True)
class RecordedProcess:
    """One process as a record names it: ``start_time`` is its ``start_ticks``; ``rank`` is None for no rank."""

    pid: int
    start_time: int
    rank: int | None = None


@dataclass(frozen=True)
class NodeProcesses:
    """``node-K/processes.json``: what ran on one node. Pids mean something on ``host`` in the boot ``boot_id`` only."""

    node: int
    run_id: str | None
    host: str
    boot_id: str
    launcher: RecordedProcess | None
    attempt: int = 0
    ranks: tuple[RecordedProcess, ...] = ()


def read_processes(directory: Path, without: Container[int] = ()) -> tuple[NodeProcesses, ...]:
    """Return what every node of a run noted, ``without`` some; a file that is missing, broken or newer says nothing."""
    nodes = []
    for node, folder in numbered(directory, "node"):
        if node not in without:
            with suppress(OSError, ValueError):
                nodes.append(from_plain({**read_object(folder / "processes.json"), "node": node}, NodeProcesses))
    return tuple(nodes)


def still_running(
    recorded: RecordedProcess | None, node: NodeProcesses, table: ProcessTable, boot: str | None
) -> Process | None:
    """Return the live process that the record means: boot, pid, start time and run id all agree; None otherwise.

    A pid alone means nothing: it is given out again. The run id is read in the process's environment, or, where that
    cannot be read, in that of a parent.
    """
    if recorded is None or boot is None or node.boot_id != boot:
        return None
    process = table.get(recorded.pid)
    if process is None or not process.alive or process.start_ticks != recorded.start_time:
        return None
    named = process.mark(RUN_ID)
    if named is None and process.environment == {}:  # setproctitle writes its title over the environment
        named = next((mark for ancestor in ancestors(table, process.pid) if (mark := ancestor.mark(RUN_ID))), None)
    return process if named == node.run_id else None
