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
from ddplaunch.records.find import find_run, read_record
from ddplaunch.records.launchers import Launched, launcher_of, read_launched, read_processes, residents_in
from ddplaunch.records.run_states import host_name, recorded_at
from ddplaunch.ui.stop_view import elsewhere_text
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.words import listed

_Run = TypeVar("_Run", RunProcesses, Launched)


def live_run(
    alive: Sequence[RunProcesses], wanted: str | None, run_dir: str | None, command: str, does: str
) -> RunProcesses | None:
    """Return the one of ``alive`` that is meant, None where none is; without a name, this directory's youngest.

    Raises UsageError where the name could mean several.
    """
    if wanted is None:
        return next(iter(of_directory(alive, runs_directory(os.environ, run_dir, Path.cwd()))), None)
    near = called(alive, wanted)
    if len(near) > 1:
        raise several(near, command, does)
    return near[0] if near else None


def of_directory(alive: Sequence[RunProcesses], base: Path) -> list[RunProcesses]:
    """Return this user's runs whose records are below ``base``, or which without a record were started from here."""
    base = base.resolve()

    def here(run: RunProcesses) -> bool:
        record = recorded_at(run)
        return base in record.parents if record else _started_here(run)

    return [run for run in alive if run.uid == os.geteuid() and here(run)]


def _started_here(run: RunProcesses) -> bool:
    try:
        return Path(f"/proc/{run.first.pid}/cwd").readlink() == Path.cwd()
    except OSError:
        return False


def none_here(alive: Sequence[RunProcesses], command: str) -> str:
    """Return that no run of this directory is running, and how to name this user's that run elsewhere."""
    others = [run.run_id for run in alive if run.uid == os.geteuid()]
    if not others:
        return "no run of yours is running here"
    named = f"`ddplaunch {command} {others[0]}` means one of another directory"
    more = f"; `ddplaunch ps` lists all {len(others)}" if len(others) > 1 else ""
    return f"no run of this directory is running; {named}{more}"


def called(alive: Sequence[_Run], name: str) -> list[_Run]:
    """Return the runs of this id, or else those of which ``name`` is a part of it."""
    same = [run for run in alive if run.run_id == name]
    return same or [run for run in alive if name and name in run.run_id]


def several(near: Sequence[RunProcesses], command: str, does: str) -> UsageError:
    """Return what to raise where ``near`` could all be meant; ``does`` as in "`stop` ends one run"."""
    names = listed([f"`{run.run_id}`" for run in near], 3)
    return usage(
        f"{len(near)} runs could be meant: {names}",
        why=f"`{command}` {does} one run",
        fix=f"`ddplaunch {command} {near[0].run_id}`; `ddplaunch ps` lists them",
    )


def not_here(
    alive: Sequence[RunProcesses], run: str | None, run_dir: str | None, command: str, replay: str = ""
) -> str:
    """Return what to say where no such run runs here: the ssh commands to ask its hosts, or that it does not run.

    ``alive`` are the runs of this host. ``replay`` is the command that shows what was recorded, of one that draws on a
    terminal. Raises UsageError for a name that no run has.
    """
    mine = [launched for launched, process in residents_in(process_table(), host_name()) if process.uid == os.geteuid()]
    base = runs_directory(os.environ, run_dir, Path.cwd())
    near = called(mine, run) if run else [each for each in mine if base.resolve() in each.directory.resolve().parents]
    if len(near) == 1:
        return elsewhere_text(near[0], command, terminal=bool(replay))
    if run is None:
        hint = f"; `{replay}` shows what was recorded of the last" if replay else ""
        return f"{none_here(alive, command)}{hint}\n"
    name = find_run(base, run).name
    return f"{name} does not run on this host{f'; `{replay} {name}` shows what was recorded' if replay else ''}\n"


def other_hosts(directory: Path) -> list[str]:
    """Return the other hosts on which a node of the run has no outcome yet, as far as the record tells."""
    ended = read_record(directory).outcomes
    return sorted({node.host for node in read_processes(directory) if node.node not in ended} - {"", host_name()})


def logs_elsewhere(directory: Path, here: Collection[int], follow: bool) -> str | None:
    """Return the ssh commands that show what ranks of a live run print on hosts whose files are not among ``here``.

    ``here`` are the nodes with files in ``directory``. None where all are, or the run is over: then they are brought.
    """
    launched = read_launched(directory)
    if launched is None or launcher_of(launched, process_table(), boot_id(), host_name()) is None:
        return None
    away = tuple(place for place in launched.places if place.node not in here)
    return elsewhere_text(replace(launched, places=away), "logs --follow" if follow else "logs") if away else None
