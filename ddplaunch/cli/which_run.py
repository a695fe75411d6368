"""Which run a command means: one rule for all commands; and what the hosts of a run over ssh have of its record."""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from ddplaunch.cli.streams import say, tell_findings
from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.machine.files import boot_id, read_plain
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import RunProcesses, runs_in
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.find import read_record, run_directories, yours
from ddplaunch.records.hosts_record import Pieces
from ddplaunch.records.json_files import replace_file
from ddplaunch.records.launchers import (
    Launched,
    launcher_of,
    read_launched,
    read_processes,
    residents_in,
    with_residents,
)
from ddplaunch.records.log_files import log_files
from ddplaunch.records.run_states import recorded_at
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import host_name, listed, own_id

_PART = re.compile(r"(.*/.+)@([0-9a-f]{4,})")


@dataclass(frozen=True)
class Run:
    """A run that is recorded, or that lives here, or both.

    ``directory`` is its record, None where there is none that this user may read; ``processes`` are those of this
    machine; ``launched`` is the note of its launcher over ssh, if that lives here. ``token`` is that of a launch of
    which the part on this host is meant alone, see ``part_here``.
    """

    run_id: str
    directory: Path | None
    processes: RunProcesses | None = None
    launched: Launched | None = None
    token: str = ""

    @property
    def record(self) -> Path:
        """The record of a run that ``which_run`` returned."""
        assert self.directory is not None
        return self.directory

    @property
    def has_begun(self) -> bool:
        """Whether it lives here or has ended, as far as is recorded."""
        return self.directory is not None and bool(self.processes or read_record(self.directory).outcomes)


class _Runs:
    """What a word may mean: the runs ``recorded`` in the run directory, the newest first, and those of this machine
    that are recorded ``elsewhere`` or nowhere, the youngest first.
    """

    def __init__(self, run_dir: str | None) -> None:
        table = process_table()
        table.pop(os.getpid(), None)  # typed where a run's variables are exported, it would look like its launcher
        residents = residents_in(table, host_name())
        running = []
        for processes in with_residents(runs_in(table), residents):
            note = next((note for note, launcher in residents if launcher in processes.launchers), None)
            running.append(Run(processes.run_id, recorded_at(processes), processes, note))
        self.base = runs_directory(run_dir)
        by_record = {run.directory: run for run in reversed(running)}
        directories = run_directories(self.base)
        self.recorded = [by_record.get(path.resolve()) or Run(path.name, path) for path in directories]
        self.elsewhere = [run for run in running if run not in self.recorded]

    @property
    def running_here(self) -> list[Run]:
        """This user's runs that live here and are recorded in the run directory, or without a record begun here."""
        begun_here = [run for run in self.elsewhere if run.directory is None and _works_here(run)]
        return [run for run in (*self.recorded, *begun_here) if _is_mine(run)]

    def at(self, path: Path) -> Run:
        """Return the run whose record is ``path``. Raises UsageError where it is none, or somebody else's."""
        if not path.is_dir():
            raise self._unknown(f"`{path}` is not a directory")
        directory = yours(path.resolve())
        every = (*self.recorded, *self.elsewhere)
        run = next((run for run in every if run.directory is not None and run.directory.resolve() == directory), None)
        return run or Run(directory.name, directory)

    def named(self, name: str, *groups: Sequence[Run]) -> Run:
        """Return the run that is called so, else the one of whose id ``name`` is a part, of the first group with one.

        Raises UsageError where there is none, or more than one.
        """
        if "/" in name:
            return self.at(Path(name))
        same = [[run for run in group if run.run_id == name] for group in groups]
        near = [[run for run in group if name and name in run.run_id] for group in groups]
        matches = next(filter(None, (*same, *near)), None)
        if matches is None:
            if name not in (".", ".."):
                yours(self.base / "runs" / name)
            raise self._unknown(f"there is no record of a run `{name}` in `{self.base}`")
        return only_one(matches)

    def newest(self) -> Run:
        """Return the newest record. Raises UsageError where there is none."""
        if not self.recorded:
            raise self._unknown(f"there is no record of a run in `{self.base}`")
        return self.recorded[0]

    def _unknown(self, what: str) -> UsageError:
        none, look = ("", "`ddplaunch ps --all` lists them")
        if not self.recorded:
            none, look = (", and it has none", "`cd` to where the run was started")
        return usage(
            what,
            why=f"records are looked for in `{self.base / 'runs'}`{none}",
            fix=f"{look}; `--run-dir DIR` or DDPLAUNCH_DIR names another place",
            code="run-not-found",
        )


def part_here(word: str) -> Run:
    """Return what this host has of the launch that its launcher, elsewhere, calls RECORD@TOKEN.

    Another launch with the same id is not meant. For other words the run is empty.
    """
    match = _PART.fullmatch(word)
    if match is None:
        return Run("", None)
    path, identity = Path(match[1]), (Path(match[1]).name, own_id(), match[2])
    run = next((run for run in runs_in(process_table()) if (run.run_id, run.uid, run.launch) == identity), None)
    directory = path if path.is_dir() else None if run is None else recorded_at(run)
    return Run(path.name, directory, run, token=match[2])


