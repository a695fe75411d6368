"""The output of `ddplaunch ps`: the runs of this host as a table or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddplaunch.records.run_states import RunSummary
from ddplaunch.ui.launch_view import gpus_text
from ddplaunch.ui.table import table
from ddplaunch.ui.terminal import Emphasis, Terminal, cut
from ddplaunch.values.codec import plain
from ddplaunch.values.words import age_text, listed

_SCHEMA = 1
_SCRIPT = 20  # cells
_KEPT = 4  # columns; a narrow terminal leaves out the others, the last one first, and ``--json`` has them
_EMPHASES: Mapping[str, Emphasis] = {"running": "good", "orphaned": "error", "failed": "warning"}


def ps_text(
    runs: Sequence[RunSummary], more: int, now_s: float, me: str, terminal: Terminal, base: Path | None = None
) -> str:
    """Return a line for each run, without empty columns, and how many ended runs are not shown.

    WHO is filled for other users' runs, HOSTS for several hosts, DIRECTORY for a record that is not below ``base``.
    """
    if not runs:
        return "no runs\n"
    rows = [_row(run, now_s, me, base) for run in runs]
    emphasis = {row: _EMPHASES[run.state] for row, run in enumerate(runs) if run.state in _EMPHASES}
    right = {"AGE", "TOOK", "SIZE", "BATCH"}
    lines = table(rows, terminal, right, spared=[*rows[0]][: _KEPT - 1 : -1], emphasis=emphasis)
    for run in runs:
        lines += terminal.lines(f"{run.run_id}: {run.problem}") if run.problem else []
    lines += terminal.lines(f"{more} more ended; `ddplaunch ps --all` lists them") if more else []
    return terminal.page(lines)


def _row(run: RunSummary, now_s: float, me: str, base: Path | None) -> dict[str, str]:
    status = f"exit status {run.exit_status}" if run.state == "failed" and run.exit_status is not None else ""
    took_s = None if run.started_s is None or run.ended_s is None else run.ended_s - run.started_s
    return {
        "RUN": run.run_id,
        "STATE": run.state,
        "AGE": age_text(None if run.started_s is None else now_s - run.started_s),
        "CAUSE": "" if run.diagnosis == run.state else run.diagnosis or status,
        "SCRIPT": cut((run.script or "").rpartition("/")[2], _SCRIPT),
        "SIZE": str(number_of_ranks(run) or ""),
        "TOOK": age_text(took_s),
        "DIRECTORY": _place(run.directory, base),
        "WHO": "" if run.user == me else run.user or "",
        "BATCH": "" if run.effective_batch is None else str(run.effective_batch),
        "GPUS": gpus_text(run.gpus or ()),
        "HOSTS": listed(run.hosts, 1) if len(run.hosts) > 1 else "",
    }


def _place(directory: Path | None, base: Path | None) -> str:
    """Return where a run was started; empty for a run below ``base``."""
    if directory is None or base is None or base in directory.parents:
        return ""
    above = directory.parents[1]  # the directory of .ddplaunch/runs/ID
    return str(above.parent if above.name == ".ddplaunch" else above)


def number_of_ranks(run: RunSummary) -> int | None:
    """Return the number of processes, None where it is unknown."""
    ranks = run.nproc_per_node
    return None if ranks is None else sum(run.sizes) or ranks * (run.nnodes or 1)


def ps_json(runs: Sequence[RunSummary], more: int, host: str, now_s: float) -> dict[str, Any]:
    """Return all details, with times in seconds since the epoch; ``not_shown`` counts ended runs left out."""
    rows = []
    for run in runs:
        age = None if run.started_s is None else round(now_s - run.started_s, 1)
        directory = None if run.directory is None else str(run.directory)
        rows.append({**plain(run), "directory": directory, "world_size": number_of_ranks(run), "age_s": age})
    return {"schema": _SCHEMA, "host": host, "runs": rows, "not_shown": more}
