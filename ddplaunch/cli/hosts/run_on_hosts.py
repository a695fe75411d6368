"""``run --hosts``: gathers facts, checks, launches and watches over ssh; the one command that stays until the end.

Nothing is started unless every host answered and no check objects.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.cli.configuration import variables, with_configuration, working_directory
from ddplaunch.cli.hosts.hosts_console import HostsConsole
from ddplaunch.cli.hosts.hosts_verdict import decide
from ddplaunch.cli.hosts.plan_hosts import (
    AskedHosts,
    Planned,
    answering,
    facts_of,
    hosts_of,
    plan,
    refuse_own_place,
    run_dir_of,
)
from ddplaunch.cli.hosts.relaunch_hosts import Again, LaunchEnd, progress_of, until_done
from ddplaunch.cli.prepare import record_directory
from ddplaunch.cli.streams import answer, answer_json, tell, tell_findings
from ddplaunch.cli.target import parse_target, required
from ddplaunch.hosts.session.collect import Gathered
from ddplaunch.hosts.session.links import Links, allow_many
from ddplaunch.hosts.session.start_hosts import HostEnd, LaunchOnHosts, terminal_size
from ddplaunch.launch.hosts_plan import HostReport, fewest, named, options_json, sized, sized_for
from ddplaunch.launch.launch import Launch
from ddplaunch.launch.options import Options, Said
from ddplaunch.launch.relaunch import relaunch_policy
from ddplaunch.records.directory import path_text, runs_directory
from ddplaunch.records.hosts_record import Pieces, merged_attempts, without_skew, write_for_all
from ddplaunch.records.launchers import Place, holding
from ddplaunch.records.outcome import RunOutcome, read_outcome
from ddplaunch.records.write import hide_secrets, write_record
from ddplaunch.ui.export import finding_json, plan_json
from ddplaunch.ui.launch_view import launch_panel
from ddplaunch.ui.outcome_view import outcome_text
from ddplaunch.ui.shell import dry_run_text
from ddplaunch.ui.speech import refusal_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus
from ddplaunch.values.resolved import Resolved

_GRACE_S = 30.0
_ENDS_ITSELF_S = 5.0  # after its grace, a host that was lost has ended what ran there
_CLOCK_S = 2.0  # what a host's measured clock may be wrong by


def run_on_hosts(
    said: Said, asked: AskedHosts, script: list[str] | None, profile: str | None, dry_run: bool, json: bool
) -> int:
    """Launch on all hosts, stay until every one has ended, and return the first failed rank's exit status."""
    options = with_configuration(said, profile, working_directory())
    target = parse_target(required(script))
    hosts = hosts_of(asked)
    refuse_own_place(options)
    sized(options, [host.name for host in hosts], [host.slots for host in hosts])
    pairs = tuple(Resolved((name, value), source) for name, value, source in variables(options))
    options = replace(options, env=pairs, env_file=())  # the files are on this machine
    allow_many(len(hosts))

    def launch(again: Again) -> LaunchEnd:
        begun_s = time.time()
        with Links() as links:
            gathered = facts_of(links, hosts, asked, options, target)
            there, left_out = answering(hosts, gathered, fewest(options, len(hosts)))
            mine = sized_for(options, [host.name for host in there], [host.slots for host in there])
            planned = plan(links, there, gathered, mine, target, asked, again.number)
            planned = replace(planned, findings=(*left_out, *planned.findings))
            if refusing := planned.refusing():
                tell_findings(planned.findings)
                tell(refusal_text(refusing, Terminal.of(sys.stderr)))
                return LaunchEnd(ExitStatus.REFUSED)
            if dry_run:
                return LaunchEnd(_print(gathered, planned, json))
            return _launch(links, gathered, planned, required(script), begun_s, again)

    return until_done(launch, None if dry_run else relaunch_policy(options))


def _print(gathered: Gathered, planned: Planned, json: bool) -> int:
    """Print what each host would run."""
    tell_findings(planned.findings)
    if json:
        pairs = zip(gathered.reports, planned.launches, strict=True)
        plans = [{"host": report.name, **plan_json(launch, ())} for report, launch in pairs]
        answer_json({"schema": 1, "hosts": plans, "findings": [finding_json(each) for each in planned.findings]})
        return ExitStatus.DONE
    for report, launch in zip(gathered.reports, planned.launches, strict=True):
        answer(f"# on {report.name}, in {report.cwd}\n{dry_run_text(launch, Terminal.of(sys.stdout))}\n")
    return ExitStatus.DONE


