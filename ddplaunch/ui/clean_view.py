"""The output of `ddplaunch clean`: orphans, what they hold, old records, and what was done about each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddplaunch.hosts.local.end_orphans import Cleaned, Leftovers
from ddplaunch.machine.files import owner_name
from ddplaunch.machine.processes.orphans import Orphans
from ddplaunch.machine.processes.process_table import Process, start_s
from ddplaunch.records.old_records import OldRecords
from ddplaunch.ui.stop_view import does_not_end
from ddplaunch.ui.table import table
from ddplaunch.ui.terminal import Terminal, cut
from ddplaunch.values.finding import Finding, warning
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable, known
from ddplaunch.values.secrets import hide_words
from ddplaunch.values.words import age_text, count, listed, size_text

_SCHEMA = 2
_COMMAND = 120


@dataclass(frozen=True)
class Cleanup:
    """All that ``clean`` found to do."""

    found: Leftovers
    records: OldRecords
    run_id: str | None = None  # set to clean one run only

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to end or to remove."""
        return not self.found.own and not self.records.removable


def work_text(work: Cleanup, now_s: float, terminal: Terminal) -> str:
    """Return every orphan with what it holds, this user's first, and the records that exceed the number to keep."""
    leftovers, records, lines = work.found, work.records, list[str]()
    for group in (*leftovers.own, *leftovers.others):
        title = terminal.lines(_title(group, group in leftovers.others))
        rows = [_row(process, leftovers, now_s) for process in group.processes]
        lines += [*(terminal.paint(line, "bold") for line in title), *table(rows, terminal, ("PID", "AGE"))]
    notes = []
    if isinstance(leftovers.gpu_memory, Unavailable) and not leftovers.gpu_memory.reason.endswith("not installed"):
        notes.append(f"GPU memory is not known: {leftovers.gpu_memory.reason}")
    if records.removable:
        names = listed([path.name for path in records.removable], 3)
        notes.append(f"{len(records.removable)} of {count(records.total, 'record')} to remove: {names}")
    notes += [f"{path.name}: kept, {reason}" for path, reason in records.kept]
    if not lines and not notes:
        origin = f" of run {work.run_id}" if work.run_id else f", {count(records.total, 'record')}"
        notes = [f"nothing to clean: no orphans{origin}"]
    notes += [records.problem] if records.problem is not None else []
    return terminal.page([*lines, *(line for text in notes for line in terminal.lines(text))])


def _title(group: Orphans, foreign: bool) -> str:
    names = {"ddplaunch": f"run {group.run_id}", "torchrun": f"torchrun, rdzv-id {group.run_id}"}
    owner = f"; of {owner_name(group.processes[0].uid)}, not touched" if foreign else ""
    processes = count(len(group.processes), "process")
    return f"{names.get(group.kind, group.kind)}: its launcher is gone, {processes} left{owner}"


def _row(process: Process, leftovers: Leftovers, now_s: float) -> dict[str, str]:
    entry = _entry(process, leftovers, None, now_s)
    gpu_texts = (f"GPU {one['gpu']}: {size_text(one['bytes'] or None) or '?'}" for one in entry["gpu_memory"])
    return {
        "PID": str(process.pid),
        "WHAT": entry["what"],
        "AGE": age_text(entry["age_s"]),
        "GPU MEMORY": ", ".join(gpu_texts),
        "COMMAND": _command(process),
    }


def _command(process: Process) -> str:
    """Return at most 120 characters of the command line, with the interpreter's path cut to its name."""
    program, *words = hide_words(process.command) or (f"[{process.name}]",)
    return cut(" ".join([program.rpartition("/")[2], *words]), _COMMAND)


def question(work: Cleanup) -> str:
    """Return the question whether to end and remove what was found."""
    ends = [f"end {count(len(work.found.processes), 'process')}"] if work.found.own else []
    removes = [f"remove {count(len(work.records.removable), 'record')}"] if work.records.removable else []
    return f"{' and '.join(ends + removes)}? [y/N] "


def done_text(cleaned: Cleaned, removed: int) -> str:
    """Return a text about what was ended and removed, as verified afterwards."""
    processes = len(cleaned.ended) + len(cleaned.killed)
    hard = f", {len(cleaned.killed)} of them by SIGKILL" if cleaned.killed else ""
    ended = f"ended {count(processes, 'process')}{hard}\n" * bool(processes)
    return ended + f"removed {count(removed, 'record')}\n" * bool(removed)


def clean_findings(cleaned: Cleaned, failed: Sequence[str]) -> tuple[Finding, ...]:
    """Return findings about what could not be done: processes that do not end, records that cannot be removed."""
    findings = []
    if cleaned.remaining:
        findings.append(does_not_end(count(len(cleaned.remaining), "orphan"), [one.pid for one in cleaned.remaining]))
    if failed:
        findings.append(
            warning(
                "record-not-removed",
                f"{count(len(failed), 'record')} could not be removed: {failed[0]}",
                why="the record or what is in it belongs to somebody else, or its file system is read-only",
                fix="run `ddplaunch clean` as its owner",
            )
        )
    return tuple(findings)


def clean_json(
    work: Cleanup, cleaned: Cleaned | None, removed: Sequence[str], host: str, now_s: float
) -> dict[str, Any]:
    """Return work and results as data; ``done`` is False where nothing was changed, and then every ``result`` null."""
    memory = work.found.gpu_memory
    return {
        "schema": _SCHEMA,
        "host": host,
        "done": cleaned is not None,
        "orphans": [
            {
                "run_id": group.run_id,
                "kind": group.kind,
                "user": owner_name(group.processes[0].uid),
                "own": group in work.found.own,
                "processes": [_entry(process, work.found, cleaned, now_s) for process in group.processes],
            }
            for group in (*work.found.own, *work.found.others)
        ],
        "gpu_memory_unavailable": memory.reason if isinstance(memory, Unavailable) else None,
        "records": [{"run_id": path.name, "removed": path.name in removed} for path in work.records.removable],
        "records_kept": [{"run_id": path.name, "reason": reason} for path, reason in work.records.kept],
    }


def _entry(process: Process, leftovers: Leftovers, cleaned: Cleaned | None, now_s: float) -> dict[str, Any]:
    names = ("ended", "killed", "remaining") if cleaned is not None else ()
    results = (name for name in names for one in getattr(cleaned, name) if one.pid == process.pid)
    started = start_s(process.start_ticks)
    gpu_bytes = known(leftovers.gpu_memory, {}).get(process.pid, {})
    rank = process.mark("RANK") or process.mark("LOCAL_RANK")
    of_rank = "rank" if process.session == process.pid else "child of rank"  # a DataLoader worker, or another program
    return {
        "pid": process.pid,
        "what": "child" if rank is None else f"{of_rank} {rank}",
        "age_s": None if started is None else round(now_s - started, 1),
        "command": hide_words(process.command),
        "gpu_memory": [{"gpu": gpu, "bytes": amount} for gpu, amount in sorted(gpu_bytes.items())],
        "result": next(results, None),
    }
