"""Finds and reads the records of runs, in whatever state they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddplaunch.records.directory import metrics_path, not_yours, path_text
from ddplaunch.records.first_failure import first_failed_node
from ddplaunch.records.json_files import as_number, as_text, objects, read_object
from ddplaunch.records.outcome import RunOutcome, read_outcome
from ddplaunch.records.own.own_files import NotOursError, foreign, own_folders, read_file
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import UsageError
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.variable_names import RANK_CALL

_MOST_METRICS = 1 << 28  # bytes


@dataclass(frozen=True)
class RunRecord:
    """One run as recorded in its directory. ``run`` is run.json, ``outcomes`` are by node; both may be incomplete.

    ``created_s`` is in seconds since the epoch. ``problem`` is a clause that says why something could not be read.
    """

    run_id: str
    directory: Path
    created_s: float
    run: Mapping[str, Any]
    outcomes: Mapping[int, RunOutcome]
    problem: str | None = None

    def value(self, *path: str) -> Any:
        """Return the value at ``path`` in run.json, or None."""
        value: Any = self.run
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    @property
    def host(self) -> str | None:
        """The host where the run was launched."""
        return as_text(self.value("host", "host", "name"))

    @property
    def script(self) -> str | None:
        """The script of the ranks, as it was typed; ``name()`` for a Python function."""
        name, words = as_text(self.value("plan", "target", "name")), self.value("plan", "target", "args")
        if name == RANK_CALL and isinstance(words, list) and len(words) > 1:
            return f"{words[1]}()"
        return name

    @property
    def outcome(self) -> RunOutcome | None:
        """The outcome that speaks for the run: node 0's, or that of the node that failed first.

        Node 0 speaks if it failed: over ssh its outcome covers all nodes, elsewhere it names another node's failure if
        it knew of one. It also speaks if Slurm told it why the job ended; such a reason is evidence without a line.
        """
        if not self.outcomes:
            return None
        first = self.outcomes[min(self.outcomes)]
        reason = first.diagnosis if first.state == "terminated" else None
        told_by_slurm = reason is not None and any(not evidence.line for evidence in reason.evidence)
        if told_by_slurm or first.state in ("failed", "killed"):
            return first
        return first_failed_node(self.outcomes) or first

    @property
    def findings(self) -> list[dict[str, Any]]:
        """What the launch warned of, and what was found while it ran, as JSON values."""
        during = () if self.outcome is None else self.outcome.findings
        return objects(self.value("findings")) + objects(plain(during))

    @property
    def slurm_job(self) -> str | None:
        """The Slurm job as squeue shows it: ``12``, or ``3_0`` for an element of an array; None outside of a job."""
        array, task = (as_text(self.value("environment", f"SLURM_ARRAY_{name}_ID")) for name in ("JOB", "TASK"))
        return f"{array}_{task}" if array and task else as_text(self.value("environment", "SLURM_JOB_ID"))


def run_directories(base: Path) -> list[Path]:
    """Return the directories of this user's runs under ``base``, most recently started first."""
    begun: list[tuple[float, str, Path]] = []
    for name in own_folders(base / "runs"):
        with suppress(OSError):
            begun.append((_begun_s(base / "runs" / name), name, base / "runs" / name))
    return [path for _, _, path in sorted(begun, reverse=True)]


def _begun_s(directory: Path) -> float:
    """Return when run.json was written; a directory's own time would change with every new file.

    Without run.json, the directory's time is returned. Raises OSError if the directory is gone.
    """
    try:
        return (directory / "run.json").lstat().st_mtime
    except OSError:
        return directory.stat().st_mtime


def read_record(directory: Path) -> RunRecord:
    """Return the record in ``directory``; ``problem`` says what is missing, broken or too new. Never raises.

    A run ID may be reused: an outcome that another launch left for a node is ignored.
    """
    problems: list[str] = []
    shared = run = _read(directory / "run.json", problems)
    outcomes = {}
    for node in sorted({0, *(node for node, _ in numbered(directory, "node"))}):
        run_of_node = _read(directory / f"node-{node}" / "run.json", [] if run else problems)
        run = run or run_of_node  # on this host there may be only this node's record
        outcome = read_outcome(directory, node)
        if isinstance(outcome, Unavailable):
            problems.append(outcome.reason)
        elif outcome is not None and outcome.is_of(as_text((run_of_node or shared).get("launch")) or ""):
            outcomes[node] = outcome
    created = as_number(run.get("created_s"))
    if created is None:
        created = 0.0
        with suppress(OSError):
            created = _begun_s(directory)
    if not run:
        problems.append("no run.json" if directory.is_dir() else "the directory is gone")
    return RunRecord(directory.name, directory, float(created), run, outcomes, problems[0] if problems else None)


def read_run(directory: Path, node: int) -> dict[str, Any]:
    """Return run.json as ``node`` wrote it, else node 0's; empty if neither can be read."""
    return _read(directory / f"node-{node}" / "run.json", []) or _read(directory / "run.json", [])


def numbered(directory: Path, kind: str) -> list[tuple[int, Path]]:
    """Return the folders ``KIND-K`` in ``directory`` and their numbers, in order: nodes, or attempts of a node."""
    matches = (re.fullmatch(rf"{kind}-(\d{{1,9}})", name) for name in own_folders(directory))
    return sorted((int(match[1]), directory / match[0]) for match in matches if match)


def last_metrics(directory: Path) -> dict[str, float]:
    """Return the last value of each metric that rank 0 passed to ``ddplaunch.log_metrics`` in the run's last attempt.

    The file has lines such as ``{"metrics": {"val_loss": 0.31}, "step": 1200, "at_s": 1763870000.1}``; ``step`` is
    optional, ``at_s`` is in seconds since the epoch. Incomplete lines are skipped.
    """
    found: dict[str, float] = {}
    attempts = numbered(directory / "node-0", "attempt")
    try:
        text = read_file(metrics_path(attempts[-1][1]), _MOST_METRICS) if attempts else b""
    except OSError:
        return found
    for line in text.splitlines():
        try:
            metrics = json.loads(line)["metrics"].items()
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        found.update({name: number for name, value in metrics if (number := as_number(value)) is not None})
    return found


def _read(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return read_object(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        problems.append(f"{path.name}: {error.strerror}")
    except ValueError as error:
        problems.append(str(error))
    return {}


def yours(directory: Path) -> Path:
    """Return ``directory``. Raises UsageError if it is another user's record."""
    reason = foreign(directory)
    if reason is None:
        return directory
    fix = f"`cp -r {path_text(directory)} .` makes a record of yours, if you may read it"
    raise UsageError(not_yours(NotOursError(reason, str(directory)), fix))


def runs_of_job(base: Path, job: str) -> dict[str, Path]:
    """Return the newest run of a Slurm job, or of each element of a job array, by the name that squeue shows.

    ``job`` is ``12``, ``3_0``, or ``3`` for all elements of an array. Each element also has its own job number, with
    which its run ID begins; the last element's is the number of the array.
    """
    newest: dict[str, Path] = {}
    for path in run_directories(base):
        if path.name.startswith("slurm-"):
            own = path.name.removeprefix("slurm-").partition(".")[0]
            name = read_record(path).slurm_job or own
            if job in (own, name, name.partition("_")[0]):
                newest.setdefault(name, path)
    return newest
