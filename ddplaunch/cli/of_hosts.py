"""Where to look for a run that was launched from here on other hosts; refuses to look there."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from ddplaunch.probes.proc import boot_id
from ddplaunch.probes.process_table import process_table
from ddplaunch.records.residents import launcher_of, read_launched, residents_in
from ddplaunch.records.summary import host_name
from ddplaunch.ui.stop_hosts_view import elsewhere_text


def of_hosts(run: str | None, words: str, terminal: bool = False) -> str | None:
    """Return the ssh commands by which each host of the live run is asked for ``words``; None where there is no run.

    Without a name it is this user's only one.
    """
    found = [
        launched for launched, process in residents_in(process_table(), host_name()) if process.uid == os.geteuid()
    ]
    near = [each for each in found if run is None or each.run_id == run] or [
        each for each in found if run and run in each.run_id
    ]
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
