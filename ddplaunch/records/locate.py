"""Finds the record of a run that somebody names, by directory or by live processes; refuses to change either."""

from __future__ import annotations

from pathlib import Path

from ddplaunch.errors import UsageError
from ddplaunch.probes.process_table import process_table
from ddplaunch.probes.run_processes import runs_in
from ddplaunch.records.find import find_run
from ddplaunch.records.summary import recorded_at


def locate_run(base: Path, wanted: str | None, uid: int, anywhere: bool = True) -> Path:
    """Return the run's directory: under ``base``, else where a live run of that id, or this user's only one, has it.

    With ``anywhere`` False only under ``base``. Raises UsageError as ``find_run`` does.
    """
    try:
        return find_run(base, wanted)
    except UsageError as problem:
        if not anywhere:
            raise
        alive = runs_in(process_table())
        near = [run for run in alive if run.run_id == wanted or (wanted is None and run.uid == uid)]
        places = [place for run in near if (place := recorded_at(run)) is not None]
        if len(places) == 1:
            return places[0]
        raise problem from None
