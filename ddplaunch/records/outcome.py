"""``outcome.json``: how a run ended, rank by rank, as values and as JSON; refuses to find out why.

Node 0 writes it into the run's directory, node K into ``node-K``. Paths in it are relative to the run's directory.

The records of all hosts in one directory, and one outcome for all; refuses to find the reason of a failure.

Each host wrote ``node-K`` and its outcome on its own disk. Where all see one file system, nothing has to be brought.

Which node of a run failed first, from the outcomes that all nodes wrote; refuses to explain it.
"""

from __future__ import annotations

import contextlib
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal

from ddplaunch.explain.diagnosis import (
    Diagnosis,
    Echo,
    Explanation,
    Raised,
    RankEnd,
    diagnosis_from_json,
    diagnosis_json,
    echo_json,
    raised_json,
)
from ddplaunch.records.find import read_object
from ddplaunch.records.first_failure import RankEnding, signal_name
from ddplaunch.values.frozen import dataclass

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
class RunOutcome:
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

    @property
    def last_ranks(self) -> tuple[RankOutcome, ...]:
        """The ranks of the last attempt."""
        return self.attempts[-1].ranks if self.attempts else ()


def outcome_path(directory: Path, node: int) -> Path:
    """Return where the outcome of ``node`` is, in the directory of its run."""
    return directory / "outcome.json" if node == 0 else directory / f"node-{node}" / "outcome.json"


def outcome_json(outcome: RunOutcome) -> dict[str, Any]:
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


def rank_end(end: RankEnding, host: str | None) -> RankEnd:
    """Return how a rank ended as the explanation takes it, with the name of its signal."""
    name = signal_name(end.signal) if isinstance(end.signal, int) else end.signal
    return RankEnd(end.rank, host, end.exit_code, name, end.ended_s, end.ended_by)


def write_outcome(directory: Path, outcome: RunOutcome) -> str | None:
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


_TIMES = ("started_s", "ended_s")


class Pieces:
    """Archives of the hosts' records as they arrive, kept in the run's directory until they are whole."""

    def __init__(self, directory: Path) -> None:
        """Files are made when the first piece of a node comes."""
        self._directory = directory
        self._files: dict[int, BinaryIO] = {}
        self.problem: str | None = None

    def keep(self, node: int, data: bytes) -> None:
        """Add a piece. A full disk is noted, and costs the record alone."""
        if self.problem is not None:
            return
        try:
            if node not in self._files:
                path = self._directory / f".node-{node}.tar"
                self._files[node] = open(path, "w+b")  # noqa: SIM115 - closed in unpack
                path.unlink()
            self._files[node].write(data)
        except OSError as error:
            self.problem = error.strerror or str(error)

    def unpack(self) -> None:
        """Put what came in its place: of node 0 all files but run.json, of node K those below ``node-K``."""
        for node, file in self._files.items():
            with file:
                try:
                    file.seek(0)
                    self._unpack(node, file)
                except (OSError, tarfile.TarError) as error:  # a host that was cut off: what came is there
                    self.problem = self.problem or f"node {node}: {error}"

    def _unpack(self, node: int, file: BinaryIO) -> None:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if not member.isfile() or path.is_absolute() or ".." in path.parts:
                    continue
                if path.name == "run.json" if node == 0 else path.parts[0] != f"node-{node}":
                    continue
                source = archive.extractfile(member)
                if source is None:
                    continue
                target = self._directory / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as copy:
                    while chunk := source.read(1 << 20):
                        copy.write(chunk)
                os.utime(target, (member.mtime, member.mtime))


def outcome_of_node(directory: Path, node: int) -> dict[str, Any] | None:
    """Return what node ``node`` wrote about its end, None where it wrote nothing that can be read."""
    path = directory / "outcome.json" if node == 0 else directory / f"node-{node}" / "outcome.json"
    try:
        return read_object(path)
    except (OSError, ValueError):
        return None


def without_skew(outcome: Mapping[str, Any], ahead_s: float) -> dict[str, Any]:
    """Return a node's outcome with its times by the launcher's clock."""

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: round(item - ahead_s, 3) if key in _TIMES and isinstance(item, (int, float)) else moved(item)
                for key, item in value.items()
            }
        return [moved(item) for item in value] if isinstance(value, list) else value

    result: dict[str, Any] = moved(dict(outcome))
    return result


@dataclass(frozen=True)
class Verdict:
    """What is known of the whole run. ``node`` is the one where it began to fail, None for success."""

    state: str
    exit_status: int
    explanation: Explanation
    node: int | None = None
    host: str = ""
    notes: tuple[str, ...] = ()


def merged(run_id: str, outcomes: Mapping[int, Mapping[str, Any]], verdict: Verdict, times: Sequence[float]) -> Any:
    """Return one outcome for all nodes, in the shape of each one's; attempt A holds the ranks of every node's A.

    ``outcomes`` are by node, with times by one clock; ``times`` are when the launcher began and ended.
    """
    found = verdict.explanation.diagnosis
    attempts: dict[int, dict[str, Any]] = {}
    for outcome in outcomes.values():
        for each in outcome.get("attempts") or []:
            attempt = attempts.setdefault(each["attempt"], {**each, "failed": False, "diagnosis": None, "ranks": []})
            attempt["started_s"] = min(attempt["started_s"], each["started_s"])
            attempt["ended_s"] = max(attempt["ended_s"], each["ended_s"])
            attempt["failed"] = attempt["failed"] or each["failed"]
            attempt["ranks"] = sorted([*attempt["ranks"], *each["ranks"]], key=lambda rank: rank["rank"])
    if attempts and found is not None:
        attempts[max(attempts)]["diagnosis"] = diagnosis_json(found)
    return {
        "schema": 1,
        "run_id": run_id,
        "host": verdict.host,
        "node": verdict.node or 0,
        "state": verdict.state,
        "exit_status": verdict.exit_status,
        "started_s": round(times[0], 3),
        "ended_s": round(times[1], 3),
        "first_failed_rank": None if found is None else found.rank,
        "diagnosis": None if found is None else diagnosis_json(found),
        "cascade": [echo_json(echo) for echo in verdict.explanation.cascade],
        "attempts": [attempts[number] for number in sorted(attempts)],
        "notes": list(verdict.notes),
    }


def write_merged(directory: Path, outcome: Mapping[str, Any]) -> str | None:
    """Write the run's outcome; node 0's own goes into ``node-0``. Returns why that was impossible. Never raises."""
    path, draft = directory / "outcome.json", directory / f".outcome.json.{os.getpid()}"
    try:
        if path.exists():
            (directory / "node-0").mkdir(exist_ok=True)
            path.replace(directory / "node-0" / "outcome.json")
        draft.write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        return error.strerror or str(error)
    return None


def diagnosis_of(outcome: Mapping[str, Any]) -> Diagnosis | None:
    """Return what the node itself found, None where it found nothing."""
    value = outcome.get("diagnosis")
    try:
        return None if value is None else diagnosis_from_json(value)
    except (KeyError, TypeError):
        return None


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
