"""Reads what ranks recorded: the events of each rank in their order, and the steps of all ranks side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddplaunch.values.frozen import dataclass

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Recorded:
    """The events of each rank, in the order of ranks."""

    ranks: tuple[tuple[Event, ...], ...]

    def of(self, kind: str) -> list[list[Event]]:
        """Return the events of one kind, for each rank."""
        return [[event for event in events if event["event"] == kind] for events in self.ranks]

    def steps(self) -> list[tuple[Event, ...]]:
        """Return the steps that all ranks made: the same step of each rank together."""
        return list(zip(*self.of("step"), strict=False))


def read_recording(folder: Path) -> Recorded:
    """Return the recording in ``folder``; a line that a rank was still writing is left out."""
    # in the order of ranks
    files = (path.read_text().split("\n")[:-1] for path in sorted(folder.glob("rank-*.proof")))
    return Recorded(tuple(tuple(map(json.loads, lines)) for lines in files))