def which_run(name: str | None, run_dir: str | None) -> Run:
    """Return the recorded run that is meant: by its id, a part of it, or its path; None and "latest" are the newest.

    One that is recorded in another directory is found while it runs. Raises UsageError where there is none, or more
    than one.
    """
    if name and (part := part_here(name)).directory is not None:
        return part
    runs = _Runs(run_dir)
    if name is None or name == "latest":
        return runs.newest()
    elsewhere = [run for run in runs.elsewhere if run.run_id == name and run.directory is not None]
    return runs.named(name, runs.recorded, elsewhere if run_dir is None else ())


def running_runs(name: str | None, run_dir: str | None, command: str) -> list[Run]:
    """Return the run that is meant, which may be over; without a name, those that run in this directory, the newest
    first. Where there are none it says so, and how ``command`` is told another.

    Raises UsageError where there is none of that name, or more than one.
    """
    if name and (part := part_here(name)).token:
        return [part]
    runs = _Runs(run_dir)
    if name is not None:
        every = (*runs.recorded, *runs.elsewhere)
        living = [run for run in every if run.processes is not None]
        return [runs.named(name, living, [run for run in every if run.processes is None])]
    if not runs.running_here:
        say(_none_here([run.run_id for run in runs.elsewhere if _is_mine(run)], command))
    return runs.running_here


def running_run(name: str | None, run_dir: str | None, command: str) -> Run | None:
    """Return the run that is meant, if it lives here; without a name the newest of this directory; else say why not."""
    run = next(iter(running_runs(name, run_dir, command)), None)
    if run is not None and run.processes is None:
        say(f"{run.run_id} does not run on this host")
        return None
    return run


def only_one(runs: Sequence[Run]) -> Run:
    """Return the one run. Raises UsageError where there are several."""
    if len(runs) == 1:
        return runs[0]
    by_id = {run.run_id: run for run in runs}
    names = list(by_id) if len(by_id) == len(runs) else [_place(run) for run in runs]
    raise usage(
        f"{len(runs)} runs could be meant: {listed([f'`{name}`' for name in names], 3)}",
        why="one run is named by its id, by a part of it that no other has, or by the directory of its record",
        fix=f"name one, as in `{names[0]}`; `ddplaunch ps` lists them",
    )


def _place(run: Run) -> str:
    return f"pid {run.processes.first.pid}" if run.directory is None and run.processes else str(run.directory)


def _is_mine(run: Run) -> bool:
    return run.processes is not None and run.processes.uid == own_id()


def _works_here(run: Run) -> bool:
    try:
        return run.processes is not None and Path(f"/proc/{run.processes.first.pid}/cwd").readlink() == Path.cwd()
    except OSError:
        return False


def _none_here(elsewhere: Sequence[str], command: str) -> str:
    """Return that no run of this directory is running, and how to name runs ``elsewhere`` of this user's."""
    if not elsewhere:
        return "no run of yours is running here"
    more = f"; `ddplaunch ps` lists all {len(elsewhere)}" if len(elsewhere) > 1 else ""
    command_line = f"`ddplaunch {command} {elsewhere[0]}`"
    return f"no run of this directory is running; {command_line} means one of another directory{more}"


def other_hosts(directory: Path) -> list[str]:
    """Return the other hosts on which a node of the run has no outcome yet, as far as the record tells."""
    ended = read_record(directory).outcomes
    return sorted({node.host for node in read_processes(directory) if node.node not in ended} - {"", host_name()})


def kept_elsewhere(directory: Path) -> Launched | None:
    """Return the hosts of a run launched from here that have what is not brought yet; None where nothing is missing.

    They are those of nodes without output in ``directory``. A run that is over has brought its records; one whose
    launcher was killed has not.
    """
    launched = read_launched(directory)
    if launched is None or launched.host != host_name():
        return None
    if not _lives(launched) and (read_record(directory).outcomes or not all(place.record for place in launched.places)):
        return None
    nodes_here = {file.node for file in log_files(directory)}
    away = tuple(place for place in launched.places if place.node not in nodes_here)
    return replace(launched, places=away) if away else None


def _lives(launched: Launched) -> bool:
    return launcher_of(launched, process_table(), boot_id(), host_name()) is not None


@contextmanager
def with_what_hosts_have(directory: Path) -> Iterator[Path]:
    """Give a directory with the record of a run as it is now: ``directory``, or a copy with what its hosts have.

    The record itself gets what hosts have where nobody else will bring it. What could not be asked is told.
    """
    launched = kept_elsewhere(directory)
    if launched is None:
        yield directory
        return
    with ExitStack() as stack:
        place = directory
        if _lives(launched):  # it brings them at the end, to the same place
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddplaunch-"))) / directory.name
            for path in directory.glob("*.json"):
                replace_file(place / path.name, read_plain(path, 64 << 20).decode())
        bring(launched, place)
        yield place


def bring(launched: Launched, place: Path, deadline_s: float = math.inf) -> None:
    """Put what the hosts have recorded into ``place``, as far as it comes in time."""
    until_s = time.monotonic() + deadline_s
    brought = Pieces(place)
    with EachHost(launched, "record") as hosts:
        while hosts.open and time.monotonic() < until_s:
            for each, piece in hosts.arrived(1.0):
                brought.keep(each.node, piece)
    tell_findings(hosts.problems)
    brought.unpack()
