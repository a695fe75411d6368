"""The output of `ddplaunch ps`: the runs of this host as a table or JSON."""

from __future__ import annotations

import re
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
_SCRIPT = 16  # cells
_EMPHASES: Mapping[str, Emphasis] = {"running": "good", "orphaned": "error", "failed": "warning"}
_GROUP = re.compile(r".*-\d{8}-\d{6}-(?=\w+\.)")  # of trials: what follows it names each of them as well


def ps_text(runs: Sequence[RunSummary], more: int, now_s: float, me: str, terminal: Terminal, base: Path) -> str:
    """Return a line for each run, without empty columns, and how many ended runs are not shown.

    Runs whose record is not below ``base`` follow the others, under the directory where they were started or the user
    who hides it. WHO is filled for other users' runs, HOSTS for several hosts.
    """
    if not runs:
        return "no runs\n"
    runs_by_place: dict[str, list[RunSummary]] = {}
    for run in runs:
        runs_by_place.setdefault(_place(run, me, base), []).append(run)
    lines = list[str]()
    for place, group in sorted(runs_by_place.items()):
        rows = [_row(run, now_s, me) for run in group]
        emphasis = {row: shown for row, run in enumerate(group) if (shown := _EMPHASES.get(run.state))}
        lines += terminal.lines(f"{place}:") if place else []
        spared = [*rows[0]][:2:-1]  # a narrow terminal leaves these out, the last one first, and ``--json`` has them
        lines += table(rows, terminal, {"AGE", "TOOK", "SIZE", "BATCH"}, spared=spared, emphasis=emphasis)
    for run in runs:
        lines += terminal.lines(f"{run.run_id}: {run.problem}") if run.problem else []
    lines += terminal.lines(f"{more} more ended; `ddplaunch ps --all` lists them") if more else []
    return terminal.page(lines)


def _row(run: RunSummary, now_s: float, me: str) -> dict[str, str]:
    status = f"exit status {run.exit_status}" if run.state == "failed" and run.exit_status is not None else ""
    started_s, times_s = run.started_s, (now_s, now_s if run.state in ("running", "orphaned") else run.ended_s)
    ages = [age_text(None if at_s is None or started_s is None else at_s - started_s) for at_s in times_s]
    return {
        "RUN": _GROUP.sub("", run.run_id),
        "STATE": run.state,
        "SCRIPT": cut((run.script or "").rpartition("/")[2], _SCRIPT),
        "SIZE": str(number_of_ranks(run) or ""),
        "TOOK": ages[1],
        "CAUSE": "" if run.diagnosis == run.state else run.diagnosis or status,
        "AGE": ages[0],
        "WHO": "" if run.user == me else run.user or "",
        "BATCH": "" if run.effective_batch is None else str(run.effective_batch),
        "GPUS": gpus_text(run.gpus or ()),
        "HOSTS": listed(run.hosts, 1) if len(run.hosts) > 1 else "",
    }


def _place(run: RunSummary, me: str, base: Path) -> str:
    """Return where a run was started; empty for a run below ``base``."""
    parents = run.directory.parents if run.directory else ()
    if not parents:
        return "" if run.user == me else f"of {run.user}"
    if base in parents:
        return ""
    above = parents[1]  # the directory of .ddplaunch/runs/ID
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
        rows.append(
            {
                **plain(run),
                "directory": run.directory and str(run.directory),
                "world_size": number_of_ranks(run),
                "age_s": age,
            }
        )
    return {"schema": _SCHEMA, "host": host, "runs": rows, "not_shown": more}
