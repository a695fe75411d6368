"""The processes that a run's record names (``node-K/processes.json``), and which of them still live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddplaunch.machine.processes.process_table import Process, ProcessTable, ancestors
from ddplaunch.records.find import node_directories
from ddplaunch.records.json_files import as_whole, objects, read_object
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.variable_names import RUN_ID


@dataclass(frozen=True)
class Recorded:
    """One process as the record names it. ``start_ticks`` as in ``Process``; ``rank`` is None for no rank."""

    pid: int
    start_ticks: int
    rank: int | None = None


@dataclass(frozen=True)
class NodeProcesses:
    """``node-K/processes.json``: what ran on one node. Pids mean something on ``host`` in the boot ``boot_id`` only."""

    node: int
    run_id: str
    host: str
    boot_id: str
    attempt: int
    launcher: Recorded | None
    ranks: tuple[Recorded, ...]


def read_processes(directory: Path) -> tuple[NodeProcesses, ...]:
    """Return what every node of a run noted; a file that is missing, broken or newer says nothing."""
    found = []
    for node, folder in node_directories(directory):
        try:
            data = read_object(folder / "processes.json")
        except (OSError, ValueError):
            continue
        ranks = tuple(rank for each in objects(data.get("ranks")) if (rank := _recorded(each, each.get("rank"))))
        found.append(
            NodeProcesses(
                node=node,
                run_id=str(data.get("run_id", "")),
                host=str(data.get("host", "")),
                boot_id=str(data.get("boot_id", "")),
                attempt=as_whole(data.get("attempt")) or 0,
                launcher=_recorded(data.get("launcher")),
                ranks=ranks,
            )
        )
    return tuple(found)


def _recorded(value: Any, rank: Any = None) -> Recorded | None:
    if not isinstance(value, dict):
        return None
    pid, start = as_whole(value.get("pid")), as_whole(value.get("start_time"))
    return None if pid is None or start is None else Recorded(pid, start, as_whole(rank))


def still_running(
    recorded: Recorded | None, node: NodeProcesses, table: ProcessTable, boot: str | None
) -> Process | None:
    """Return the live process that the record means: boot, pid, start time and run id all agree; None otherwise.

    A pid alone means nothing: it is given out again. The run id is read in the process's environment, or, where that
    cannot be read, in that of a parent.
    """
    if recorded is None or boot is None or node.boot_id != boot:
        return None
    process = table.get(recorded.pid)
    if process is None or not process.alive or process.start_ticks != recorded.start_ticks:
        return None
    named = process.mark(RUN_ID)
    if named is None and process.environment == {}:  # setproctitle writes its title over the environment
        named = next((mark for each in ancestors(table, process.pid) if (mark := each.mark(RUN_ID))), None)
    return process if named == node.run_id else None


def other_processes(nodes: tuple[NodeProcesses, ...], table: ProcessTable, boot: str | None) -> tuple[int, ...]:
    """Return pids of the record that exist on this host and are not what was recorded, or cannot be told to be."""
    here = [(node, each) for node in nodes if node.boot_id == boot for each in (node.launcher, *node.ranks)]
    return tuple(
        each.pid
        for node, each in here
        if each is not None and each.pid in table and still_running(each, node, table, boot) is None
    )
