"""``ddplaunch stop``: ends one run here and on all hosts that it was launched on, first by SIGTERM, then by SIGKILL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ddplaunch.cli.parsing.command import RUN_DIR, Command
from ddplaunch.cli.streams import answer_json, say, tell_findings, tell_lines
from ddplaunch.cli.which_run import called, none_here, of_directory, other_hosts, several
from ddplaunch.hosts.local.stop_run import HostStopped, Stopped, ask_hosts, stop_resident, stop_run
from ddplaunch.machine.files import boot_id
from ddplaunch.machine.processes.process_table import Process, ProcessTable, process_table
from ddplaunch.machine.processes.run_processes import RunProcesses, runs_in
from ddplaunch.planning.flag import Flag
from ddplaunch.planning.settings import Settings
from ddplaunch.records.directory import note_stop, runs_directory
from ddplaunch.records.find import RunRecord, find_run, read_record
from ddplaunch.records.launchers import (
    Launched,
    other_processes,
    read_launched,
    read_processes,
    residents_in,
    with_residents,
)
from ddplaunch.records.outcome import RankOutcome
from ddplaunch.records.run_states import recorded_at
from ddplaunch.ui.stop_view import (
    begin_asking_hosts,
    begin_on_hosts,
    begin_text,
    hosts_findings,
    hosts_lines,
    nothing_text,
    stop_findings,
    stop_json,
    stop_on_hosts_json,
    stopped_on_hosts_text,
    stopped_text,
)
from ddplaunch.values.finding import ExitStatus, usage
from ddplaunch.values.variable_names import SETTINGS
from ddplaunch.values.words import host_name

COMMAND = Command(
    examples=(
        ("ddplaunch stop", "the only run of this directory"),
        ("ddplaunch stop --grace 2m", "two minutes to write a checkpoint"),
    ),
    options=(
        Flag(
            "run",
            "argument",
            "",
            "Id of the run, or a part of it [the only one of this directory].",
            "RUN",
            offers="live runs",
        ),
        Flag("all", "switch", "", "Stop all runs started here.", short="-a"),
        Flag(
            "grace", "duration", "", "Time between SIGTERM and SIGKILL: 30, 2m [the run's own grace and 5 s].", "TIME"
        ),
        Flag("json", "switch", "", "How every process ended, as JSON."),
        RUN_DIR,
    ),
    more="Its torchrun gets SIGTERM; processes that outlive the grace get SIGKILL.",
)

_LONGER_S = 5.0  # so that torchrun, and not this command, is the one that insists


def stop(run: str | None, all: bool | None, grace: float | None, json: bool | None, run_dir: str | None) -> int:
    """End a run, or every one of this directory; return 1 where something of it is left."""
    base = runs_directory(os.environ, run_dir, Path.cwd())
    if not all:
        return _stop(run, base, grace, bool(json))
    if run is not None:
        raise usage(
            f"`{run}` and `--all` together",
            why="`--all` means every run of this directory",
            fix=f"`ddplaunch stop {run}` ends one, `ddplaunch stop --all` all",
        )
    alive = with_residents(runs_in(process_table()), residents_in(process_table(), host_name()))
    names = dict.fromkeys(each.run_id for each in of_directory(alive, base) if each.first.pid != os.getpid())
    return max([int(_stop(name, base, grace, bool(json))) for name in names or (None,)])


def _stop(run: str | None, base: Path, grace: float | None, json: bool) -> int:
    """End a run: SIGTERM to its launcher, after the grace SIGKILL to what is left; wait until it is gone."""
    table, host = process_table(), host_name()
    table.pop(os.getpid(), None)  # typed where a run's variables are exported, it would look like its launcher
    residents = residents_in(table, host)
    alive = with_residents(runs_in(table), residents)
    chosen = None if _is_over(base, alive, run) else choose(alive, run, base)
    if chosen is None and run is None:
        say(none_here(alive, "stop"))
        return ExitStatus.DONE
    for launched, launcher in residents:
        if chosen is not None and launcher in chosen.launchers:
            return _stop_by_launcher(chosen, launched, launcher, grace, json)
    if chosen is not None:
        directory = recorded_at(chosen)
    else:
        directory = find_run(base, run)
        chosen = next((each for each in alive if recorded_at(each) == directory.resolve()), None)
    over = chosen is None and directory is not None and _is_concluded(read_record(directory))
    from_here = None if directory is None or over else read_launched(directory)
    if from_here is not None and from_here.host == host:
        return _stop_by_hosts(from_here, grace, json)
    return _stop_here(chosen, directory, grace, json, table)


def _is_over(base: Path, alive: Sequence[RunProcesses], run: str | None) -> bool:
    """Whether the name is exactly that of a record and of no live run: then it means no other of a longer name."""
    if not run or "/" in run or any(each.run_id == run for each in alive):
        return False
    return (base / "runs" / run).is_dir()


def choose(alive: Sequence[RunProcesses], wanted: str | None, base: Path) -> RunProcesses | None:
    """Return the live run that is meant: by its id or a part of it; without any, the only one recorded in ``base``.

    Raises UsageError where several could be meant.
    """
    near = of_directory(alive, base) if wanted is None else called(alive, wanted)
    if len(near) < 2:
        return near[0] if near else None
    if len({run.run_id for run in near}) == 1:
        listed = "; ".join(f"pid {run.first.pid} in `{recorded_at(run)}`" for run in near)
        raise usage(
            f"{len(near)} runs are called `{near[0].run_id}`: {listed}",
            why="their ids do not tell them apart",
            fix=f"`kill {near[0].first.pid}` ends the first as `stop` would: torchrun ends its ranks",
        )
    raise several(near, "stop", "ends")


def _stop_by_launcher(
    run: RunProcesses, launched: Launched, launcher: Process, grace_s: float | None, json: bool
) -> int:
    """Have the launcher end its run on all hosts; where it had to be killed, ask each host whether it has ended."""
    own_s = launched.grace_s + _LONGER_S
    grace_s = own_s if grace_s is None else grace_s
    tell_lines(begin_on_hosts(launched, grace_s))
    note_stop(launched.directory)
    stopped = stop_resident(run, launcher, grace_s, own_s)
    hosts: tuple[HostStopped, ...] = ()
    if not stopped.remaining:
        record = read_record(launched.directory)
        hosts = _told_by(record, launched) if _is_concluded(record) else ask_hosts(launched, grace_s)
    return _conclude(launched, stopped, hosts, json)


def _stop_by_hosts(launched: Launched, grace_s: float | None, json: bool) -> int:
    """Ask every host to end what it still runs, since the launcher that would is gone."""
    tell_lines(begin_asking_hosts(launched))
    hosts = ask_hosts(launched, launched.grace_s + _LONGER_S if grace_s is None else grace_s)
    return _conclude(launched, None, hosts, json)


def _conclude(launched: Launched, stopped: Stopped | None, hosts: Sequence[HostStopped], json: bool) -> int:
    """Say what became of the launcher, None where it was gone before, and of the hosts."""
    if json:
        answer_json(stop_on_hosts_json(launched.run_id, stopped, hosts))
    else:
        tell_lines(hosts_lines(hosts) if stopped is None else stopped_on_hosts_text(stopped, hosts))
    findings = () if stopped is None else stop_findings(stopped, ())
    findings += hosts_findings(launched.run_id, hosts)
    tell_findings(findings)
    return ExitStatus.FINDINGS if findings else ExitStatus.DONE


def _is_concluded(record: RunRecord) -> bool:
    """Return whether the launcher saw every host end: it writes one outcome for all, with a note for a lost one."""
    return record.outcome is not None and not record.outcome.notes


def _told_by(record: RunRecord, launched: Launched) -> tuple[HostStopped, ...]:
    """Return which ranks ended on which host in the last attempt, as the outcome of all hosts has them."""
    ended: dict[int | None, list[dict[str, Any]]] = {}
    for rank in record.outcome.last_ranks if record.outcome is not None else ():
        by = "SIGKILL" if rank.signal == "SIGKILL" else "itself"
        entry = {"pid": rank.pid, "role": f"rank {rank.rank}", "rank": rank.rank, "by": by}
        ended.setdefault(_node_of(rank), []).append(entry)
    return tuple(HostStopped(place.host, tuple(ended.get(place.node, ()))) for place in launched.places)


def _node_of(rank: RankOutcome) -> int | None:
    """Return the node whose directory has the rank's output."""
    folder = PurePosixPath(rank.out or "").parts[:1]
    number = folder[0].removeprefix("node-") if folder else ""
    return int(number) if number.isdecimal() else None


