"""``ddplaunch stop``: ends one run here and on all hosts that it was launched on, first by SIGTERM, then by SIGKILL."""

from __future__ import annotations

from ddplaunch.cli.parsing.command import RUN_DIR, Command
from ddplaunch.cli.streams import answer_json, say, tell_findings
from ddplaunch.cli.which_run import Run, only_one, other_hosts, running_runs
from ddplaunch.hosts.local.stop_run import HostStopped, Stopped, ask_hosts, stop_resident, stop_run
from ddplaunch.machine.processes.run_processes import RunProcesses
from ddplaunch.planning.flag import Flag
from ddplaunch.planning.settings import Settings
from ddplaunch.records.directory import note_stop
from ddplaunch.records.find import RunRecord, read_record
from ddplaunch.records.launchers import Launched, read_launched
from ddplaunch.ui.stop_view import begin_on_hosts, begin_text, hosts_lines, stop_findings, stop_json, stopped_text
from ddplaunch.values.finding import ExitStatus
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
        Flag(
            "grace", "duration", "", "Time between SIGTERM and SIGKILL: 30, 2m [the run's own grace and 5 s].", "TIME"
        ),
        Flag("json", "switch", "", "How every process ended, as JSON."),
        RUN_DIR,
    ),
    more="Its torchrun gets SIGTERM; processes that outlive the grace get SIGKILL.",
)

_LONGER_S = 5.0  # so that torchrun, not this command, sends SIGKILL first


def stop(run: str | None, grace: float | None, json: bool | None, run_dir: str | None) -> int:
    """End a run over ssh by its launcher or, where that is gone, on each host; any other run on this host.

    Returns 1 where something is left of it.
    """
    runs = running_runs(run, run_dir)
    if not runs:
        return ExitStatus.DONE
    chosen = only_one(runs)
    launched = chosen.launched
    if launched is None and chosen.directory is not None:
        is_concluded = chosen.processes is None and _is_concluded(read_record(chosen.directory))
        launched = None if is_concluded else read_launched(chosen.directory)
    stopped: Stopped | None = None
    hosts: tuple[HostStopped, ...] = ()
    elsewhere: list[str] = []
    if launched is not None and launched.host == host_name() and not chosen.token:
        stopped, hosts = _stop_hosts(chosen, launched, grace)
    else:
        stopped = None if chosen.processes is None else _stop_here(chosen, chosen.processes, grace)
        elsewhere = [] if chosen.directory is None else other_hosts(chosen.directory)
    if json:
        answer_json(stop_json(chosen.run_id, stopped, elsewhere, hosts))
    elif stopped is not None:
        say(stopped_text(stopped, hosts))
    else:
        say(hosts_lines(hosts) if hosts else f"{chosen.run_id}: nothing of it runs on this host")
    findings = stop_findings(chosen.run_id, stopped, elsewhere, hosts)
    tell_findings(findings)
    return ExitStatus.FINDINGS if findings else ExitStatus.DONE


def _stop_hosts(run: Run, launched: Launched, grace_s: float | None) -> tuple[Stopped | None, tuple[HostStopped, ...]]:
    """End a run launched from here; return what ended here (None if its launcher is gone) and on its hosts."""
    own_s = launched.grace_s + _LONGER_S
    grace_s = own_s if grace_s is None else grace_s
    if run.launched is None or run.processes is None:
        say(begin_on_hosts(launched, None))
        return None, ask_hosts(launched, grace_s)
    say(begin_on_hosts(launched, grace_s))
    note_stop(launched.directory)
    stopped = stop_resident(run.processes, run.processes.launchers[0], grace_s, own_s)
    if _is_concluded(read_record(launched.directory)):
        return stopped, tuple(HostStopped(place.host) for place in launched.places)
    return stopped, () if stopped.remaining else ask_hosts(launched, grace_s)


def _is_concluded(record: RunRecord) -> bool:
    """Return whether the launcher saw every host end: it then wrote one outcome for all, without a note on a host."""
    return record.outcome is not None and not record.outcome.notes


def _stop_here(run: Run, processes: RunProcesses, grace_s: float | None) -> Stopped:
    """End the run's processes on this host."""
    grace_s = _grace_of(processes) + _LONGER_S if grace_s is None else grace_s
    say(begin_text(processes, grace_s))
    if run.directory is not None:
        note_stop(run.directory)
    return stop_run(processes, grace_s)


def _grace_of(run: RunProcesses) -> float:
    """Return the launch's grace for its ranks in seconds, from the settings that it gave to its plug-in."""
    try:
        return Settings.from_json(run.first.mark(SETTINGS) or "{}").grace_s
    except ValueError:
        return Settings().grace_s
