"""Finds records of ended runs that are old enough to be removed, and removes them.

Only a directory whose run.json names it as its run is removed. A run that may be alive keeps its record.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ddplaunch.records.directory import path_text
from ddplaunch.records.find import numbered, read_record, run_directories
from ddplaunch.records.json_files import read_object
from ddplaunch.records.launchers import read_processes
from ddplaunch.records.own.own_files import NotOursError, closing, open_place, own_folders, remove_folder
from ddplaunch.records.own.run_lock import hold_ended, is_held
from ddplaunch.records.run_states import state_of
from ddplaunch.values.frozen import dataclass


@dataclass(frozen=True)
class OldRecords:
    """``removable`` are the records beyond the newest ``keep``, oldest last; ``kept`` are old too, each with a reason.

    ``problem`` says in a sentence why nothing may be removed.
    """

    removable: tuple[Path, ...]
    kept: tuple[tuple[Path, str], ...]
    total: int
    problem: str | None = None


def old_records(base: Path, keep: int, busy: Collection[Path], host: str) -> OldRecords:
    """Return the records beyond the newest ``keep``. ``busy`` are directories of runs that are alive here."""
    try:
        with closing(open_place(base / "runs", links=False)) as runs:
            claims = {name: _claims(base / "runs" / name) for name in own_folders(runs)}
    except NotOursError as error:
        return OldRecords(
            (), (), 0, problem=f"{path_text(Path(error.filename))} {error.strerror}: nothing there is removed"
        )
    except OSError:
        return OldRecords((), (), 0)
    records = [path for path in run_directories(base) if claims.get(path.name)]
    removable, kept = [], []
    for directory in records[keep:]:
        reason = _reason_to_keep(directory, busy, host)
        if reason is None and directory.name not in claims[directory.name]:
            reason = "no run.json in it names this run"
        if reason is None:
            removable.append(directory)
        else:
            kept.append((directory, reason))
    return OldRecords(tuple(removable), tuple(kept), len(records))


def _claims(directory: Path) -> set[str]:
    """Return the run IDs in the run.json files of ``directory``, "" for one that cannot be read."""
    claims = set()
    for path in (directory / "run.json", *(folder / "run.json" for _, folder in numbered(directory, "node"))):
        try:
            claims.add(str(read_object(path).get("run_id", "")))
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            claims.add("")
    return claims


def _reason_to_keep(directory: Path, busy: Collection[Path], host: str) -> str | None:
    if directory.resolve() in busy or is_held(directory):
        return "it runs"
    with suppress(OSError, ValueError):
        read_object(directory / "outcome.json")
        return None  # it has ended; reading how would take most of the time for thousands
    record = read_record(directory)
    if state_of(record, None, read_processes(directory), host) == "elsewhere":
        return "it was started on another host, and has no outcome"
    return record.problem if "schema" in (record.problem or "") else None


def remove_record(directory: Path) -> str | None:
    """Remove one record and a ``latest`` that points to it; return why not, or None if it is gone.

    The record is checked again here: after it was listed and the user confirmed, it may have been replaced, or a launch
    may have begun with the same ID.
    """
    base, name = directory.parent.parent, directory.name
    lock = hold_ended(directory)
    if lock is None:
        return f"a launch has begun in it: {directory}"
    try:
        with lock, closing(open_place(base / "runs", links=False)) as runs:
            if name in own_folders(runs) and name not in _claims(directory):
                return f"no run.json in it names this run: {directory}"
            remove_folder(runs, name, last="run.json")
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"{error.strerror or error}: {error.filename or directory}"
    latest = base / "latest"
    with suppress(OSError):
        if latest.is_symlink() and not latest.exists():
            latest.unlink()
    return None
