"""``outcome.json``: how a run ended, rank by rank, as frozen values that are written as JSON and read back.

Node 0 writes it into the run's directory, node K into ``node-K``; a launcher over several hosts replaces node 0's with
one for all nodes. Its paths are relative to the run's directory. All reading of outcomes is in this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ddplaunch.explain.diagnosis import Diagnosis, Echo, Explanation, RankEnd
from ddplaunch.records.json_files import LARGEST, objects, read_object, replace_file
from ddplaunch.values.codec import from_plain, plain
from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable

SCHEMA = 1
_TOLD_RANKS = 64
_OBSERVED = "observed.json"  # in the folder of a node

#: "terminated": a signal told torchrun to end. "killed": torchrun itself died without a message.
RunState = Literal["succeeded", "failed", "terminated", "killed"]
#: How an earlier run ended: "alike" and "otherwise" compare its failure with the current one.
Ended = Literal["succeeded", "alike", "otherwise"]
#: "itself": before it was told to end. "launcher": after torchrun or the guard began to end the ranks.
EndedBy = Literal["itself", "launcher"]


@dataclass(frozen=True)
class RankOutcome:
    """One rank of one attempt. ``exit_code`` and ``signal`` ("SIGKILL") are both None if unknown.

    Times are seconds since the epoch. ``out`` and ``err`` are files of the record; ``err`` is None if one has both.
    ``through`` is the rank's note at the end of its program: "group" if its process group still existed, or "through".
    """

    rank: int
    local_rank: int
    host: str
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    started_s: float | None = None
    ended_s: float | None = None
    ended_by: EndedBy | None = None
    last_lines: tuple[str, ...] = ()
    out: str | None = None
    err: str | None = None
    through: str | None = None


@dataclass(frozen=True)
class AttemptOutcome:
    """One start of a node's ranks, and why it failed, if it did."""

    attempt: int
    started_s: float
    ended_s: float
    failed: bool
    diagnosis: Diagnosis | None
    ranks: tuple[RankOutcome, ...]


@dataclass(frozen=True)
class PreviousRun:
    """How the previous run of the same command ended, and which of the script's files have ``changed`` since."""

    run_id: str
    ended: Ended
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended on one node, or on all. ``diagnosis`` is the last attempt's, ``exit_status`` the launcher's own.

    ``findings`` say where the ranks did not train as planned; ``previous`` is the previous run of the same command, if
    this one failed. ``launch`` is the launch's token (``LAUNCH``), empty from older versions. ``explained`` is False if
    the file has no explanation that this version understands.
    """

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
    findings: tuple[Finding, ...] = ()
    explained: bool = True
    previous: PreviousRun | None = None
    launch: str = ""

    @property
    def last_ranks(self) -> tuple[RankOutcome, ...]:
        """The ranks of the last attempt."""
        return self.attempts[-1].ranks if self.attempts else ()

    def is_of(self, launch: str) -> bool:
        """Return whether this is the outcome of the launch with this token; True if either has no token."""
        return not (launch and self.launch) or launch == self.launch

    @property
    def explanation(self) -> Explanation | None:
        """What was found when the run ended, with the ``findings`` as its warnings; None if unknown."""
        return Explanation(self.diagnosis, self.cascade, warnings=self.findings) if self.explained else None


def rank_end(rank: RankOutcome) -> RankEnd:
    """Return a rank's end in the form that the explanation uses."""
    values = (rank.exit_code, rank.signal, rank.ended_s, rank.ended_by, rank.through)
    return RankEnd(rank.rank, rank.host or None, *values)


def outcome_path(directory: Path, node: int) -> Path:
    """Return the path of a node's outcome in the run's directory."""
    return directory / "outcome.json" if node == 0 else directory / f"node-{node}" / "outcome.json"


def outcome_json(outcome: RunOutcome) -> dict[str, Any]:
    """Return the outcome as JSON values, schema 1."""
    value = {"schema": SCHEMA, **plain(outcome)}
    del value["explained"]  # not part of the file
    return value


def write_outcome(directory: Path, outcome: RunOutcome, path: Path | None = None) -> str | None:
    """Write the outcome atomically, to ``path`` or its node's place; return why that failed, or None. Never raises."""
    path = path or outcome_path(directory, outcome.node)
    try:
        replace_file(path, json.dumps(outcome_json(outcome), indent=1) + "\n")
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def read_outcome(directory: Path, node: int = 0) -> RunOutcome | Unavailable | None:
    """Return the outcome of ``node``, None if it wrote none, ``Unavailable`` if it cannot be read."""
    path = outcome_path(directory, node)
    try:
        return _outcome(read_object(path, LARGEST), directory.name, node)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Unavailable(f"{path.name}: {error.strerror}")
    except ValueError as error:
        return Unavailable(str(error).replace(RunOutcome.__name__, path.name))


def outcome_of(data: Mapping[str, Any]) -> RunOutcome | None:
    """Return the outcome that another node sent; None if it is invalid."""
    try:
        return _outcome(data, "", 0)
    except ValueError:
        return None


def short_outcome(outcome: RunOutcome) -> dict[str, Any]:
    """Return the outcome as sent to other nodes: last attempt, first 64 ranks, no last lines or findings."""
    attempts = tuple(
        replace(attempt, ranks=tuple(replace(rank, last_lines=()) for rank in attempt.ranks[:_TOLD_RANKS]))
        for attempt in outcome.attempts[-1:]
    )
    return outcome_json(replace(outcome, attempts=attempts, findings=(), notes=(), previous=None))


def _outcome(data: Mapping[str, Any], run_id: str, node: int) -> RunOutcome:
    """Return the outcome in ``data``.

    Raises ValueError if state, exit status or end time is missing, or a value has another type. An outcome of another
    version may lack other fields, and explain a failure in terms that this version does not know.
    """
    least: dict[str, Any] = {
        "run_id": run_id,
        "host": "",
        "node": node,
        "started_s": data.get("ended_s"),
        "cascade": [],
        "attempts": [],
    }
    fields = {**least, **data, "explained": "diagnosis" in data}
    try:
        return from_plain(fields, RunOutcome)
    except ValueError:
        attempts = [{**attempt, "diagnosis": None} for attempt in objects(data.get("attempts"))]
        words: dict[str, Any] = {"diagnosis": None, "cascade": [], "findings": [], "previous": None, "explained": False}
        return from_plain({**fields, **words, "attempts": attempts}, RunOutcome)


def write_findings(node: str, findings: Sequence[Finding]) -> None:
    """Keep findings about a running run in the folder ``node-K``, for `ps`; do nothing if that is impossible."""
    with suppress(OSError, ValueError):
        replace_file(f"{node}/{_OBSERVED}", json.dumps({"schema": SCHEMA, "findings": plain(tuple(findings))}) + "\n")


def read_findings(directory: Path) -> tuple[Finding, ...]:
    """Return the findings about a running run; none if nothing readable was written."""
    try:
        return findings_from_json(read_object(directory / "node-0" / _OBSERVED).get("findings"))
    except (OSError, ValueError):
        return ()


def findings_from_json(value: Any) -> tuple[Finding, ...]:
    """Return the findings from the output of ``plain``; none for None. Raises ValueError for other values."""
    return from_plain(value or [], tuple[Finding, ...])
