"""What `ddplaunch ps` prints: the runs of this host as a table and as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.records.run_states import RunSummary
from ddplaunch.ui.explain_view import cut
from ddplaunch.ui.table import column_table
from ddplaunch.ui.terminal import Emphasis, Terminal, cells, visible
from ddplaunch.values.codec import plain
from ddplaunch.values.words import age_text, count, listed, numbers_text

_SCHEMA = 1
_RIGHT = {"AGE", "TOOK", "SIZE", "BATCH"}
_GPU_SPANS = 4
_SIZES = 4  # nodes, and trials, that are told one by one


def ps_text(
    runs: Sequence[RunSummary], more: int, now_s: float, me: str, terminal: Terminal, base: Path | None = None
) -> str:
    """Return a line for each run, columns that would be empty left out, and how many ended runs are not shown.

    The trials of one command are one line, with their sizes; one that runs is a line of its own.
    WHO is shown where a run is somebody else's, HOSTS where one has several, DIRECTORY where the record of one is not
    below ``base``, the run directory from which the others are; where there is no room for it, ``…/`` stands before the
    script of such a run.
    """
    if not runs:
        return "no runs\n"
    runs = _folded(runs)
    lines = column_table(_fitting(runs, now_s, me, base, terminal.width), terminal, _RIGHT, indent=0)
    lines = [_painted(line, terminal) for line in lines]
    lines += [f"{visible(run.run_id)}: {visible(run.problem)}" for run in runs if run.problem]
    if more:
        lines.append(f"{more} more ended; `ddplaunch ps --all` lists them")
    return terminal.spell("\n".join(lines)) + "\n"


def _folded(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the runs with the ended trials of a group as one, at the place of its newest."""
    found: list[RunSummary] = []
    groups: dict[str, list[str]] = {}
    for run in runs:
        group, _, name = (run.trial or "").rpartition("/")
        if not group or run.state in ("running", "orphaned"):
            found.append(run)
            continue
        if group not in groups:
            found.append(replace(run, run_id=group, first_failed_rank=None, effective_batch=None, nproc_per_node=None))
        groups.setdefault(group, []).insert(0, name)
    return [replace(run, trial=",".join(groups[run.run_id])) if run.run_id in groups else run for run in found]


#: What a narrow terminal does without, first to last; from HOSTS on, long names of scripts are cut as well.
_SPARED = (
    "host names",
    "failed rank",
    "whole directories",
    "HOSTS",
    "GPUS",
    "BATCH",
    "WHO",
    "DIRECTORY",
    "whole ids",
    "TOOK",
    "CAUSE",
)
_SHORT_ID = 24  # characters of an id that are shown at least; those made of the time have 22
_SHORT = 10
_SHORT_PLACE = 16


def _fitting(runs: Sequence[RunSummary], now_s: float, me: str, base: Path | None, width: int) -> dict[str, list[str]]:
    """Return the columns, with less in them the narrower the terminal: what is left out, ``--json`` has."""
    shown: dict[str, list[str]] = {}
    for spared in range(len(_SPARED) + 1):
        columns = _columns(runs, now_s, me, base, frozenset(_SPARED[:spared]))
        shown = {name: column for name, column in columns.items() if any(column)}
        room = width - sum(max(map(cells, (name, *column))) + 2 for name, column in shown.items() if name != "SCRIPT")
        longest = max(map(cells, shown.get("SCRIPT", [""])))
        least = _SHORT if "HOSTS" in _SPARED[:spared] else longest
        if room >= min(longest, least):
            if longest > room:
                shown["SCRIPT"] = [cut(name, room) for name in shown["SCRIPT"]]
            break
    return shown


def _columns(
    runs: Sequence[RunSummary], now_s: float, me: str, base: Path | None, spared: frozenset[str]
) -> dict[str, list[str]]:
    others = any(run.user not in (None, me) for run in runs)
    several = any(len(run.hosts) > 1 for run in runs) or len({run.hosts for run in runs if run.hosts}) > 1
    hosts = [_hosts(run.hosts, "host names" not in spared) if several else "" for run in runs]
    columns = {
        "RUN": _short_ids([run.run_id for run in runs]) if "whole ids" in spared else [run.run_id for run in runs],
        "STATE": [run.state if "failed rank" in spared and not _is_group(run) else _state_text(run) for run in runs],
        "AGE": [age_text(None if run.started_s is None else now_s - run.started_s) for run in runs],
        "TOOK": [_took(run) for run in runs],
        "SIZE": [size_of(run) for run in runs],
        "BATCH": ["" if run.effective_batch is None else str(run.effective_batch) for run in runs],
        "GPUS": [gpus_text(run.gpus) for run in runs],
        "WHO": [(run.user or "") if others else "" for run in runs],
        "HOSTS": hosts,
        "CAUSE": [_cause(run) for run in runs],
        "DIRECTORY": _directories(runs, base, None if "whole directories" not in spared else _SHORT_PLACE),
        "SCRIPT": [_script(run.script) for run in runs],
    }
    if "DIRECTORY" in spared:  # which are elsewhere is still seen
        elsewhere = [place not in ("", ".") for place in _directories(runs, base, None)]
        columns["SCRIPT"] = ["…/" * away + name for away, name in zip(elsewhere, columns["SCRIPT"], strict=True)]
    return {name: column for name, column in columns.items() if name not in spared}


