"""The newest checkpoint below an output path, by a child with a deadline; refuses to read what is in any file.

Logs, settings and trackers' files do not count, because runs that fail at once write them too; nor do hidden ones.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from typing import Any

from ddplaunch.frozen import dataclass
from ddplaunch.probes import deadline

DEADLINE_S = 5.0
_MOST = 200_000  # entries; a directory with more of them holds samples, not checkpoints
_NO_CHECKPOINT = (".log", ".txt", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".csv", ".out", ".err", ".md", ".py")
_NO_CHECKPOINT_EITHER = (".lock", ".tmp", ".pid", ".html", ".svg", ".png", ".pyc", ".ini", ".cfg", ".sh", ".diff")
_OF_TRACKERS = frozenset({"wandb", "mlruns", "__pycache__"})


@dataclass(frozen=True)
class Newest:
    """``path`` was changed last, at ``changed_ns`` since the epoch by the file system's clock, and has ``bytes``. All
    are empty where there is no checkpoint; ``problem`` says why nobody can tell.
    """

    path: str = ""
    changed_ns: int = 0
    bytes: int = 0
    problem: str | None = None


def newest_below(paths: Sequence[str], deadline_s: float = DEADLINE_S) -> tuple[Newest, ...]:
    """Look below all paths at once, within ``deadline_s`` seconds together, dead mounts or not; never raises."""
    try:
        children = [deadline.start(lambda path=path: look(path)) for path in paths]  # type: ignore[misc]
    except OSError as error:
        return tuple(Newest(problem=f"no process could be started: {error.strerror}") for _ in paths)
    answers = deadline.collect(children, time.monotonic() + deadline_s)
    return tuple(_newest(answer, deadline_s) for answer in answers)


def _newest(answer: deadline.Answer, deadline_s: float) -> Newest:
    if answer.late:
        return Newest(problem=f"did not answer within {deadline_s:g} s")
    return Newest(problem=answer.error) if answer.error is not None else Newest(*answer.value)


def look(path: str) -> tuple[Any, ...]:
    """Return the fields of a ``Newest``; runs in the child and may block."""
    best: tuple[int, int, str] = (0, 0, "")
    try:
        status = os.stat(path)  # noqa: PTH116  Path("") would be the working folder
    except (OSError, ValueError):  # it is made by the script, maybe
        return ("", 0, 0, None)
    if not stat.S_ISDIR(status.st_mode):
        return (path, status.st_mtime_ns, status.st_size, None)
    seen = 0
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _OF_TRACKERS]
        for name in names:
            seen += 1
            if seen > _MOST:
                return ("", 0, 0, f"holds more than {_MOST} files")
            if is_checkpoint(name):
                best = max(best, _file(f"{folder}/{name}"))
    changed_ns, size, found = best
    return (found, changed_ns, size, None)


def _file(path: str) -> tuple[int, int, str]:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:  # it was removed meanwhile
        return (0, 0, "")
    return (status.st_mtime_ns, status.st_size, path)


def is_checkpoint(name: str) -> bool:
    """Whether a file of this name may be one: not hidden, no log, setting or half of a file."""
    lower = name.lower()
    return not (
        lower.startswith((".", "events.out.tfevents", "license"))
        or lower.endswith(_NO_CHECKPOINT)
        or lower.endswith(_NO_CHECKPOINT_EITHER)
    )


def advanced(before: Newest, after: Newest) -> bool:
    """Whether there is a checkpoint now that was not there, or was older or of another size. Both have to be known."""
    if before.problem is not None or after.problem is not None or not after.path:
        return False
    return (after.changed_ns, after.bytes) != (
        before.changed_ns,
        before.bytes,
    ) and after.changed_ns >= before.changed_ns
