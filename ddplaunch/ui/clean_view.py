"""What `ddplaunch clean` prints: orphans, what they hold, old records, and what became of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddplaunch.hosts.local.end_orphans import Cleaned, Leftovers
from ddplaunch.machine.files import owner_name
from ddplaunch.machine.processes.orphans import Orphans
from ddplaunch.machine.processes.process_table import Process, start_s
from ddplaunch.records.old_records import OldRecords
from ddplaunch.ui.stop_view import does_not_end
from ddplaunch.ui.table import column_table
from ddplaunch.ui.terminal import Terminal, visible, wrap
from ddplaunch.values.finding import Finding, error, warning
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable, known
from ddplaunch.values.secrets import hide_words
from ddplaunch.values.words import age_text, count, listed, size_text

_SCHEMA = 1
_COMMAND = 120


@dataclass(frozen=True)
class Work:
    """All that ``clean`` found to do."""

    found: Leftovers
    records: OldRecords
    run_id: str | None = None  # where only one run was looked for

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to end or to remove."""
        return not self.found.own and not self.records.removable


def work_text(work: Work, now_s: float, terminal: Terminal) -> str:
    """Return every orphan with what it holds, this user's first, and the records beyond those to keep."""
    lines: list[str] = []
    for group in (*work.found.own, *work.found.others):
        title, *rest = wrap(_title(group, group in work.found.others), terminal.width, "", "  ")
        lines += [terminal.paint(title, "bold"), *rest, *_table(group, work.found, now_s, terminal)]
    said = []
    if isinstance(work.found.gpu_memory, Unavailable) and not work.found.gpu_memory.reason.endswith("not installed"):
        said.append(f"GPU memory is not known: {work.found.gpu_memory.reason}")
    files = work.found.removable
    if files:
        size = size_text(sum(segment.size_bytes for segment in files))
        said.append(f"{count(len(files), 'file')} in /dev/shm that only they hold, to remove ({size})")
    old, total = work.records.removable, work.records.total
    if old:
        said.append(f"{len(old)} of {count(total, 'record')} to remove: {_names(old)}")
    said += [f"{visible(path.name)}: kept, {visible(reason)}" for path, reason in work.records.kept]
    if not lines and not said:
        about = f" of run {visible(work.run_id)}" if work.run_id else f", {count(total, 'record')}"
        said = [f"nothing to clean: no orphans{about}"]
    if others := work.records.others:
        said.append(f"no record of yours in {visible(work.records.place)}, and not touched: {visible(listed(others))}")
    if work.records.problem is not None:
        said.append(visible(work.records.problem))
    lines += [line for text in said for line in wrap(text, terminal.width, "", "  ")]
    return terminal.spell("\n".join(lines)) + "\n"


def _names(paths: Sequence[Any]) -> str:
    names = [visible(path.name) for path in paths]
    return ", ".join(names) if len(names) < 4 else f"{names[-1]} … {names[0]}"


def _title(group: Orphans, foreign: bool) -> str:
    names = {"ddplaunch": f"run {group.run_id}", "torchrun": f"torchrun, rdzv-id {group.run_id}"}
    owner = f"; of {owner_name(group.processes[0].uid)}, not touched" if foreign else ""
    left = count(len(group.processes), "process")
    return f"{visible(names.get(group.kind, group.kind))}: its launcher is gone, {left} left{owner}"


def _table(group: Orphans, found: Leftovers, now_s: float, terminal: Terminal) -> list[str]:
    processes = group.processes
    columns = {
        "PID": [str(each.pid) for each in processes],
        "WHAT": [_what_of(each) for each in processes],
        "AGE": [age_text(_age_s(each, now_s)) for each in processes],
        "GPU MEMORY": [_gpu_text(each, found) for each in processes],
        "SHARED": [size_text(_shared_bytes(each, found) or None) for each in processes],
        "COMMAND": [_command(each) for each in processes],
    }
    return column_table(columns, terminal, right=("PID", "AGE"))


def _what_of(process: Process) -> str:
    """Return ``rank 3``, or ``child of rank 3`` for a DataLoader worker and whatever else a rank started."""
    rank = process.mark("RANK") or process.mark("LOCAL_RANK")
    if rank is None:
        return "child"
    return f"rank {rank}" if process.session == process.pid else f"child of rank {rank}"


def _age_s(process: Process, now_s: float) -> float | None:
    started = start_s(process.start_ticks)
    return None if started is None else now_s - started


def _gpu_memory(process: Process, found: Leftovers) -> list[tuple[int, int]]:
    """Return the GPUs on which it holds memory, and how many bytes."""
    return sorted(known(found.gpu_memory, {}).get(process.pid, {}).items())


def _gpu_text(process: Process, found: Leftovers) -> str:
    return ", ".join(f"GPU {gpu}: {size_text(size or None) or '?'}" for gpu, size in _gpu_memory(process, found))


def _shared_bytes(process: Process, found: Leftovers) -> int:
    return sum(segment.size_bytes for segment in found.segments if process.pid in segment.holders)


