"""``run --hosts``: gathers, checks, launches and watches over ssh; the one command that stays until the end.

It refuses to start anything unless every host answered and no check of any host objects.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.checks.all_checks import run_across
from ddplaunch.cli.configuration import variables, with_configuration, working_directory
from ddplaunch.cli.hosts_console import Console
from ddplaunch.cli.hosts_verdict import decide
from ddplaunch.cli.prepare import check, choose_gpus, interpreter, record_directory, script_report
from ddplaunch.cli.say import answer, tell, tell_findings
from ddplaunch.cli.target import parse_target, required
from ddplaunch.errors import ExitStatus, RefusedError, usage
from ddplaunch.finding import Finding, Severity
from ddplaunch.frozen import dataclass
from ddplaunch.hosts.gather import Gathered, Question, ask_all, meet
from ddplaunch.hosts.hostlist import Host, chosen, from_file, from_words
from ddplaunch.hosts.links import Link, Links, allow_many
from ddplaunch.hosts.ssh import command
from ddplaunch.hosts.together import HostEnd, Together, terminal_size
from ddplaunch.launch.hosts_plan import HostReport, Meeting, forwarded, options_json, part, sized
from ddplaunch.launch.options import Options
from ddplaunch.launch.plan import Launch, Target
from ddplaunch.launch.resolve import Situation, resolve
from ddplaunch.probes.facts import ProbeRequest
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.from_hosts import Pieces, merged, outcome_of_node, without_skew, write_merged
from ddplaunch.records.outcome import Outcome
from ddplaunch.records.record import hide_secrets, write
from ddplaunch.records.run_id import new_run_id
from ddplaunch.script.report import ScriptReport
from ddplaunch.ui.dry_run import dry_run_text
from ddplaunch.ui.outcome_view import outcome_text
from ddplaunch.ui.panel import launch_panel
from ddplaunch.ui.speech import refusal_text
from ddplaunch.ui.streams import styled, unicode_ok, width
from ddplaunch.values import Unavailable

FACTS_S = 20.0
TORCH_S = 90.0
_GRACE_S = 30.0


@dataclass(frozen=True)
class Asked:
    """The flags that say which hosts, and how to reach them; None or empty where not given."""

    hosts: str | None = None
    hostfile: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    chdir: str | None = None
    python: str | None = None
    join_timeout: float | None = None

    @property
    def given(self) -> bool:
        """Whether several hosts were asked for at all."""
        return self.hosts is not None or self.hostfile is not None


@dataclass(frozen=True)
class Planned:
    """Each host's part, what was decided for node 0, and what all checks found; errors refuse the launch."""

    parts: tuple[Options, ...]
    launches: tuple[Launch, ...]
    findings: tuple[Finding, ...]

    def refusing(self) -> tuple[Finding, ...]:
        """Return the errors."""
        return tuple(each for each in self.findings if each.severity is Severity.ERROR)


def asked_for(flags: Mapping[str, Any]) -> Asked:
    """Return what the flags say. Raises UsageError for a number that is none, and for flags without any host."""
    text = flags.get("join_timeout")
    timeout_s = None
    if text is not None:
        try:
            timeout_s = float(text)
        except ValueError:
            timeout_s = -1.0
        if not 0 < timeout_s < 1e6:
            raise usage(
                f"`--join-timeout {text}` is no number of seconds",
                why="it is how long the hosts have to answer",
                fix="`--join-timeout 60`",
                where="flag: --join-timeout",
            )
    asked = Asked(
        flags.get("hosts"),
        flags.get("hostfile"),
        tuple(flags.get("include") or ()),
        tuple(flags.get("exclude") or ()),
        flags.get("chdir"),
        flags.get("python"),
        timeout_s,
    )
    if not asked.given:
        name = next(name for name, value in flags.items() if value).replace("_", "-")
        raise usage(
            f"`--{name}` without hosts",
            why="it is for a launch over several hosts",
            fix=f"add `--hosts gpu-a,gpu-b`, or leave `--{name}` out",
            where=f"flag: --{name}",
        )
    return asked


