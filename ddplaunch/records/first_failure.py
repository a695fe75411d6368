"""Which node of a run failed first, from the outcomes that all nodes wrote; refuses to explain it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddplaunch.explain.as_json import diagnosis_from_json
from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.frozen import dataclass


@dataclass(frozen=True)
class FirstFailure:
    """The node whose own rank failed first: ``exit_status`` as its launcher gave it, ``rank`` if it is known.

    ``reason`` is what its diagnosis says in one line, "" where it has none.
    """

    run_id: str
    node: int
    exit_status: int
    rank: int | None
    reason: str = ""


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
    rank, found = outcome.get("first_failed_rank"), outcome.get("diagnosis")
    reason = found.get("what") if isinstance(found, dict) else None
    return FirstFailure(
        directory.name, node, status, rank if isinstance(rank, int) else None, reason if isinstance(reason, str) else ""
    )


def ended_from_outside(directory: Path) -> Diagnosis | None:
    """Return why node 0 says that somebody else ended the run; None where nobody did, or nothing says why."""
    try:
        outcome = json.loads((directory / "outcome.json").read_bytes())
        return diagnosis_from_json(outcome["diagnosis"]) if outcome["state"] == "terminated" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def newest_run(base: Path, prefix: str) -> Path | None:
    """Return the newest directory of a run whose id begins with ``prefix``, None where there is none."""
    found = [path for path in (base / "runs").glob(f"{prefix}*") if path.is_dir()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _when(outcome: Mapping[str, Any]) -> float:
    """The end of the first rank that failed by itself; of the run where no rank says so."""
    ranks = [rank for attempt in outcome["attempts"] for rank in attempt["ranks"]]
    ends = [rank["ended_s"] for rank in ranks if rank["ended_by"] == "itself" and (rank["exit_code"] or rank["signal"])]
    return min((float(end) for end in ends if end is not None), default=float(outcome["ended_s"]))
