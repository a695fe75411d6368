"""Which records of ended runs are old enough to be removed, and their removal; a run that may live keeps its record."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ddplaunch.machine.processes.process_table import ProcessTable
from ddplaunch.records.find import read_record, run_directories
from ddplaunch.records.live_processes import NodeProcesses, read_processes
from ddplaunch.records.run_states import state_of
from ddplaunch.values.frozen import dataclass

_BEGINNING_S = 60.0  # between writing run.json and torchrun's start a run has no process that names it


@dataclass(frozen=True)
class OldRecords:
    """``removable`` are those beyond the newest ``keep``, the oldest last; ``kept`` would be, for the reason beside."""

    removable: tuple[Path, ...]
    kept: tuple[tuple[Path, str], ...]
    total: int


def old_records(
    base: Path,
    keep: int,
    busy: Collection[Path],
    table: ProcessTable,
    host: str,
    boot: str | None,
    now_s: float | None = None,
) -> OldRecords:
    """Return the records that are not among the newest ``keep``. ``busy`` are directories of runs that live here."""
    now_s = time.time() if now_s is None else now_s
    removable, kept = [], []
    directories = run_directories(base)
    for directory in directories[keep:]:
        reason = _reason_to_keep(directory, busy, table, host, boot, now_s)
        if reason is None:
            removable.append(directory)
        else:
            kept.append((directory, reason))
    return OldRecords(tuple(removable), tuple(kept), len(directories))


def _reason_to_keep(
    directory: Path, busy: Collection[Path], table: ProcessTable, host: str, boot: str | None, now_s: float
) -> str | None:
    record, nodes = read_record(directory), read_processes(directory)
    if directory.resolve() in busy or any(_lives(node, table, boot) for node in nodes):
        return "it runs"
    state = state_of(record, None, nodes, host)
    if state == "elsewhere":
        return "it was started on another host, and has no outcome"
    if state == "unreadable" and record.problem is not None and "schema" in record.problem:
        return record.problem
    if not record.outcomes and now_s - record.created_s < _BEGINNING_S:
        return "it has only begun"
    return None


def _lives(node: NodeProcesses, table: ProcessTable, boot: str | None) -> bool:
    """Whether a pid and start time of the record live, whatever their environment says: in doubt it is kept."""
    if node.boot_id != boot:
        return False
    recorded = (node.launcher, *node.ranks)
    return any(
        each is not None and (process := table.get(each.pid)) is not None and process.start_ticks == each.start_ticks
        for each in recorded
    )


def remove_record(directory: Path) -> str | None:
    """Remove one record and a ``latest`` that points to it; return why not, None if it is gone."""
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"{error.strerror or error}: {error.filename or directory}"
    latest = directory.parent.parent / "latest"
    with suppress(OSError):
        if latest.is_symlink() and not latest.exists():
            latest.unlink()
    return None