def run_on_hosts(options: Options, asked: Asked, script: list[str] | None, profile: str | None, dry_run: bool) -> int:
    """Launch on all hosts, stay until every one has ended, and return the first failed rank's exit status."""
    options = with_configuration(options, profile, working_directory())
    target = parse_target(required(script))
    hosts = hosts_of(asked)
    refuse_own_place(options)
    options = sized(options, [host.name for host in hosts], [host.slots for host in hosts])
    options = replace(options, env=_pairs(options), env_file=())
    allow_many(len(hosts))
    begun_s = time.time()
    with Links() as links:
        gathered = facts_of(links, hosts, asked, options, target)
        refuse_missing(gathered.missing, len(hosts))
        planned = plan(links, hosts, gathered, options, target, asked)
        if refusing := planned.refusing():
            tell_findings(planned.findings)
            tell(refusal_text(refusing, width(sys.stderr), styled(sys.stderr)))
            return ExitStatus.REFUSED
        if dry_run:
            return _print(gathered, planned)
        return _launch(links, gathered, planned, required(script), begun_s)


def hosts_of(asked: Asked) -> tuple[Host, ...]:
    """Return the hosts that were named and chosen. Raises UsageError for a list that is none."""
    if asked.hosts is not None and asked.hostfile is not None:
        raise usage("`--hosts` and `--hostfile` together", why="both name the hosts", fix="give one of them")
    if asked.hostfile is not None:
        try:
            text = Path(asked.hostfile).read_text(encoding="utf-8", errors="replace")
        except OSError as exception:
            raise usage(
                f"`{asked.hostfile}` cannot be read: {exception.strerror}",
                why="it was named by `--hostfile`",
                fix="correct the path, or name the hosts by `--hosts gpu-a,gpu-b`",
                where="flag: --hostfile",
            ) from exception
        hosts = from_file(text, asked.hostfile)
    else:
        hosts = from_words(asked.hosts or "")
    return chosen(hosts, asked.include, asked.exclude)


def refuse_own_place(options: Options) -> None:
    """Raise UsageError for a node rank: the list of hosts decides it."""
    if options.node_rank is not None:
        raise usage(
            "`--node-rank` and `--hosts` together",
            why="the hosts get their node ranks in the order of the list",
            fix="leave `--node-rank` out",
            where=str(options.node_rank.source),
        )


def refuse_missing(missing: tuple[Finding, ...], hosts: int) -> None:
    """Raise RefusedError where a host did not answer; what all of them lack is said once."""
    if missing:
        raise RefusedError(*once(by_host(missing), hosts))


def once(found: Sequence[tuple[str | None, Finding]], hosts: int) -> tuple[Finding, ...]:
    """Return each finding once, with the hosts that it is about in front of its places, unless it is about all of them.

    ``found`` names the host of each finding; None where the finding does so itself.
    """
    groups: dict[tuple[Any, ...], tuple[Finding, list[str]]] = {}
    for host, finding in found:
        key = (finding.code, finding.severity, finding.what, finding.fix)
        named = groups.setdefault(key, (finding, []))[1]
        if host is not None and host not in named:
            named.append(host)
    return tuple(
        finding if finding.where and len(named) == hosts else replace(finding, where=(*named, *finding.where))
        for finding, named in groups.values()
    )


def by_host(missing: Sequence[Finding]) -> list[tuple[str | None, Finding]]:
    """Return the findings about hosts that did not answer, each with its host beside it."""
    return [(finding.where[0], replace(finding, where=())) for finding in missing]


