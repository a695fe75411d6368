"""Which node of a run failed first, from the outcomes that all nodes wrote; refuses to explain it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddplaunch.frozen import dataclass


@dataclass(frozen=True)
class FirstFailure:
    """The node whose own rank failed first: ``exit_status`` as its launcher gave it, ``rank`` if it is known."""

    run_id: str
    node: int
    exit_status: int
    rank: int | None


def first_failure(directory: Path) -> FirstFailure | None:
    """Return the first failure in a run's directory, None where no node wrote of one; never raises.

    srun exits with the highest status of its tasks, which is often that of a node that it ended itself (143). Times of
    several hosts are compared as they are, so clocks that differ by more than the end of a job takes can mislead.
    """
    failed = []
    for path in [directory / "outcome.json", *sorted(directory.glob("node-*/outcome.json"))]:
        try:
            outcome = json.loads(path.read_bytes())
            if outcome["state"] == "failed" and outcome["exit_status"]:
                failed.append((_when(outcome), int(outcome["node"]), int(outcome["exit_status"]), outcome))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    if not failed:
        return None
    _, node, status, outcome = min(failed, key=lambda each: each[:3])
    rank = outcome.get("first_failed_rank")
    return FirstFailure(directory.name, node, status, rank if isinstance(rank, int) else None)


def newest_run(base: Path, prefix: str) -> Path | None:
    """Return the newest directory of a run whose id begins with ``prefix``, None where there is none."""
    found = [path for path in (base / "runs").glob(f"{prefix}*") if path.is_dir()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _when(outcome: Mapping[str, Any]) -> float:
    """The end of the first rank that failed by itself; of the run where no rank says so."""
    ranks = [rank for attempt in outcome["attempts"] for rank in attempt["ranks"]]
    ends = [rank["ended_s"] for rank in ranks if rank["ended_by"] == "itself" and (rank["exit_code"] or rank["signal"])]
    return min((float(end) for end in ends if end is not None), default=float(outcome["ended_s"]))