def _stop_here(
    chosen: RunProcesses | None, directory: Path | None, grace_s: float | None, json: bool, table: ProcessTable
) -> int:
    """End what runs here, and say which other hosts have a part of it."""
    if chosen is None:
        assert directory is not None  # a run without processes was found by its record
        stopped = Stopped(RunProcesses(directory.name, os.geteuid()), (), (), (), (), 0.0)
        if not json:
            tell_lines(nothing_text(directory.name, other_processes(read_processes(directory), table, boot_id())))
    else:
        grace_s = _grace_of(chosen) + _LONGER_S if grace_s is None else grace_s
        tell_lines(begin_text(chosen, grace_s))
        if directory is not None:
            note_stop(directory)
        stopped = stop_run(chosen, grace_s)
        if not json:
            tell_lines(stopped_text(stopped))
    elsewhere = [] if directory is None else other_hosts(directory)
    if json:
        answer_json(stop_json(stopped, elsewhere))
    tell_findings(stop_findings(stopped, elsewhere))
    return ExitStatus.FINDINGS if stopped.remaining or elsewhere else ExitStatus.DONE


def _grace_of(run: RunProcesses) -> float:
    """Return how long the launch lets its ranks take, in seconds, as it told its plug-in."""
    try:
        return Settings.from_json(run.first.mark(SETTINGS) or "{}").grace_s
    except ValueError:
        return Settings().grace_s