def _short_ids(ids: Sequence[str]) -> list[str]:
    """Return ids as short as still tells them apart: a run is named by any part of its id that no other has."""
    shown = []
    for name in ids:
        size = _SHORT_ID
        while size < len(name) and any(other != name and name[:size] in other for other in ids):
            size += 1
        shown.append(name if len(name) <= size + 1 else f"{name[:size]}…")
    return shown


def _took(run: RunSummary) -> str:
    """Return how long a run took that has ended."""
    return "" if run.started_s is None or run.ended_s is None else age_text(run.ended_s - run.started_s)


def _cause(run: RunSummary) -> str:
    """Return the code of what ended a run, where its state does not say it already."""
    return "" if _is_group(run) or run.diagnosis in (None, run.state) else run.diagnosis or ""


def _directories(runs: Sequence[RunSummary], base: Path | None, most: int | None) -> list[str]:
    """Return where each run was started, ``.`` for those of ``base``; nothing where all are; the end of a long path."""
    if base is None or all(run.directory is None or base in run.directory.parents for run in runs):
        return [""] * len(runs)
    places = [_place(run.directory, base) for run in runs]
    return [place if most is None or len(place) <= most else "…" + place[1 - most :] for place in places]


def _place(directory: Path | None, base: Path) -> str:
    if directory is None:
        return ""
    if base in directory.parents:
        return "."
    above = directory.parents[1]  # of .ddplaunch/runs/ID
    above = above.parent if above.name == ".ddplaunch" else above
    home = Path.home()
    return f"~/{above.relative_to(home)}" if above.is_relative_to(home) and above != home else str(above)


def _is_group(run: RunSummary) -> bool:
    """Whether this line stands for several trials."""
    return run.trial is not None and "/" not in run.trial


def _state_text(run: RunSummary) -> str:
    """Return the state in a word, with the exit status and, where it is known, the rank that failed first."""
    if _is_group(run):
        return count((run.trial or "").count(",") + 1, "trial")
    if run.state != "failed" or run.exit_status is None:
        return run.state
    rank = "" if run.first_failed_rank is None else f", rank {run.first_failed_rank}"
    return f"failed ({run.exit_status}{rank})"


def size_of(run: RunSummary) -> str:
    """Return the number of processes, ``2x4`` for two nodes of four, ``4+2``, or ``20x2-4`` of many that differ.

    Of a group it is what was tried: sizes, or the smallest and the largest batch.
    """
    if _is_group(run):
        return _tried((run.trial or "").split(","))
    if run.nproc_per_node is None:
        return ""
    if run.sizes:
        few = len(run.sizes) <= _SIZES
        return "+".join(map(str, run.sizes)) if few else f"{run.nnodes}x{min(run.sizes)}-{max(run.sizes)}"
    return f"{run.nnodes}x{run.nproc_per_node}" if (run.nnodes or 1) > 1 else str(run.nproc_per_node)


def _tried(names: Sequence[str]) -> str:
    batches = [int(name.removeprefix("batch-")) for name in names if re.fullmatch(r"batch-\d{1,18}", name)]
    if len(batches) == len(names):
        return f"batch {min(batches)}" if len(batches) == 1 else f"batch {min(batches)}-{max(batches)}"
    return ",".join(names) if len(names) <= _SIZES else f"{names[0]},…,{names[-1]}"


def gpus_text(gpus: Sequence[str] | None) -> str:
    """Return ``0-3``, ``0,2``, or the number of GPUs where they are named by UUID."""
    if not gpus:
        return ""
    if not all(gpu.isdecimal() for gpu in gpus):
        return f"{len(gpus)} by UUID"
    text = numbers_text(int(gpu) for gpu in gpus)
    return text if text.count(",") < _GPU_SPANS else str(len(gpus))


def _hosts(hosts: Sequence[str], names: bool) -> str:
    if len(hosts) > 1 and not names:
        return str(len(hosts))
    return listed(hosts, 1)


def _script(name: str | None) -> str:
    """Return the last part of a path; a dotted module as it is."""
    return (name or "").rstrip("/").rpartition("/")[2]


_EMPHASIS: tuple[tuple[str, Emphasis], ...] = (("running", "good"), ("orphaned", "error"), ("failed", "warning"))


def _painted(line: str, terminal: Terminal) -> str:
    for word, emphasis in _EMPHASIS:
        if f" {word} " in line:
            return line.replace(f" {word} ", f" {terminal.paint(word, emphasis)} ", 1)
    return line


def ps_json(runs: Sequence[RunSummary], more: int, host: str, now_s: float) -> dict[str, Any]:
    """Return everything, with times in seconds since the epoch; ``not_shown`` counts ended runs left out."""
    rows = []
    for run in runs:
        each = run.nproc_per_node
        world = None if each is None else sum(run.sizes) or each * (run.nnodes or 1)
        age = None if run.started_s is None else round(now_s - run.started_s, 1)
        directory = None if run.directory is None else str(run.directory)
        rows.append({**plain(run), "directory": directory, "world_size": world, "age_s": age})
    return {"schema": _SCHEMA, "host": host, "runs": rows, "not_shown": more}
