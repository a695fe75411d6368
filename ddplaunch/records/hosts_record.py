"""Collects the records of all hosts of a launch in one directory: copies their files and merges their outcomes.

Each host writes ``node-K`` and its outcome to its own disk. On a shared file system nothing has to be copied.
"""

from __future__ import annotations

import math
import os
import shutil
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.records.first_failure import failed_by_itself
from ddplaunch.records.outcome import AttemptOutcome, RankOutcome, RunOutcome, outcome_path, write_outcome
from ddplaunch.records.own.own_files import closing, open_folder, open_place, open_to_write

_Timed = TypeVar("_Timed", RunOutcome, AttemptOutcome, RankOutcome)


class Pieces:
    """Archives of the hosts' records, kept in the run's directory until they have arrived completely."""

    def __init__(self, directory: Path) -> None:
        """Files are created when a node's first piece arrives."""
        self._directory = directory
        self._files: dict[int, BinaryIO] = {}
        self._is_full = False

    def keep(self, node: int, data: bytes) -> None:
        """Add a piece, unless the disk is full; the outcome of all nodes, which is written next, then says so."""
        if self._is_full:
            return
        try:
            if node not in self._files:
                path = self._directory / f".node-{node}.tar"
                self._files[node] = os.fdopen(open_to_write(path, os.O_RDWR | os.O_TRUNC), "w+b")
                path.unlink()
            self._files[node].write(data)
        except OSError:
            self._is_full = True

    def unpack(self) -> None:
        """Extract the archives: for node 0 all files but run.json, for node K those below ``node-K``."""
        for node, file in self._files.items():
            with suppress(OSError, tarfile.TarError), file:  # of a lost host, or on a full disk, keep what arrived
                file.seek(0)
                self._unpack(node, file)

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
                with open(open_to_write(target, os.O_WRONLY | os.O_TRUNC), "wb") as copy:
                    shutil.copyfileobj(source, copy)
                    copy.flush()
                    os.utime(copy.fileno(), (member.mtime, member.mtime))


def without_skew(outcome: RunOutcome, ahead_s: float) -> RunOutcome:
    """Return a node's outcome with its times converted to the launcher's clock."""

    def moved(value: _Timed, **changes: Any) -> _Timed:
        times = {name: getattr(value, name) for name in ("started_s", "ended_s")}
        changes |= {name: round(time_s - ahead_s, 3) for name, time_s in times.items() if time_s is not None}
        return replace(value, **changes)

    attempts = (moved(attempt, ranks=tuple(map(moved, attempt.ranks))) for attempt in outcome.attempts)
    return moved(outcome, attempts=tuple(attempts))


def merged_attempts(outcomes: Iterable[RunOutcome], diagnosis: Diagnosis | None) -> tuple[AttemptOutcome, ...]:
    """Return the attempts of all nodes: attempt A contains the ranks of every node's A. The last gets ``diagnosis``.

    An earlier attempt gets the diagnosis of the node whose rank failed first in it; the other nodes were ended because
    of that failure.
    """
    merged: dict[int, AttemptOutcome] = {}
    failed: dict[int, tuple[float, Diagnosis]] = {}
    for outcome in outcomes:
        for attempt in outcome.attempts:
            known = merged.get(attempt.attempt, replace(attempt, failed=False, diagnosis=None, ranks=()))
            merged[attempt.attempt] = replace(
                known,
                started_s=min(known.started_s, attempt.started_s),
                ended_s=max(known.ended_s, attempt.ended_s),
                failed=known.failed or attempt.failed,
                ranks=tuple(sorted((*known.ranks, *attempt.ranks), key=lambda rank: rank.rank)),
            )
            own_ends = [one.ended_s for one in attempt.ranks if failed_by_itself(one) and one.ended_s is not None]
            if (
                own_ends
                and attempt.diagnosis is not None
                and min(own_ends) < failed.get(attempt.attempt, (math.inf,))[0]
            ):
                failed[attempt.attempt] = (
                    min(own_ends),
                    replace(attempt.diagnosis, host=attempt.diagnosis.host or outcome.host),
                )
    found: dict[int, Diagnosis | None] = {number: known for number, (_, known) in failed.items()}
    if merged:
        found[max(merged)] = diagnosis
    return tuple(replace(merged[number], diagnosis=found.get(number)) for number in sorted(merged))


def write_for_all(directory: Path, outcome: RunOutcome) -> str | None:
    """Write the outcome of all nodes, moving node 0's own to ``node-0``; return why that failed, or None. Never raises.

    The outcome goes to the run's path even if it names node K as the one that failed.
    """
    path = outcome_path(directory, 0)
    try:
        if path.exists():
            with closing(open_place(directory)) as run, closing(open_folder(run, "node-0", create=True)) as node:
                os.replace(path.name, path.name, src_dir_fd=run, dst_dir_fd=node)
    except OSError as error:
        return error.strerror or str(error)
    return write_outcome(directory, outcome, path)
