"""``run --hosts``: gathers facts, checks, launches and watches over ssh, and stays until the run has ended.

Nothing is started unless every host answered and no check found an error.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddplaunch.cli.configuration import with_configuration
from ddplaunch.cli.execute import new_token, show_launch
from ddplaunch.cli.hosts.hosts_console import HostsConsole
from ddplaunch.cli.hosts.hosts_verdict import EndedLaunch
from ddplaunch.cli.hosts.plan_hosts import AskedHosts, LaunchedHosts, Planned, hosts_of
from ddplaunch.cli.parsing.typed_words import TypedLaunch
from ddplaunch.cli.prepare import errors, record_directory
from ddplaunch.cli.streams import answer, answer_json, tell, tell_findings, tell_refusal
from ddplaunch.cli.target import parse_target, required
from ddplaunch.cli.which_run import bring
from ddplaunch.hosts.session.links import Links
from ddplaunch.hosts.session.start_hosts import HostEnd, LaunchOnHosts
from ddplaunch.hosts.ssh import alike
from ddplaunch.planning.hosts_plan import names_text, sized
from ddplaunch.records.directory import path_text, runs_directory
from ddplaunch.records.first_failure import steady_s
from ddplaunch.records.hosts_record import without_skew, write_for_all
from ddplaunch.records.launchers import Launched, Place, holding, launched_by_me
from ddplaunch.records.outcome import RunOutcome, read_outcome
from ddplaunch.records.own.run_lock import hold_run
from ddplaunch.records.write import write_record
from ddplaunch.ui.outcome_view import outcome_text
from ddplaunch.ui.plan_view import plan_json, plan_text
from ddplaunch.ui.shell import dry_run_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import ExitStatus, RefusedError, usage
from ddplaunch.values.resolved import value_of
from ddplaunch.values.secrets import hide_words
from ddplaunch.watch.live_samples import name_late_host

_GRACE_S = 30.0
_RECORD_S = 60.0  # for the records of all hosts to arrive


def run_on_hosts(typed: TypedLaunch, asked_hosts: AskedHosts, printed: str) -> int:
    """Launch on all hosts, stay until each has ended, and return the first failed rank's exit status.

    ``printed`` says what is printed of each host instead: its "commands", its "plan", or that as "json".
    """
    options = with_configuration(typed)
    script = required(typed.script)
    target = parse_target(script)
    hosts = hosts_of(asked_hosts)
    if options.node_rank is not None:
        raise usage(
            "`--node-rank` and `--hosts` together",
            why="the hosts get their node ranks in the order of the list",
            fix="leave `--node-rank` out",
            where=str(options.node_rank.source),
        )
    if options.nnodes and options.nnodes.value.most == len(hosts) + len(asked_hosts.exclude):
        options = replace(options, nnodes=None)  # the size was typed before hosts were excluded
    options = sized(options, [host.name for host in hosts], [host.slots for host in hosts])
    begun_s = steady_s()
    with Links() as links:
        launched = LaunchedHosts(links, hosts, asked_hosts, options, target)
        gathered = launched.facts()
        if gathered.missing:
            raise RefusedError(*alike(gathered.missing))
        planned = launched.plan(gathered)
        if errors(planned.findings):
            tell_refusal(planned.findings)
            return ExitStatus.REFUSED
        if printed:
            return _print(planned, printed)
        return _launch(links, planned, script, begun_s, asked_hosts.patience_s)


def notes_on(names: Sequence[str]) -> tuple[str, ...]:
    """Return the panel's notes on the hosts; above 64 hosts also what suits them better."""
    many = (f"{len(names)} hosts by ssh: Slurm, Kubernetes or Ray need no launcher that stays up (docs/scale.md)",)
    return (f"hosts: {names_text(names)}", *many[: len(names) > 64])