def _launch(
    links: Links, gathered: Gathered, planned: Planned, script: list[str], begun_s: float, again: Again
) -> LaunchEnd:
    first = planned.launches[0]
    notes = (f"relaunch {again.number}, because {again.of} failed",) if again.of is not None else ()
    hosts = f"hosts: {named([report.name for report in gathered.reports])}"
    first = replace(first, notes=(*notes, hosts, *first.notes))
    base = runs_directory(os.environ, run_dir_of(first.options), Path.cwd())
    directory = record_directory(base, first.run_id)
    noted = write_record(first, sys.argv, dict(os.environ), gathered.reports[0].facts, planned.findings, base, again.of)
    marker = _mark(directory)
    tell(
        launch_panel(
            first,
            planned.findings,
            Terminal.of(sys.stderr),
            facts=gathered.reports[0].facts,
            record=f"none: {noted}" if isinstance(noted, str) else path_text(noted),
        )
    )
    names = tuple(report.name for report in gathered.reports)
    console, pieces = HostsConsole(names, first.options.show is not None), Pieces(directory)
    grace_s = first.options.grace_s.value if first.options.grace_s else _GRACE_S
    running = LaunchOnHosts(links, gathered.links, console.show, pieces.keep, grace_s, console.say)
    typed = {"script": script, "argv": hide_secrets(sys.argv), "relaunch_of": again.of}
    orders = [
        _order(launch, mine, report, typed, marker, grace_s)
        for launch, mine, report in zip(planned.launches, planned.parts, gathered.reports, strict=True)
    ]
    places = [
        Place(node, name, str(order["python"])) for node, (name, order) in enumerate(zip(names, orders, strict=True))
    ]
    with holding(directory, first.run_id, places, grace_s):
        ends = running.run(orders)
        console.close()
        pieces.unpack()
        if marker is not None:
            (directory / marker).unlink(missing_ok=True)
        ended = _conclude(directory, first.run_id, ends, gathered.reports, running.interrupted, begun_s)
        lost = any(end.lost is not None for end in ends)
        return replace(ended, pause_s=grace_s + _ENDS_ITSELF_S if lost else 0.0, directory=directory)


def _mark(directory: Path) -> str | None:
    """Leave a file by which a host sees that this directory is its own: one file system, and nothing to bring."""
    name = f".launcher-{os.getpid()}-{time.time_ns():x}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    except OSError:
        return None
    return name


def _order(
    launch: Launch,
    options: Options,
    report: HostReport,
    typed: dict[str, Any],
    marker: str | None,
    grace_s: float,
) -> dict[str, Any]:
    record = runs_directory({}, run_dir_of(options), Path(report.cwd)) / "runs" / launch.run_id
    node = launch.topology.node_rank.value if launch.topology.node_rank else 0
    streams = [name for name, descriptor in (("out", 1), ("err", 2)) if os.isatty(descriptor)]
    size = terminal_size()
    return {
        "python": launch.argv[0],
        "run_id": launch.run_id,
        "grace_s": grace_s,
        "record": str(record),
        "marker": marker,
        "terminal": {"streams": streams, **size} if streams and size and node == 0 else None,
        "launch": {"options": options_json(options), **typed},
    }


def _conclude(
    directory: Path,
    run_id: str,
    ends: tuple[HostEnd, ...],
    reports: tuple[HostReport, ...],
    interrupted: int | None,
    begun_s: float,
) -> LaunchEnd:
    """Find out where it began, write one outcome for all, and say it."""
    outcomes: dict[int, RunOutcome] = {}
    for end, report in zip(ends, reports, strict=True):
        found = read_outcome(directory, end.node)
        if isinstance(found, RunOutcome):
            found = without_skew(found, report.clock_ahead_s)
            if found.ended_s > begun_s - _CLOCK_S:  # an id may be used again
                outcomes[end.node] = found
    verdict = decide(directory, ends, outcomes, interrupted)
    diagnosis = verdict.explanation.diagnosis
    outcome = RunOutcome(
        run_id=run_id,
        host=verdict.host,
        node=verdict.node,
        state=verdict.state,
        exit_status=verdict.exit_status,
        started_s=round(begun_s, 3),
        ended_s=round(time.time(), 3),
        first_failed_rank=diagnosis.rank if diagnosis is not None else None,
        diagnosis=diagnosis,
        cascade=verdict.explanation.cascade,
        attempts=merged_attempts(outcomes.values(), diagnosis),
        notes=verdict.notes,
    )
    problem = write_for_all(directory, outcome)
    tell(
        outcome_text(
            replace(outcome, attempts=()),  # one word for all hosts; `explain` knows the attempts
            path_text(directory),
            Terminal.of(sys.stderr),
            signal=interrupted,
            unrecorded=problem or ("; ".join(verdict.notes) or None),
        )
    )
    return LaunchEnd(verdict.exit_status, run_id, progress_of(directory, verdict, outcomes, interrupted))
