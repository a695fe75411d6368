"""What `ddplaunch ps` prints: the runs of this host as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddplaunch.records.run_states import RunSummary
from ddplaunch.ui.table import table
from ddplaunch.ui.terminal import Emphasis, Terminal, cut
from ddplaunch.values.codec import plain
from ddplaunch.values.words import age_text, listed, numbers_text

_SCHEMA = 1
_SIZES = 4  # nodes that are told one by one
_SCRIPT = 20  # cells
#: What a narrow terminal does without, first to last; ``--json`` has it.
_SPARED = ("HOSTS", "GPUS", "BATCH", "WHO", "DIRECTORY", "TOOK", "SIZE", "SCRIPT", "CAUSE")
_EMPHASES: Mapping[str, Emphasis] = {"running": "good", "orphaned": "error", "failed": "warning"}


def ps_text(
    runs: Sequence[RunSummary], more: int, now_s: float, me: str, terminal: Terminal, base: Path | None = None
) -> str:
    """Return a line for each run, columns that would be empty left out, and how many ended runs are not shown.

    WHO is shown where a run is somebody else's, HOSTS where one has several, DIRECTORY where the record of one is not
    below ``base``, the run directory from which the others are.
    """
    if not runs:
        return "no runs\n"
    rows = [_row(run, now_s, base) for run in runs]
    unneeded = [] if any(run.user not in (None, me) for run in runs) else ["WHO"]
    unneeded += [] if len({host for run in runs for host in run.hosts}) > 1 else ["HOSTS"]
    unneeded += ["DIRECTORY"] if {row["DIRECTORY"] for row in rows} <= {"", "."} else []
    rows = [{title: text for title, text in row.items() if title not in unneeded} for row in rows]
    emphasis = {row: _EMPHASES[run.state] for row, run in enumerate(runs) if run.state in _EMPHASES}
    right = {"AGE", "TOOK", "SIZE", "BATCH"}
    lines = table(rows, terminal, right, spared=_SPARED, emphasis=emphasis, indent=0)
    for run in runs:
        lines += terminal.lines(f"{run.run_id}: {run.problem}") if run.problem else []
    lines += [f"{more} more ended; `ddplaunch ps --all` lists them"] if more else []
    return terminal.page(lines)


def _row(run: RunSummary, now_s: float, base: Path | None) -> dict[str, str]:
    status = f"exit status {run.exit_status}" if run.state == "failed" and run.exit_status is not None else ""
    took_s = None if run.started_s is None or run.ended_s is None else run.ended_s - run.started_s
    return {
        "RUN": run.run_id,
        "STATE": run.state,
        "AGE": age_text(None if run.started_s is None else now_s - run.started_s),
        "TOOK": age_text(took_s),
        "SIZE": size_of(run),
        "BATCH": "" if run.effective_batch is None else str(run.effective_batch),
        "GPUS": gpus_text(run.gpus),
        "WHO": run.user or "",
        "HOSTS": listed(run.hosts, 1),
        "CAUSE": "" if run.diagnosis == run.state else run.diagnosis or status,
        "DIRECTORY": "" if base is None else _place(run.directory, base),
        "SCRIPT": cut((run.script or "").rstrip("/").rpartition("/")[2], _SCRIPT),
    }


def _place(directory: Path | None, base: Path) -> str:
    """Return where a run was started, ``.`` for one of ``base``."""
    if directory is None or base in directory.parents:
        return "" if directory is None else "."
    above = directory.parents[1]  # of .ddplaunch/runs/ID
    return str(above.parent if above.name == ".ddplaunch" else above)


def size_of(run: RunSummary) -> str:
    """Return the number of processes, ``2x4`` for two nodes of four, ``4+2``, or ``20x2-4`` of many that differ."""
    if run.nproc_per_node is None:
        return ""
    if run.sizes:
        few = len(run.sizes) <= _SIZES
        return "+".join(map(str, run.sizes)) if few else f"{run.nnodes}x{min(run.sizes)}-{max(run.sizes)}"
    return f"{run.nnodes}x{run.nproc_per_node}" if (run.nnodes or 1) > 1 else str(run.nproc_per_node)


def gpus_text(gpus: Sequence[str] | None) -> str:
    """Return ``0-3``, ``0,2``, or the number of GPUs where they are named by UUID."""
    if not all(gpu.isdecimal() for gpu in gpus or ()):
        return f"{len(gpus or ())} by UUID"
    return numbers_text(map(int, gpus or ()))


def ps_json(runs: Sequence[RunSummary], more: int, host: str, now_s: float) -> dict[str, Any]:
    """Return everything, with times in seconds since the epoch; ``not_shown`` counts ended runs left out."""
    rows = []
    for run in runs:
        ranks = run.nproc_per_node
        world = None if ranks is None else sum(run.sizes) or ranks * (run.nnodes or 1)
        age = None if run.started_s is None else round(now_s - run.started_s, 1)
        directory = None if run.directory is None else str(run.directory)
        rows.append({**plain(run), "directory": directory, "world_size": world, "age_s": age})
    return {"schema": _SCHEMA, "host": host, "runs": rows, "not_shown": more}
