"""Which files of a run's record hold what its ranks printed; refuses to read them."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from ddplaunch.frozen import dataclass
from ddplaunch.records.find import node_directories

_ATTEMPT = re.compile(r"attempt-(\d+)")
_FILE = re.compile(r"rank-(\d+)\.(out|err)")


@dataclass(frozen=True)
class LogFile:
    """One stream of one rank in one attempt; ``rank`` is global, ``attempt`` counts on its node from 0."""

    path: Path
    node: int
    attempt: int
    rank: int
    stream: str

    @property
    def order(self) -> tuple[int, int, bool, int]:
        """By attempt, then rank; stderr last, because a traceback is."""
        return (self.attempt, self.rank, self.stream == "err", self.node)


def log_files(directory: Path, ranks: frozenset[int] | None = None) -> list[LogFile]:
    """Return the files of these ranks (None: all) in order of attempt and rank; none where the record is gone."""
    found = []
    for node, folder in node_directories(directory):
        for attempt, place in _attempts(folder):
            with suppress(OSError), os.scandir(place) as entries:
                for entry in entries:
                    match = _FILE.fullmatch(entry.name)
                    if match and (ranks is None or int(match[1]) in ranks):
                        found.append(LogFile(Path(entry.path), node, attempt, int(match[1]), match[2]))
    return sorted(found, key=lambda file: file.order)


def _attempts(folder: Path) -> list[tuple[int, Path]]:
    found = []
    with suppress(OSError):
        for path in folder.iterdir():
            if match := _ATTEMPT.fullmatch(path.name):
                found.append((int(match[1]), path))
    return sorted(found)
