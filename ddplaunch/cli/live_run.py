"""Which run of this host a command means; refuses to look at it, and to guess where several could be meant."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ddplaunch.errors import UsageError, usage
from ddplaunch.probes.run_processes import RunProcesses
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.summary import recorded_at

_LISTED = 3


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


def called(alive: Sequence[RunProcesses], name: str) -> list[RunProcesses]:
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