def facts_of(
    links: Links, hosts: tuple[Host, ...], asked: Asked, options: Options, target: Target | None, torch: bool = False
) -> Gathered:
    """Ask all hosts at once. Raises RefusedError where there is no ssh."""
    python = asked.python or sys.executable
    question = Question(
        request=ProbeRequest(
            data_paths=tuple(item.value for item in options.data),
            output_paths=tuple(item.value for item in options.output),
            import_torch=torch,
        ),
        python=python,
        cwd=asked.chdir or str(working_directory()),
        script=target.name if target is not None and target.kind == "script" else None,
        env=forwarded(os.environ),
        deadline_s=asked.join_timeout or (TORCH_S if torch else FACTS_S),
    )

    def start(name: str) -> Link:
        return links.open(name, command(name, python))

    try:
        return ask_all(links, [host.name for host in hosts], start, question)
    except FileNotFoundError as exception:
        raise usage(
            "there is no `ssh` on PATH",
            why="hosts are reached by OpenSSH's own client",
            fix="install it: `apt-get install openssh-client`, `dnf install openssh-clients`",
            code="ssh-missing",
        ) from exception


def plan(
    links: Links, hosts: tuple[Host, ...], gathered: Gathered, options: Options, target: Target, asked: Asked
) -> Planned:
    """Decide every host's part and check it, and compare the hosts. Raises RefusedError where they cannot meet."""
    ignored = {item.value for item in options.ignore}
    across = () if _unchecked(options) else run_across(gathered.reports, ignored)
    findings = tuple(finding for outcome in across for finding in outcome.findings)
    if any(each.severity is Severity.ERROR for each in findings):
        return Planned((), (), findings)
    meeting = meet(
        links,
        gathered.links,
        options.master_port.value if options.master_port else None,
        options.master_addr.value if options.master_addr else None,
    )
    if not isinstance(meeting, Meeting):
        raise RefusedError(*meeting)
    run_id = options.run_id.value if options.run_id else new_run_id()
    script = script_report(target, Path.cwd())
    parts, launches = [], []
    found: list[tuple[str | None, Finding]] = [(None, finding) for finding in findings]
    for node, (host, report) in enumerate(zip(hosts, gathered.reports, strict=True)):
        mine = part(options, node, meeting, run_id, host.devices)
        if not isinstance(report.facts.network, Unavailable):
            network = replace(report.facts.network, route_to_master=meeting.route(node, report.facts.network))
            report = replace(report, facts=replace(report.facts, network=network))
        launch = plan_host(mine, target, report, script, run_id, asked)
        parts.append(mine)
        launches.append(launch)
        for outcome in check(mine, launch, report.facts, script):
            found += [(report.name, finding) for finding in outcome.findings]
    return Planned(tuple(parts), tuple(launches), once(found, len(hosts)))


def _unchecked(options: Options) -> bool:
    return options.checks is not None and not options.checks.value


def plan_host(
    options: Options,
    target: Target,
    report: HostReport,
    script: ScriptReport | Unavailable,
    run_id: str,
    asked: Asked,
) -> Launch:
    """Decide one host's launch from what it reported. It decides again itself, from what it then sees."""
    environ = report.facts.environment
    record = record_directory(runs_directory(environ, _run_dir(options), Path(report.cwd)), run_id)
    situation = Situation(
        facts=report.facts,
        script=script,
        environ=environ,
        pairs=variables(options),
        selection=choose_gpus(options, report.facts, environ, None, run_id),
        python=(asked.python,) if asked.python else interpreter(),
        run_id=run_id,
        record=str(record),
        plugin=report.plugin if report.plugin is not None else Unavailable(f"ddplaunch on {report.name} has none"),
        cwd=report.cwd,
    )
    return resolve(options, target, situation)


def _run_dir(options: Options) -> str | None:
    return options.run_dir.value if options.run_dir else None


def _pairs(options: Options) -> tuple[Any, ...]:
    """Return ``--env`` with what ``--env-file`` says in it: the files are on this machine."""
    from ddplaunch.values import Resolved

    return tuple(Resolved(f"{name}={value}", source) for name, value, source in variables(options))


