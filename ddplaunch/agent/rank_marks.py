"""What ranks have noted of their own beginning, as parts of the phase in which their script runs; refuses to guess."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

Phase = tuple[str, float, float]  # name, seconds since 1970 at its begin and at its end
Marks = Mapping[str, float]

SCRIPT = "script"
#: What ends when the last rank has noted it, in this order.
_PARTS = (
    ("python_s", "Python in the ranks"),
    ("torch_s", "import torch in the ranks"),
    ("collective_s", "until the first collective"),
)


def file_of(attempt: Path, rank: int) -> Path:
    """Return where a rank of an attempt leaves its notes."""
    return attempt / f"rank-{rank}.marks.json"


def read_marks(attempt: Path) -> list[Marks]:
    """Return the notes of each rank of an attempt that has left any."""
    found: list[Marks] = []
    for path in sorted(attempt.glob("rank-*.marks.json")):
        try:
            value = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(value, dict):
            found.append({name: number for name, number in value.items() if isinstance(number, int | float)})
    return found


def with_parts(phases: Sequence[Phase], attempts: Sequence[Sequence[Marks]]) -> list[Phase]:
    """Divide the phase of each attempt's script where the last rank had Python, torch, and its first collective.

    A part that some rank has not noted, or that was over before, as with ranks that were forked, is left out.
    """
    found: list[Phase] = []
    left = iter(attempts)
    for name, began, ended in phases:
        marks = next(left, ()) if name == SCRIPT else ()
        for key, part in _PARTS:
            last = max((each.get(key, ended) for each in marks), default=ended)
            if began < last < ended:
                found.append((part, began, last))
                began = last
        found.append((name, began, ended))
    return found
