"""The records of all hosts in one directory, and one outcome for all; refuses to find the reason of a failure.

Each host wrote ``node-K`` and its outcome on its own disk. Where all see one file system, nothing has to be brought.
"""

from __future__ import annotations

import contextlib
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ddplaunch.explain.as_json import diagnosis_from_json, diagnosis_json, echo_json
from ddplaunch.explain.diagnosis import Diagnosis, Explanation
from ddplaunch.frozen import dataclass
from ddplaunch.records.find import read_object

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
