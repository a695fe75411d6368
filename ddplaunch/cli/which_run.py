"""Which run a command means: one of this host, or one launched from here on others, and what these have of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ddplaunch.cli.streams import tell_findings
from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.hosts.session.frames import Kind
from ddplaunch.machine.files import boot_id, read_plain
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import RunProcesses
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.find import find_run, read_record
from ddplaunch.records.hosts_record import Pieces
from ddplaunch.records.json_files import replace_file
from ddplaunch.records.launchers import Launched, launcher_of, read_launched, read_processes, residents_in
from ddplaunch.records.log_files import log_files
from ddplaunch.records.own.own_files import foreign
from ddplaunch.records.run_states import recorded_at
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.words import host_name, listed, own_id

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

    return [run for run in alive if run.uid == own_id() and here(run)]


def _started_here(run: RunProcesses) -> bool:
    try:
        return Path(f"/proc/{run.first.pid}/cwd").readlink() == Path.cwd()
    except OSError:
        return False


def none_here(alive: Sequence[RunProcesses], command: str) -> str:
    """Return that no run of this directory is running, and how to name this user's that run elsewhere."""
    others = [run.run_id for run in alive if run.uid == own_id()]
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


def launched_from_here(alive: Sequence[RunProcesses], run: str | None, run_dir: str | None) -> Launched | None:
    """Return the run over other hosts that is meant, and whose launcher lives here, None where there is none.

    ``alive`` are the runs of this host. Without a name one of this directory is meant, and a run of this host alone
    comes first.
    """
    mine = [launched for launched, process in residents_in(process_table(), host_name()) if process.uid == own_id()]
    base = runs_directory(os.environ, run_dir, Path.cwd())
    if run is None:
        near = [each for each in mine if base.resolve() in each.directory.resolve().parents]
        here = of_directory(alive, base)
    else:
        near, here = called(mine, run), called(alive, run)
    own = {each.run_id for each in near}
    return near[0] if len(near) == 1 and all(each.run_id in own for each in here) else None


def not_here(alive: Sequence[RunProcesses], run: str | None, run_dir: str | None, command: str) -> str:
    """Return that no such run runs here; ``alive`` are the runs of this host.

    Raises UsageError for a name that no run has.
    """
    if run is None:
        return none_here(alive, command)
    return f"{find_run(runs_directory(os.environ, run_dir, Path.cwd()), run).name} does not run on this host"


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
    if launched is None or launched.host != host_name() or foreign(directory) is not None:
        return None
    if not _lives(launched) and (read_record(directory).outcomes or not all(place.record for place in launched.places)):
        return None
    here = {file.node for file in log_files(directory)}
    away = tuple(place for place in launched.places if place.node not in here)
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
        _bring(launched, place)
        yield place


def _bring(launched: Launched, place: Path) -> None:
    """Put what the hosts have recorded into ``place``."""
    brought = Pieces(place)
    with EachHost(launched, "record") as hosts:
        while hosts.open:
            for each, kind, body in hosts.frames(1.0):
                if kind is Kind.RECORD:
                    brought.keep(each.node, body)
    tell_findings(hosts.problems)
    brought.unpack()
