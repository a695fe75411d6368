"""Where records of runs are stored, how runs are named, and how paths are shown to the user."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ddplaunch.records.json_files import read_object, replace_file
from ddplaunch.records.own.own_files import NotOursError, read_file
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.frozen import dataclass

_STOP_NOTE = "stop.json"


_LONGEST_ID_BYTES = 200  # file systems allow 255 bytes, and links to a run have longer names


def runs_directory(
    run_dir_option: str | None, environ: Mapping[str, str] = os.environ, cwd: Path | None = None
) -> Path:
    """Return the parent of ``runs/``: ``--run-dir``, else ``DDPLAUNCH_DIR``, else ``.ddplaunch`` in ``cwd``.

    ``cwd`` defaults to the working directory of this process.
    """
    return (cwd or Path.cwd()) / (run_dir_option or environ.get("DDPLAUNCH_DIR") or ".ddplaunch")


def run_directory(base: Path, run_id: str) -> Path:
    """Return the directory of one run.

    Raises ValueError if ``run_id`` cannot be the name of a directory; so no ID leads outside of ``base``.
    """
    if run_id in ("", ".", "..", "latest") or "/" in run_id or "\0" in run_id:
        raise ValueError(f"the run id {run_id!r} cannot be the name of a directory")
    if len(os.fsencode(run_id)) > _LONGEST_ID_BYTES:
        raise ValueError(f"the run id {run_id[:20]}… has more than {_LONGEST_ID_BYTES} bytes")
    return base / "runs" / run_id


@dataclass(frozen=True)
class StopNote:
    """Who ended a run: ``user`` by `ddplaunch stop`, or, with ``launcher_lost``, the host because it lost the launcher.

    ``at_s`` is in seconds since the epoch.
    """

    user: str
    at_s: float
    launcher_lost: bool


def note_stop(directory: Path, launcher_lost: bool = False) -> None:
    """Note in the run's record who ends it, for its final report; does nothing to another user's record."""
    from ddplaunch.machine.files import owner_name
    from ddplaunch.values.codec import to_json

    note = StopNote(owner_name(os.geteuid()), round(time.time(), 3), launcher_lost)
    with suppress(OSError):  # for example, another user's record
        replace_file(directory / _STOP_NOTE, to_json(note) + "\n")


def read_stop(directory: Path, since_s: float) -> StopNote | None:
    """Return who ended the run since ``since_s`` (epoch), or None. The note is written before the first signal."""
    from ddplaunch.values.codec import from_plain

    with suppress(OSError, ValueError):
        note = from_plain(read_object(directory / _STOP_NOTE), StopNote)
        return note if note.at_s >= since_s else None
    return None


def note_path(attempt: Path, rank: int) -> Path:
    """Return the path of a rank's note on its first optimizer steps."""
    return attempt / f"rank-{rank}.observed.json"


def through_path(attempt: Path, rank: int) -> Path:
    """Return the path where a rank notes that its program has finished, before its libraries are shut down."""
    return attempt / f"rank-{rank}.through"


def read_through(path: str | Path) -> str | None:
    """Return what a rank noted at the end of its program: "group" if its process group still existed, else "through".

    None without a note.
    """
    with suppress(OSError, ValueError):
        return read_file(path, 16).decode("ascii", "replace") or None
    return None


def path_text(path: Path) -> str:
    """Return ``path`` for display, as a word of a shell: relative to the working directory if it is below it."""
    from shlex import quote

    text = f"{path}"
    with suppress(OSError, ValueError):  # the working directory is gone
        relative = os.path.relpath(path)
        text = text if relative.startswith("..") else relative
    return quote(text)


def not_yours(problem: NotOursError, fix: str) -> Finding:
    """Return the finding for a record or parent folder that is another user's, or a link."""
    path = path_text(Path(os.fsdecode(problem.filename)))
    return error(
        "record-not-yours",
        f"{path} {problem.strerror}",
        why="whoever can change a record has files written where its links lead, and says whom `stop` asks by ssh",
        fix=fix,
        where=path,
    )


def metrics_path(attempt: Path) -> Path:
    """Return the path where rank 0 of an attempt writes what its script reports with ``ddplaunch.log_metrics``."""
    return attempt / "rank-0.metrics.jsonl"


_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_SUFFIX = 6  # 36^6: two of 64 launches in one second collide with a probability of one in a million


def new_run_id(now: float | None = None) -> str:
    """Return a run ID such as ``20261121-143012-x7k2q9``, in UTC. ``now`` is in seconds since the epoch.

    UTC, because nodes of one job may be in different time zones, and because IDs must sort correctly through the hour
    that daylight saving time repeats.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    suffix = "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in os.urandom(_SUFFIX))
    return f"{stamp}-{suffix}"
