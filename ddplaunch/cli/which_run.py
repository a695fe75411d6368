"""Finds the run that a command means, by one rule for all commands, and fetches its record from other hosts."""

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
    """A run that is recorded, or has processes on this machine, or both.

    ``directory`` is its record, None where this user can read none; ``processes`` are those on this machine;
    ``launched`` is the note of its launcher over ssh, if that runs here. ``token`` is set where only this host's part
    of a launch is meant, see ``part_here``.
    """

    run_id: str
    directory: Path | None
    processes: RunProcesses | None = None
    launched: Launched | None = None
    token: str = ""

    @property
    def record(self) -> Path:
        """The record's directory, for a run that ``which_run`` returned."""
        assert self.directory is not None
        return self.directory

    @property
    def has_begun(self) -> bool:
        """Whether it has a record, and processes here or an outcome."""
        return self.directory is not None and bool(self.processes or read_record(self.directory).outcomes)


class _Runs:
    """The candidates for a word: the runs ``recorded`` in the run directory, the newest first, and running ones that
    are recorded ``elsewhere`` or nowhere, the youngest first.
    """

    def __init__(self, run_dir: str | None) -> None:
        table = process_table()
        table.pop(os.getpid(), None)  # in a shell with a run's variables, this command would look like its launcher
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

    def at(self, path: Path) -> Run:
        """Return the run whose record is ``path``. Raises UsageError where there is none, or it is another user's."""
        if not path.is_dir():
            raise self._unknown(f"`{path}` is not a directory")
        directory = yours(path.resolve())
        every = (*self.recorded, *self.elsewhere)
        run = next((run for run in every if run.directory is not None and run.directory.resolve() == directory), None)
        return run or Run(directory.name, directory)

    def named(self, name: str, *groups: Sequence[Run]) -> Run:
        """Return the run with that id, else the one whose id contains ``name``, from the first group that has one.

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
        look = "`ddplaunch ps --all` lists them" if self.recorded else "`cd` to where the run was started"
        return usage(
            what,
            why=f"records are looked for in `{self.base / 'runs'}`",
            fix=f"{look}; `--run-dir DIR` or DDPLAUNCH_DIR names another place",
            code="run-not-found",
        )


def part_here(word: str) -> Run:
    """Return this host's part of the launch that a launcher elsewhere calls RECORD@TOKEN.

    Another launch with the same id is a different run. For other words the run is empty.
    """
    match = _PART.fullmatch(word)
    if match is None:
        return Run("", None)
    path, identity = Path(match[1]), (Path(match[1]).name, own_id(), match[2])
    run = next((run for run in runs_in(process_table()) if (run.run_id, run.uid, run.launch) == identity), None)
    directory = path if path.is_dir() else None if run is None else recorded_at(run)
    return Run(path.name, directory, run, token=match[2])


def which_run(name: str | None, run_dir: str | None) -> Run:
    """Return the recorded run that is meant by its id, a part of it, or its path; the newest for None and "latest".

    A run that is recorded in another directory is found while it runs. Raises UsageError where there is none, or more
    than one.
    """
    if name and (part := part_here(name)).directory is not None:
        return part
    runs = _Runs(run_dir)
    if name is None or name == "latest":
        return runs.newest()
    elsewhere = [run for run in runs.elsewhere if run.run_id == name and run.directory is not None]
    return runs.named(name, runs.recorded, elsewhere if run_dir is None else ())


def running_runs(name: str | None, run_dir: str | None) -> list[Run]:
    """Return the named run, which may be over; without a name, the live runs of this directory, the newest first.

    Where there are none it says so. Raises UsageError where no run or more
    than one has that name.
    """
    if name and (part := part_here(name)).token:
        return [part]
    runs = _Runs(run_dir)
    if name is not None:
        every = (*runs.recorded, *runs.elsewhere)
        living = [run for run in every if run.processes is not None]
        return [runs.named(name, living, [run for run in every if run.processes is None])]
    running_here = [run for run in runs.recorded if _is_mine(run)]
    if not running_here:
        elsewhere = sum(map(_is_mine, runs.elsewhere))
        more = f"; `ddplaunch ps` lists {elsewhere} of other directories" if elsewhere else ""
        say(f"no run of this directory is running{more}")
    return running_here


def running_run(name: str | None, run_dir: str | None) -> Run | None:
    """Return the named run, or the newest of this directory, if it runs on this host; else say why not: None."""
    run = next(iter(running_runs(name, run_dir)), None)
    if run is not None and run.processes is None:
        say(f"{run.run_id} does not run on this host")
        return None
    return run


def only_one(runs: Sequence[Run]) -> Run:
    """Return the one run. Raises UsageError where there are several."""
    if len(runs) == 1:
        return runs[0]
    by_id = {run.run_id: run for run in runs}
    names = list(by_id) if len(by_id) == len(runs) else [str(run.directory) for run in runs]
    raise usage(
        f"{len(runs)} runs could be meant: {listed([f'`{name}`' for name in names], 3)}",
        why="one run is named by its id, by a part of it that no other has, or by the directory of its record",
        fix=f"name one, as in `{names[0]}`; `ddplaunch ps` lists them",
    )


def _is_mine(run: Run) -> bool:
    return run.processes is not None and run.processes.uid == own_id()


def other_hosts(directory: Path) -> list[str]:
    """Return the other hosts on which a node of the run has no outcome yet, according to the record."""
    ended = read_record(directory).outcomes
    return sorted({node.host for node in read_processes(directory) if node.node not in ended} - {"", host_name()})


def kept_elsewhere(directory: Path) -> Launched | None:
    """Return the hosts of a run launched from here whose output was not fetched yet; None where nothing is missing.

    They are those of nodes without output in ``directory``. A run that is over has fetched all records, unless its
    launcher was killed, or noted that it could not.
    """
    launched = read_launched(directory)
    if launched is None or launched.host != host_name():
        return None
    outcome = read_record(directory).outcome
    is_whole = outcome is not None and not outcome.notes
    if not _lives(launched) and (is_whole or not all(place.record for place in launched.places)):
        return None
    nodes_here = {file.node for file in log_files(directory)}
    away = tuple(place for place in launched.places if place.node not in nodes_here)
    return replace(launched, places=away) if away else None


def _lives(launched: Launched) -> bool:
    return launcher_of(launched, process_table(), boot_id(), host_name()) is not None


@contextmanager
def with_what_hosts_have(directory: Path) -> Iterator[Path]:
    """Yield a directory with the run's record as it is now: ``directory``, or a copy completed from its hosts.

    Where the launcher is gone and cannot fetch them, the hosts' parts go into the record itself. Problems with hosts
    are shown to the user.
    """
    launched = kept_elsewhere(directory)
    if launched is None:
        yield directory
        return
    with ExitStack() as stack:
        place = directory
        if _lives(launched):  # the launcher will fetch the same files into the record
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddplaunch-"))) / directory.name
            for path in directory.glob("*.json"):
                replace_file(place / path.name, read_plain(path, 64 << 20).decode())
        say(f"asking {listed([each.host for each in launched.places])} for the rest of the record")
        bring(launched, place)
        yield place


def bring(launched: Launched, place: Path, deadline_s: float = math.inf) -> None:
    """Fetch the hosts' records into ``place``, as far as they arrive within ``deadline_s``."""
    until_s = time.monotonic() + deadline_s
    brought = Pieces(place)
    with EachHost(launched, "record") as hosts:
        while hosts.open and time.monotonic() < until_s:
            for each, piece in hosts.arrived(1.0):
                brought.keep(each.node, piece)
    tell_findings(hosts.problems)
    brought.unpack()
