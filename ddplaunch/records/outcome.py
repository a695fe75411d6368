"""``outcome.json``: how a run ended, rank by rank, as values and as JSON; refuses to find out why.

Node 0 writes it into the run's directory, node K into ``node-K``. Paths in it are relative to the run's directory.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Literal

from ddplaunch.explain.as_json import diagnosis_json, echo_json, raised_json
from ddplaunch.explain.diagnosis import Diagnosis, Echo, Raised
from ddplaunch.frozen import dataclass

SCHEMA = 1

#: "terminated": torchrun was told to end by a signal. "killed": torchrun itself died without a word.
RunState = Literal["succeeded", "failed", "terminated", "killed"]


@dataclass(frozen=True)
class RankOutcome:
    """One rank of one attempt. ``exit_code`` and ``signal`` ("SIGKILL") are both None where nobody could see.

    Times are seconds since the epoch. ``out`` and ``err`` are files of the record, ``err`` None where both were one.
    """

    rank: int
    local_rank: int
    host: str
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    started_s: float | None = None
    ended_s: float | None = None
    ended_by: Literal["itself", "launcher"] | None = None
    last_lines: tuple[str, ...] = ()
    raised: Raised | None = None
    out: str | None = None
    err: str | None = None


@dataclass(frozen=True)
class AttemptOutcome:
    """One start of a node's ranks, with the reason of its failure if it failed."""

    attempt: int
    started_s: float
    ended_s: float
    failed: bool
    diagnosis: Diagnosis | None
    ranks: tuple[RankOutcome, ...]


@dataclass(frozen=True)
class Outcome:
    """How a run ended on one node. ``diagnosis`` is that of the last attempt, ``exit_status`` the launcher's own."""

    run_id: str
    host: str
    node: int
    state: RunState
    exit_status: int
    started_s: float
    ended_s: float
    first_failed_rank: int | None
    diagnosis: Diagnosis | None
    cascade: tuple[Echo, ...]
    attempts: tuple[AttemptOutcome, ...]
    notes: tuple[str, ...] = ()


def outcome_path(directory: Path, node: int) -> Path:
    """Return where the outcome of ``node`` is, in the directory of its run."""
    return directory / "outcome.json" if node == 0 else directory / f"node-{node}" / "outcome.json"


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as JSON values, schema 1."""
    return {
        "schema": SCHEMA,
        "run_id": outcome.run_id,
        "host": outcome.host,
        "node": outcome.node,
        "state": outcome.state,
        "exit_status": outcome.exit_status,
        "started_s": outcome.started_s,
        "ended_s": outcome.ended_s,
        "first_failed_rank": outcome.first_failed_rank,
        "diagnosis": None if outcome.diagnosis is None else diagnosis_json(outcome.diagnosis),
        "cascade": [echo_json(echo) for echo in outcome.cascade],
        "attempts": [_attempt(attempt) for attempt in outcome.attempts],
        "notes": list(outcome.notes),
    }


def _attempt(attempt: AttemptOutcome) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "started_s": attempt.started_s,
        "ended_s": attempt.ended_s,
        "failed": attempt.failed,
        "diagnosis": None if attempt.diagnosis is None else diagnosis_json(attempt.diagnosis),
        "ranks": [_rank(rank) for rank in attempt.ranks],
    }


def _rank(rank: RankOutcome) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "pid": rank.pid,
        "host": rank.host,
        "exit_code": rank.exit_code,
        "signal": rank.signal,
        "started_s": rank.started_s,
        "ended_s": rank.ended_s,
        "ended_by": rank.ended_by,
        "last_lines": list(rank.last_lines),
        "exception": None if rank.raised is None else raised_json(rank.raised),
        "out": rank.out,
        "err": rank.err,
    }


def write_outcome(directory: Path, outcome: Outcome) -> str | None:
    """Write it in one step; return why that was impossible, None if it was not. Never raises."""
    path = outcome_path(directory, outcome.node)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(outcome_json(outcome), file, indent=1)
            file.write("\n")
        draft.replace(path)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        return getattr(error, "strerror", None) or str(error)
    return None
