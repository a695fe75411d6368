"""Sets aside what an earlier run of the same id has left on this node; refuses to delete any of it.

A command that is pasted twice, or a ``--run-id`` that is used again, would otherwise go on in the files of the run
before, and its errors would be taken for this run's.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_OURS = ("launcher.err", "processes.json", "outcome.json", "metrics.jsonl", "relaunch.json")


def set_aside(directory: Path, node: int) -> Path | None:
    """Move attempts, messages and outcome of ``node`` into ``node-K/before-N``; return that, None if nothing was there.

    Raises OSError if they cannot be moved.
    """
    own = directory / f"node-{node}"
    if not own.is_dir():
        return None
    old = [*sorted(own.glob("attempt-*")), *(own / name for name in _OURS), *_outcome(directory, node)]
    old = [path for path in old if path.exists()]
    if not old:
        return None
    number = 1
    while (own / f"before-{number}").exists():
        number += 1
    place = own / f"before-{number}"
    place.mkdir()
    for path in old:
        with contextlib.suppress(FileNotFoundError):
            path.rename(place / path.name)
    return place


def _outcome(directory: Path, node: int) -> tuple[Path, ...]:
    return (directory / "outcome.json",) if node == 0 else ()
