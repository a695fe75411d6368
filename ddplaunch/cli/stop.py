"""``ddplaunch stop``: end one run, gracefully and then hard; refuses to end anything by a pattern."""

from __future__ import annotations

import json as json_format
import os
from collections.abc import Sequence
from pathlib import Path

from ddplaunch.cli.live_run import called, several
from ddplaunch.cli.say import answer_json, tell, tell_findings
from ddplaunch.cli.stop_hosts import LONGER_S, is_concluded, stop_launched, stop_without_launcher
from ddplaunch.errors import ExitStatus, usage
from ddplaunch.hosts.stopping import Stopped, stop_run
from ddplaunch.launch.durations import duration_s
from ddplaunch.probes.proc import boot_id
from ddplaunch.probes.process_table import Table, process_table
from ddplaunch.probes.run_processes import RunProcesses, runs_in
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.find import find_run, read_record
from ddplaunch.records.processes import other_processes, read_processes
from ddplaunch.records.residents import read_launched, residents_in, with_residents
from ddplaunch.records.summary import host_name, recorded_at
from ddplaunch.ui.stop_view import begin_text, nothing_text, stop_findings, stop_json, stopped_text

_GRACE_S = 30.0  # torchrun's own, before it kills the ranks


def stop(run: str | None, grace: str | None, json: bool | None, run_dir: str | None) -> int:
    """End a run: SIGTERM to its launcher, after the grace SIGKILL to what is left; wait until it is gone."""
    grace_s = None if grace is None else duration_s("--grace", grace)
    base, table, host = runs_directory(os.environ, run_dir, Path.cwd()), process_table(), host_name()
    table.pop(os.getpid(), None)  # typed where a run's variables are exported, it would look like its launcher
    residents = residents_in(table, host)
    alive = with_residents(runs_in(table), residents)
    chosen = None if _is_over(base, alive, run) else choose(alive, run, os.geteuid())
    if chosen is None and run is None:
        tell("no run of yours is running here\n")
        return ExitStatus.DONE
    for launched, launcher in residents:
        if chosen is not None and launcher in chosen.launchers:
            return stop_launched(chosen, launched, launcher, grace_s, bool(json))
    if chosen is None:
        directory: Path | None = find_run(base, run)
        chosen = next((each for each in alive if directory and recorded_at(each) == directory.resolve()), None)
    else:
        directory = recorded_at(chosen)
    launched_here = None if directory is None else read_launched(directory)
    if (
        directory is not None
        and launched_here is not None
        and launched_here.host == host
        and (chosen is not None or not is_concluded(read_record(directory)))
    ):
        return stop_without_launcher(launched_here, grace_s, bool(json))
    return _stop_here(chosen, directory, grace_s, bool(json), table)


def _is_over(base: Path, alive: Sequence[RunProcesses], run: str | None) -> bool:
    """Whether the name is exactly that of a record and of no live run: then it means no other of a longer name."""
    if not run or "/" in run or any(each.run_id == run for each in alive):
        return False
    return (base / "runs" / run).is_dir()


def _stop_here(
    chosen: RunProcesses | None, directory: Path | None, grace_s: float | None, json: bool, table: Table
) -> int:
    """End what runs here, and say which other hosts have a part of it."""
    if chosen is None:
        assert directory is not None  # a run without processes was found by its record
        stopped = Stopped(RunProcesses(directory.name, os.geteuid()), (), (), (), (), 0.0)
        if not json:
            tell(nothing_text(directory.name, other_processes(read_processes(directory), table, boot_id())))
    else:
        grace_s = _grace_of(chosen) + LONGER_S if grace_s is None else grace_s
        tell(begin_text(chosen, grace_s))
        stopped = stop_run(chosen, grace_s)
        if not json:
            tell(stopped_text(stopped))
    elsewhere = [] if directory is None else _other_hosts(directory, host_name())
    if json:
        answer_json(stop_json(stopped, elsewhere))
    tell_findings(stop_findings(stopped, elsewhere))
    return ExitStatus.FINDINGS if stopped.remaining or elsewhere else ExitStatus.DONE


def choose(alive: Sequence[RunProcesses], wanted: str | None, uid: int) -> RunProcesses | None:
    """Return the live run that is meant: by its id or a part of it; without any, this user's only one.

    Raises UsageError where several could be meant.
    """
    if wanted is None:
        near = [run for run in alive if run.uid == uid]
    else:
        near = called(alive, wanted)
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


def _grace_of(run: RunProcesses) -> float:
    """Return how long the launch lets its ranks take, in seconds, as it told its plug-in."""
    try:
        grace = json_format.loads(run.first.mark("DDPLAUNCH_AGENT") or "{}").get("grace_s")
    except (ValueError, AttributeError):
        grace = None
    return float(grace) if isinstance(grace, (int, float)) else _GRACE_S


def _other_hosts(directory: Path, host: str) -> list[str]:
    """Return the other hosts on which a node of the run has no outcome yet, as far as the record tells."""
    ended = read_record(directory).outcomes
    nodes = [node for node in read_processes(directory) if node.node not in ended]
    return sorted({node.host for node in nodes if node.host not in ("", host)})