def _print(gathered: Gathered, planned: Planned) -> int:
    """Print what each host would run."""
    tell_findings(planned.findings)
    for report, launch in zip(gathered.reports, planned.launches, strict=True):
        answer(f"# on {report.name}, in {report.cwd}\n{dry_run_text(launch, unicode=unicode_ok(sys.stdout))}\n")
    return ExitStatus.DONE


def _launch(links: Links, gathered: Gathered, planned: Planned, script: list[str], begun_s: float) -> int:
    first = planned.launches[0]
    first = replace(first, notes=(f"hosts: {', '.join(report.name for report in gathered.reports)}", *first.notes))
    base = runs_directory(os.environ, _run_dir(first.options), Path.cwd())
    directory = record_directory(base, first.run_id)
    noted = write(first, sys.argv, dict(os.environ), gathered.reports[0].facts, planned.findings, base)
    marker = _mark(directory)
    tell(
        launch_panel(
            first,
            planned.findings,
            width(sys.stderr),
            styled(sys.stderr),
            unicode=unicode_ok(sys.stderr),
            facts=gathered.reports[0].facts,
            record=f"none: {noted}" if isinstance(noted, str) else _shown(noted),
        )
    )
    names = tuple(report.name for report in gathered.reports)
    console, pieces = Console(names, first.options.show is not None), Pieces(directory)
    grace_s = first.options.grace.value if first.options.grace else _GRACE_S
    together = Together(links, gathered.links, console.show, pieces.keep, grace_s)
    orders = [
        _order(launch, mine, report, script, marker, grace_s)
        for launch, mine, report in zip(planned.launches, planned.parts, gathered.reports, strict=True)
    ]
    ends = together.run(orders)
    console.close()
    pieces.unpack()
    if marker is not None:
        (directory / marker).unlink(missing_ok=True)
    return _conclude(directory, first.run_id, ends, gathered.reports, together.interrupted, begun_s)


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
    launch: Launch, options: Options, report: HostReport, script: list[str], marker: str | None, grace_s: float
) -> dict[str, Any]:
    record = runs_directory({}, _run_dir(options), Path(report.cwd)) / "runs" / launch.run_id
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
        "launch": {"options": options_json(options), "script": script, "argv": hide_secrets(sys.argv)},
    }


def _conclude(
    directory: Path,
    run_id: str,
    ends: tuple[HostEnd, ...],
    reports: tuple[HostReport, ...],
    interrupted: int | None,
    begun_s: float,
) -> int:
    """Find out where it began, write one outcome for all, and say it."""
    outcomes: dict[int, Mapping[str, Any]] = {}
    for end, report in zip(ends, reports, strict=True):
        found = outcome_of_node(directory, end.node)
        if found is not None:
            outcomes[end.node] = without_skew(found, report.clock_ahead_s)
    verdict = decide(directory, ends, outcomes, interrupted)
    ended_s = time.time()
    problem = write_merged(directory, merged(run_id, outcomes, verdict, (begun_s, ended_s)))
    diagnosis = verdict.explanation.diagnosis
    outcome = Outcome(
        run_id=run_id,
        host=verdict.host or socket.gethostname(),
        node=verdict.node or 0,
        state=verdict.state,  # type: ignore[arg-type]
        exit_status=verdict.exit_status,
        started_s=begun_s,
        ended_s=ended_s,
        first_failed_rank=diagnosis.rank if diagnosis is not None else None,
        diagnosis=diagnosis,
        cascade=verdict.explanation.cascade,
        attempts=(),
        notes=verdict.notes,
    )
    tell(
        outcome_text(
            outcome,
            _shown(directory),
            width(sys.stderr),
            styled(sys.stderr),
            unicode=unicode_ok(sys.stderr),
            signal=interrupted,
            unrecorded=problem or ("; ".join(verdict.notes) or None),
        )
    )
    return verdict.exit_status


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
