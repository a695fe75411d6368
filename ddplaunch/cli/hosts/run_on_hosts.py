"""``run --hosts``: gathers facts, checks, launches and watches over ssh; the one command that stays until the end.

Nothing is started unless every host answered and no check objects.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.cli.configuration import variables, with_configuration, working_directory
from ddplaunch.cli.execute import announce, new_token
from ddplaunch.cli.hosts.hosts_console import HostsConsole
from ddplaunch.cli.hosts.hosts_verdict import decide
from ddplaunch.cli.hosts.plan_hosts import (
    SYNCED_AFTER,
    SYNCED_BEFORE,
    AskedHosts,
    Planned,
    answering,
    facts_of,
    hosts_of,
    plan,
    refuse_own_place,
    synced,
)
from ddplaunch.cli.prepare import errors, record_directory
from ddplaunch.cli.streams import (
    answer,
    answer_json,
    tell,
    tell_findings,
    tell_findings_to_starter,
    tell_launch_to_starter,
)
from ddplaunch.cli.target import parse_target, required
from ddplaunch.hosts.session.collect import Gathered
from ddplaunch.hosts.session.links import Link, Links, allow_many
from ddplaunch.hosts.session.start_hosts import HostEnd, LaunchOnHosts, terminal_size
from ddplaunch.planning.hosts_plan import HostReport, named, options_json, sized
from ddplaunch.planning.launch import Launch
from ddplaunch.planning.options import Options, Said
from ddplaunch.records.directory import path_text, runs_directory
from ddplaunch.records.first_failure import steady_s
from ddplaunch.records.hosts_record import Pieces, without_skew, write_for_all
from ddplaunch.records.launchers import Launched, Place, holding, launched_by_me
from ddplaunch.records.outcome import RunOutcome, read_outcome
from ddplaunch.records.own.own_files import open_to_write
from ddplaunch.records.own.run_lock import hold_run
from ddplaunch.records.write import write_record
from ddplaunch.ui.outcome_view import outcome_text
from ddplaunch.ui.plan_view import plan_json, plan_text
from ddplaunch.ui.shell import dry_run_text
from ddplaunch.ui.speech import refusal_text
from ddplaunch.ui.terminal import Terminal, wrap
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import ExitStatus
from ddplaunch.values.resolved import Resolved, value_of
from ddplaunch.values.secrets import hide_words
from ddplaunch.values.words import count, numbers_text

_GRACE_S = 30.0


def run_on_hosts(
    said: Said,
    asked: AskedHosts,
    script: list[str] | None,
    profile: str | None,
    dry_run: bool,
    json: bool,
    plan_only: bool = False,
) -> int:
    """Launch on all hosts, stay until every one has ended, and return the first failed rank's exit status.

    ``dry_run`` prints what each would run instead, with ``plan_only`` as ``plan`` does.
    """
    options = with_configuration(said, profile, working_directory())
    target = parse_target(required(script))
    hosts = hosts_of(asked)
    refuse_own_place(options)
    sized(options, [host.name for host in hosts], [host.slots for host in hosts])
    pairs = tuple(Resolved((name, value), source) for name, value, source in variables(options))
    options = replace(options, env=pairs, env_file=())  # the files are on this machine
    enough = options.nnodes.value.fewest if options.nnodes else len(hosts)
    allow_many(len(hosts))
    copied: Mapping[str, Mapping[str, str]] = {}
    if asked.sync:
        with Links() as links:
            copied = synced(links, hosts, asked, options, target, dry_run)
        if not dry_run:
            tell(copied_text(copied))
    settled = frozenset() if not asked.sync else SYNCED_BEFORE if dry_run else SYNCED_AFTER
    begun_s = steady_s()
    with Links() as links:
        gathered = facts_of(links, hosts, asked, options, target)
        there, left_out = answering(hosts, gathered, enough)
        mine = sized(replace(options, nnodes=None), [host.name for host in there], [host.slots for host in there])
        planned = plan(links, there, gathered, mine, target, asked, settled)
        planned = replace(planned, findings=(*left_out, *planned.findings))
        if refusing := errors(planned.findings):
            tell_findings(planned.findings)
            tell(refusal_text(refusing, Terminal.of(sys.stderr)))
            return ExitStatus.REFUSED
        if dry_run:
            return _print(gathered, planned, json, copied, plan_only)
        return _launch(links, gathered, planned, required(script), begun_s)


def copied_text(copied: Mapping[str, Mapping[str, str]]) -> str:
    """Return a line of what `--sync` has copied."""
    many = {host: len(files) for host, files in copied.items() if files}
    said = ", ".join(f"{count(number, 'file')} to {host}" for host, number in many.items())
    return f"ddplaunch: copied {said}\n" if many else "ddplaunch: all hosts have this directory's files\n"


def _print(
    gathered: Gathered, planned: Planned, json: bool, copied: Mapping[str, Mapping[str, str]], plan_only: bool
) -> int:
    """Print what each host would run, and what `--sync` would copy there first."""
    tell_findings(planned.findings)
    if json:
        pairs = zip(gathered.reports, planned.launches, strict=True)
        plans = [{"host": report.name, **plan_json(launch, ())} for report, launch in pairs]
        more = {"copied": copied} if copied else {}
        answer_json({"schema": 1, "hosts": plans, "findings": plain(planned.findings), **more})
        return ExitStatus.DONE
    if plan_only:
        answer(_plans_text(gathered, planned))
        return ExitStatus.DONE
    for report, launch in zip(gathered.reports, planned.launches, strict=True):
        files = "".join(
            f"# copied there first: {name} ({kind})\n" for name, kind in copied.get(report.name, {}).items()
        )
        answer(f"{files}# on {report.name}, in {report.cwd}\n{dry_run_text(launch, Terminal.of(sys.stdout))}\n")
    return ExitStatus.DONE


#: What differs between nodes that do the same, and where lines are broken.
_OWN_NODE = re.compile(r"this\s+is\s+node\s+\d+|--node-rank=\d+|\"node\":\d+|\\|\s+")


def _plans_text(gathered: Gathered, planned: Planned) -> str:
    """Return the plan of each host, those once that differ in the number of the node alone."""
    terminal = Terminal.of(sys.stdout)
    groups: dict[str, tuple[str, list[tuple[str, int]]]] = {}
    for report, launch in zip(gathered.reports, planned.launches, strict=True):
        text = plan_text(launch, terminal, facts=report.facts)
        _, hosts = groups.setdefault(_OWN_NODE.sub("", text), (text, []))
        hosts.append((report.name, value_of(launch.topology.node_rank, 0)))
    said = []
    for text, ((name, _), *others) in groups.values():
        said.append(f"{name}\n{text}\n")
        if others:
            nodes = [node for _, node in others]
            number = f"node{'s' if len(nodes) > 1 else ''} {numbers_text(nodes)}"
            alike = f"{named([each for each, _ in others])}: the same, as {number}"
            said.append("\n".join([*wrap(alike, terminal.width, "", "  "), "\n"]))
    return "".join(said)


def _launch(links: Links, gathered: Gathered, planned: Planned, script: list[str], begun_s: float) -> int:
    first = planned.launches[0]
    names, facts = tuple(report.name for report in gathered.reports), gathered.reports[0].facts
    first = replace(first, notes=(f"hosts: {named(names)}", *first.notes))
    base = runs_directory(os.environ, value_of(first.options.run_dir, None), Path.cwd())
    directory = record_directory(base, first.run_id)
    held, token = hold_run(base, first, "launcher"), new_token()
    noted = write_record(first, sys.argv, dict(os.environ), facts, planned.findings, base, token=token)
    marker = _mark(directory)
    tell_findings_to_starter(planned.findings)
    record = f"none: {noted}" if isinstance(noted, str) else held.told(path_text(noted))
    announce(of_all(first), planned.findings, facts, record)
    tell_launch_to_starter(first.run_id, noted)
    grace_s = value_of(first.options.grace_s, _GRACE_S)
    typed = {"script": script, "argv": hide_words(sys.argv), "marker": marker, "token": token}
    orders = [
        _order(launch, mine, report, typed, grace_s)
        for launch, mine, report in zip(planned.launches, planned.parts, gathered.reports, strict=True)
    ]
    pythons = [launch.argv[0] for launch in planned.launches]
    records = [order["record"] for order in orders]
    ahead = [report.clock_ahead_s for report in gathered.reports]
    folders = [link.folder for link in gathered.links]
    about = zip(names, pythons, records, ahead, folders, strict=True)
    places = [Place(node, *place) for node, place in enumerate(about)]
    launched = launched_by_me(directory, first.run_id, places, grace_s, token, marker, begun_s)
    with held:
        return _stay(launched, links, gathered.links, orders, first.options.show is not None)


def _stay(
    launched: Launched, links: Links, hosts: Sequence[Link], orders: Sequence[dict[str, Any]], chosen: bool
) -> int:
    """Start ``orders`` on the hosts, stay until the run has ended on all of them, and return its exit status.

    ``chosen`` is whether `--show` says whose output is shown.
    """
    directory, grace_s = launched.directory, launched.grace_s
    console, pieces = HostsConsole(tuple(place.host for place in launched.places), chosen), Pieces(directory)
    running = LaunchOnHosts(links, hosts, console.show, pieces.keep, grace_s, console.say)
    with holding(launched):
        ends = running.run(orders)
        console.close()
        pieces.unpack()
        if launched.marker is not None:
            (directory / launched.marker).unlink(missing_ok=True)
        return _conclude(launched, ends, running.interrupted)


def of_all(first: Launch) -> Launch:
    """Return the launch of node 0 as that of all nodes: the launcher itself is none of them."""
    return replace(first, topology=replace(first.topology, node_rank=None))


def _mark(directory: Path) -> str | None:
    """Leave a file by which a host sees that this directory is its own: one file system, and nothing to bring."""
    name = f".launcher-{os.getpid()}-{time.time_ns():x}"
    try:
        os.close(open_to_write(directory / name, os.O_WRONLY | os.O_EXCL))
    except OSError:
        return None
    return name


def _order(
    launch: Launch,
    options: Options,
    report: HostReport,
    typed: dict[str, Any],
    grace_s: float,
) -> dict[str, Any]:
    record = (
        runs_directory(report.facts.environment, value_of(options.run_dir, None), Path(report.cwd))
        / "runs"
        / launch.run_id
    )
    node = value_of(launch.topology.node_rank, 0)
    streams = [name for name, descriptor in (("out", 1), ("err", 2)) if os.isatty(descriptor)]
    size = terminal_size()
    return {
        "python": launch.argv[0],
        "run_id": launch.run_id,
        "grace_s": grace_s,
        "record": str(record),
        "node": node,
        "marker": typed["marker"],
        "token": typed["token"],
        "terminal": {"streams": streams, **size} if streams and size and node == 0 else None,
        "launch": {"options": options_json(options), **typed},
    }


def _conclude(launched: Launched, ends: tuple[HostEnd, ...], interrupted: int | None) -> int:
    """Find out where it began, write one outcome for all, say it, and return its exit status."""
    directory, run_id, begun_s = launched.directory, launched.run_id, launched.begun_s
    outcomes: dict[int, RunOutcome] = {}
    for end, place in zip(ends, launched.places, strict=True):
        found = read_outcome(directory, end.node)
        if isinstance(found, RunOutcome):
            found = without_skew(found, place.clock_ahead_s)
            if found.is_of(launched.launch):  # an id may be used again
                outcomes[end.node] = found
    outcome = replace(decide(directory, run_id, begun_s, ends, outcomes, interrupted), launch=launched.launch)
    problem = write_for_all(directory, outcome)
    tell(
        outcome_text(
            replace(outcome, attempts=()),  # one word for all hosts; `explain` knows the attempts
            path_text(directory),
            Terminal.of(sys.stderr),
            signal=interrupted or (outcome.exit_status - 128 if outcome.state == "terminated" else None),
            unrecorded=problem or ("; ".join(outcome.notes) or None),
        )
    )
    return outcome.exit_status