def _command(process: Process) -> str:
    """Return the command line with the interpreter's name only, at most 120 characters of it."""
    program, *words = hide_words(process.command) or (f"[{process.name}]",)
    text = " ".join([program.rpartition("/")[2], *words])
    return text if len(text) <= _COMMAND else text[: _COMMAND - 1] + "…"


def ending_question(work: Work) -> str:
    """Return what is about to be done to processes, and to the memory that only they hold, as a question."""
    parts = [f"end {count(len(work.found.processes), 'process')}"]
    if work.found.removable:
        parts.append(f"remove {count(len(work.found.removable), 'file')} in /dev/shm")
    return f"{', '.join(parts)}? [y/N] "


def removing_question(work: Work) -> str:
    """Return which records are about to be removed, as a question."""
    return f"remove {count(len(work.records.removable), 'record')}? [y/N] "


def done_text(cleaned: Cleaned, found: Leftovers, removed: int) -> str:
    """Return what was ended, freed and removed, as verified afterwards."""
    lines = []
    gone = len(cleaned.ended) + len(cleaned.killed)
    if gone:
        hard = f", {len(cleaned.killed)} of them by SIGKILL" if cleaned.killed else ""
        lines.append(f"ended {count(gone, 'process')}{hard}{_freed(cleaned, found)}")
    if cleaned.removed:
        lines.append(f"removed {count(len(cleaned.removed), 'file')} in /dev/shm")
    if removed:
        lines.append(f"removed {count(removed, 'record')}")
    return "".join(f"{line}\n" for line in lines)


def _freed(cleaned: Cleaned, found: Leftovers) -> str:
    """Return how much of which GPUs came free, of what NVML counted before and does not count any more."""
    freed: dict[int, int] = {}
    for process in (*cleaned.ended, *cleaned.killed):
        for gpu, amount in _gpu_memory(process, found):
            if gpu not in cleaned.holding.get(process.pid, {}):
                freed[gpu] = freed.get(gpu, 0) + amount
    return "".join(f", {size_text(amount)} of GPU {gpu} are free" for gpu, amount in sorted(freed.items()))


def clean_findings(cleaned: Cleaned, failed: Sequence[str]) -> tuple[Finding, ...]:
    """Return what could not be done: processes that do not end, memory that stays taken, records that stay."""
    found = []
    if cleaned.remaining:
        pids = ", ".join(str(process.pid) for process in cleaned.remaining)
        what = f"{len(cleaned.remaining)} orphans do not end: pid {pids}"
        found.append(does_not_end(what, cleaned.remaining, "they are still there", "what they wait for"))
    if cleaned.holding:
        gpus = sorted({gpu for memory in cleaned.holding.values() for gpu in memory})
        named = ",".join(map(str, gpus))
        found.append(
            error(
                "gpu-memory-not-freed",
                f"GPU {named}: NVML still counts memory of processes that are gone",
                why="the driver has not taken it back; a process in another container may share it",
                fix=f"`sudo fuser -v /dev/nvidia*` names who holds it; `sudo nvidia-smi -r -i {named}` resets the GPU",
            )
        )
    if failed:
        found.append(
            warning(
                "record-not-removed",
                f"{count(len(failed), 'record')} could not be removed: {failed[0]}",
                why="the record or what is in it belongs to somebody else, or is on a file system that is read-only",
                fix="run `ddplaunch clean` as its owner",
            )
        )
    return tuple(found)


def clean_json(work: Work, cleaned: Cleaned | None, removed: Sequence[str], host: str, now_s: float) -> dict[str, Any]:
    """Return the same as data; ``done`` is False where nothing was changed, and every ``result`` null."""
    groups = [*((group, True) for group in work.found.own), *((group, False) for group in work.found.others)]
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
                "own": own,
                "processes": [_entry(process, work.found, cleaned, now_s) for process in group.processes],
            }
            for group, own in groups
        ],
        "gpu_memory_unavailable": memory.reason if isinstance(memory, Unavailable) else None,
        "segments": [
            {
                "path": each.path,
                "size_bytes": each.size_bytes,
                "removed": cleaned is not None and each in cleaned.removed,
            }
            for each in work.found.removable
        ],
        "records": [{"run_id": path.name, "removed": path.name in removed} for path in work.records.removable],
        "records_kept": [{"run_id": path.name, "reason": reason} for path, reason in work.records.kept],
    }


def _entry(process: Process, found: Leftovers, cleaned: Cleaned | None, now_s: float) -> dict[str, Any]:
    result = None
    if cleaned is not None:
        lists = (("ended", cleaned.ended), ("killed", cleaned.killed), ("remaining", cleaned.remaining))
        result = next((name for name, each in lists if process.pid in {one.pid for one in each}), None)
    age = _age_s(process, now_s)
    return {
        "pid": process.pid,
        "what": _what_of(process),
        "age_s": None if age is None else round(age, 1),
        "command": hide_words(process.command),
        "gpu_memory": [{"gpu": gpu, "bytes": amount} for gpu, amount in _gpu_memory(process, found)],
        "shared_bytes": _shared_bytes(process, found),
        "result": result,
    }
