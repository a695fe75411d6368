"""Which run a command means: one of this host, or one launched from here on others, with the ssh commands for it."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ddplaunch.machine.files import boot_id
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import RunProcesses
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.launchers import Launched, launcher_of, read_launched, residents_in
from ddplaunch.records.run_states import host_name, recorded_at
from ddplaunch.ui.stop_view import elsewhere_text
from ddplaunch.values.finding import UsageError, usage

_LISTED = 3
_Run = TypeVar("_Run", RunProcesses, Launched)


def live_run(
    alive: Sequence[RunProcesses], wanted: str | None, run_dir: str | None, command: str, does: str
) -> RunProcesses | None:
    """Return the one of ``alive`` that is meant, None where none is; without a name, this directory's youngest.

    Raises UsageError where the name could mean several.
    """
    if wanted is None:
        base = runs_directory(os.environ, run_dir, Path.cwd())
        mine = [run for run in alive if run.uid == os.geteuid()]
        here = [run for run in mine if (place := recorded_at(run)) and base.resolve() in place.parents]
        return next(iter(here or mine), None)
    near = called(alive, wanted)
    if len(near) > 1:
        raise several(near, command, does)
    return near[0] if near else None


def called(alive: Sequence[_Run], name: str) -> list[_Run]:
    """Return the runs of this id, or else those of which ``name`` is a part of it."""
    same = [run for run in alive if run.run_id == name]
    return same or [run for run in alive if name and name in run.run_id]


def several(near: Sequence[RunProcesses], command: str, does: str) -> UsageError:
    """Return what to raise where ``near`` could all be meant; ``does`` as in "`stop` ends one run"."""
    listed = ", ".join(f"`{run.run_id}`" for run in near[:_LISTED]) + (", …" if len(near) > _LISTED else "")
    return usage(
        f"{len(near)} runs could be meant: {listed}",
        why=f"`{command}` {does} one run",
        fix=f"`ddplaunch {command} {near[0].run_id}`; `ddplaunch ps` lists them",
    )


def of_hosts(run: str | None, words: str, terminal: bool = False) -> str | None:
    """Return the ssh commands by which each host of the live run is asked for ``words``; None where there is no run.

    Without a name it is this user's only one.
    """
    found = [
        launched for launched, process in residents_in(process_table(), host_name()) if process.uid == os.geteuid()
    ]
    near = found if run is None else called(found, run)
    return elsewhere_text(near[0], words, terminal) if len(near) == 1 else None


def logs_elsewhere(directory: Path, here: Collection[int], follow: bool) -> str | None:
    """Return the ssh commands that show what ranks of a live run print on hosts whose files are not among ``here``.

    ``here`` are the nodes with files in ``directory``. None where all are, or the run is over: then they are brought.
    """
    launched = read_launched(directory)
    if launched is None or launcher_of(launched, process_table(), boot_id(), host_name()) is None:
        return None
    away = tuple(place for place in launched.places if place.node not in here)
    return elsewhere_text(replace(launched, places=away), "logs --follow" if follow else "logs") if away else None