def _print(planned: Planned, printed: str) -> int:
    """Print what each host would run."""
    tell_findings(planned.findings)
    terminal = Terminal.of(sys.stdout)
    if printed == "json":
        plans = [{"host": part.report.name, **plan_json(part.launch, ())} for part in planned.parts]
        answer_json({"schema": 1, "hosts": plans, "findings": plain(planned.findings)})
    elif printed == "plan":
        for part in planned.parts:
            answer(f"{part.report.name}\n{plan_text(part.launch, terminal, facts=part.report.facts)[1]}\n")
    else:
        for part in planned.parts:
            answer(f"# on {part.report.name}, in {part.report.cwd}\n{dry_run_text(part.launch)}\n")
    return ExitStatus.DONE


def _launch(links: Links, planned: Planned, script: Sequence[str], begun_s: float, host_timeout_s: float) -> int:
    parts, facts, launch = planned.parts, planned.parts[0].report.facts, planned.parts[0].launch
    base = runs_directory(value_of(launch.options.run_dir, None))
    directory = record_directory(base, launch.run_id)
    lock, token = hold_run(base, launch, "launcher"), new_token()
    noted = write_record(launch, sys.argv, os.environ, facts, planned.findings, base, token=token)
    notes = (
        *notes_on([part.report.name for part in parts]),
        *launch.notes,
    )
    of_all = replace(launch, topology=replace(launch.topology, node_rank=None), notes=notes)  # this process is no node
    show_launch(of_all, planned.findings, facts, lock, noted)
    grace_s = value_of(launch.options.grace_s, _GRACE_S)
    of_every_host = {"script": script, "argv": hide_words(sys.argv), "token": token, "grace_s": grace_s}
    orders = [
        {
            **of_every_host,
            "python": part.launch.argv[0],
            "run_id": part.launch.run_id,
            "record": part.record,
            "options": plain(part.options),
        }
        for part in parts
    ]
    places = [
        Place(node, part.report.name, part.launch.argv[0], part.record, part.report.clock_ahead_s)
        for node, part in enumerate(parts)
    ]
    launched = launched_by_me(directory, launch.run_id, places, grace_s, token, begun_s)
    with lock:
        console = HostsConsole(tuple(place.host for place in places), launch.options.show is not None)
        hosts = [part.link for part in parts]
        running = LaunchOnHosts(links, hosts, console.show, grace_s, host_timeout_s, console.say)
        if value_of(launch.options.phases, False):
            threading.Thread(target=name_late_host, args=(launched, console.say), daemon=True).start()
        return _stay(launched, running, console, orders)


def _stay(launched: Launched, running: LaunchOnHosts, console: HostsConsole, orders: Sequence[dict[str, Any]]) -> int:
    """Start ``orders`` on the hosts, stay until the run has ended on all of them, and return its exit status."""
    with holding(launched), running.handling():
        ends = running.run(orders)
        console.close()
        ended = tuple(place for place, end in zip(launched.places, ends, strict=True) if end.lost is None)
        bring(replace(launched, places=ended), launched.directory, _RECORD_S)
        return _conclude(launched, ends, running.interrupted)


def _conclude(launched: Launched, ends: tuple[HostEnd, ...], interrupted: int | None) -> int:
    """Find out where the failure began, write one outcome for all hosts, print it, and return its exit status."""
    directory, run_id, begun_s = launched.directory, launched.run_id, launched.begun_s
    found = {place: read_outcome(directory, place.node) for place in launched.places}
    outcomes = {
        place.node: without_skew(outcome, place.clock_ahead_s)
        for place, outcome in found.items()
        if isinstance(outcome, RunOutcome) and outcome.is_of(launched.launch)  # an older run may have the same id
    }
    outcome = EndedLaunch(directory, run_id, begun_s, ends, outcomes, interrupted).outcome()
    outcome = replace(outcome, launch=launched.launch)
    problem = write_for_all(directory, outcome)
    tell(
        outcome_text(
            replace(outcome, attempts=()),  # one verdict for all hosts; `explain` shows the attempts
            path_text(directory),
            Terminal.of(sys.stderr),
            signal=interrupted or (outcome.exit_status - 128 if outcome.state == "terminated" else None),
            unrecorded=problem or ("; ".join(outcome.notes) or None),
        )
    )
    return outcome.exit_status
