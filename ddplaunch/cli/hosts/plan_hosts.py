"""From the flags that name hosts to their facts and checked launches, one for each, for ``run`` and ``doctor``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.checks.all_checks import run_across
from ddplaunch.cli.configuration import text_of, working_directory
from ddplaunch.cli.parsing.command import HOSTS
from ddplaunch.cli.parsing.typed_words import spelled
from ddplaunch.cli.prepare import (
    check,
    checked,
    errors,
    ignored,
    interpreter,
    probe_request,
    run_id_of,
    script_report,
    situation_of,
)
from ddplaunch.hosts.hostlist import Host, chosen, from_file, from_words
from ddplaunch.hosts.session.answers import digest_of_file
from ddplaunch.hosts.session.collect import Gathered, Question, ask_all, bootstrapped, meet, sync, tracked, with_sources
from ddplaunch.hosts.session.links import Link, Links
from ddplaunch.hosts.ssh import alike, command, receiver, ssh_missing
from ddplaunch.planning.hosts_plan import HostReport, Meeting, forwarded, part
from ddplaunch.planning.launch import Launch, Target
from ddplaunch.planning.options import Options
from ddplaunch.planning.resolve import resolve
from ddplaunch.script.read import read_script
from ddplaunch.script.script_report import ScriptReport
from ddplaunch.script.source import locate
from ddplaunch.values.finding import Finding, RefusedError, UsageError, usage, warning
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable, value_of

_FACTS_S = 20.0  # how long a host may take to answer
_TORCH_S = 90.0  # and to import torch as well


@dataclass(frozen=True)
class AskedHosts:
    """The flags that say which hosts, and how to reach them; None or empty where not given."""

    hosts: str | None = None
    hostfile: str | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    chdir: str | None = None
    python: str | None = None
    join_timeout: float | None = None
    sync: bool | None = None
    bootstrap: bool | None = None

    @property
    def interpreter(self) -> str:
        """The path of Python on every host."""
        return self.python or sys.executable

    @property
    def directory(self) -> str:
        """The directory on every host."""
        return self.chdir or str(working_directory())

    def words(self) -> list[str]:
        """Return the words of a command line that name the same hosts."""
        words: list[str] = []
        for flag in HOSTS:
            value = getattr(self, flag.name)
            if flag.kind == "switch":
                words += [flag.flag] if value else []
            elif value is not None:
                values = value if flag.kind == "many" else [f"{value:g}" if flag.kind == "duration" else value]
                words += [word for one in values for word in spelled(flag.flag, one)]
        return words


def asked_for(flags: Mapping[str, Any]) -> AskedHosts | None:
    """Return what the flags say, None where there are none. Raises UsageError for flags without any host."""
    given = [name.replace("_", "-") for name, value in flags.items() if value not in (None, [])]
    if given and "hosts" not in given and "hostfile" not in given:
        raise usage(
            f"`--{given[0]}` without hosts",
            why="it is for a launch over several hosts",
            fix=f"add `--hosts gpu-a,gpu-b`, or leave `--{given[0]}` out",
            where=f"flag: --{given[0]}",
        )
    return AskedHosts(**flags) if given else None


def hosts_of(asked: AskedHosts) -> tuple[Host, ...]:
    """Return the hosts that were named and chosen. Raises UsageError for a list that is none."""
    if asked.hosts is not None and asked.hostfile is not None:
        raise usage("`--hosts` and `--hostfile` together", why="both name the hosts", fix="give one of them")
    if asked.hostfile is not None:
        fix = "correct the path, or name the hosts by `--hosts gpu-a,gpu-b`"
        hosts = from_file(text_of(asked.hostfile, "--hostfile", fix), asked.hostfile)
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


@dataclass(frozen=True)
class HostPart:
    """One host's part of a launch: what it reported, the options that it gets, and what was decided from them.

    ``record`` is the run's directory there.
    """

    report: HostReport
    link: Link
    options: Options
    launch: Launch
    record: str


@dataclass(frozen=True)
class Planned:
    """The parts in the order of the hosts, and what all checks found; errors refuse the launch."""

    parts: tuple[HostPart, ...]
    findings: tuple[Finding, ...]


def facts_of(
    links: Links,
    hosts: tuple[Host, ...],
    asked: AskedHosts,
    options: Options,
    target: Target | None,
    torch: bool = False,
) -> Gathered:
    """Ask all hosts at once. Raises RefusedError where there is no ssh."""
    question = Question(
        request=replace(
            probe_request(options, {}, import_torch=torch),
            record_paths=(value_of(options.run_dir, ""),),
            master_addr=None,
            master_port=None,
        ),
        python=asked.interpreter,
        cwd=asked.directory,
        script=target.name if target is not None and target.kind == "script" else None,
        env=forwarded(os.environ),
        deadline_s=asked.join_timeout or (_TORCH_S if torch else _FACTS_S),
    )
    names = [host.name for host in hosts]
    try:
        return ask_all(links, names, _starting(links, names, asked, question.deadline_s), question)
    except FileNotFoundError as exception:
        raise UsageError(ssh_missing()) from exception


def _starting(links: Links, names: Sequence[str], asked: AskedHosts, deadline_s: float) -> Callable[[str], Link]:
    """Return what begins the session with a host, after `--bootstrap` has put ddplaunch there."""
    python, folders = asked.interpreter, dict[str, str]()
    if asked.bootstrap:
        folders |= bootstrapped(links, names, lambda name: links.open(name, receiver(name, python)), deadline_s)

    def start(name: str) -> Link:
        folder = folders.get(name, "")
        return links.open(name, command(name, python, folder=folder), folder)

    return start


def plan(
    links: Links,
    hosts: tuple[Host, ...],
    gathered: Gathered,
    options: Options,
    target: Target,
    asked: AskedHosts,
    without: frozenset[str] = frozenset(),
) -> Planned:
    """Decide every host's part and check it, and compare the hosts. Raises RefusedError where they cannot meet.

    ``without`` are comparisons that `--sync` settles.
    """
    script = script_report(options, target, Path.cwd(), gathered.reports[0].facts)
    findings: tuple[Finding, ...] = ()
    if checked(options):
        gathered, findings = _compared(links, gathered, options, script, asked, without)
    if errors(findings):
        return Planned((), findings)
    meeting = meeting_of(links, gathered, options)
    if not isinstance(meeting, Meeting):
        raise RefusedError(*meeting)
    run_id = run_id_of(options)
    python = (asked.python,) if asked.python else interpreter()
    parts = []
    found: list[tuple[str | None, Finding]] = [(None, finding) for finding in findings]
    for node, (host, link, report) in enumerate(zip(hosts, gathered.links, gathered.reports, strict=True)):
        mine = part(options, node, meeting, run_id, host.devices)
        if not isinstance(report.facts.network, Unavailable):
            network = replace(report.facts.network, route_to_master=meeting.route(node, report.facts.network))
            report = replace(report, facts=replace(report.facts, network=network))
        planned = _part_of(mine, target, report, link, script, python, run_id)
        parts.append(planned)
        for outcome in check(mine, planned.launch, report.facts, script, advice=False):
            found += [(report.name, finding) for finding in outcome.findings]
    return Planned(tuple(parts), once(found, len(hosts)))


def _compared(
    links: Links,
    gathered: Gathered,
    options: Options,
    script: ScriptReport | Unavailable,
    asked: AskedHosts,
    without: frozenset[str],
) -> tuple[Gathered, tuple[Finding, ...]]:
    """Return the reports with the digests of the script's files, and what differs between hosts."""
    here = () if isinstance(script, Unavailable) else own_sources(script)
    uneven = ["hosts-differ-gpu-count"] if options.node_sizes else []
    same = asked.chdir is None or Path(asked.chdir) == Path.cwd()
    gathered = with_sources(links, gathered, [path for path, _ in here], here if same else ())
    across = run_across(gathered.reports, {*ignored(options), *without, *uneven})
    return gathered, tuple(finding for outcome in across for finding in outcome.findings)


def _part_of(
    options: Options,
    target: Target,
    report: HostReport,
    link: Link,
    script: ScriptReport | Unavailable,
    python: tuple[str, ...],
    run_id: str,
) -> HostPart:
    """Decide one host's part from what it reported. It decides again itself, from what it then sees."""
    plugin = report.plugin if report.plugin is not None else Unavailable(f"ddplaunch on {report.name} has none")
    environ = report.facts.environment
    situation = situation_of(options, report.facts, script, environ, Path(report.cwd), python, plugin, run_id)
    return HostPart(report, link, options, resolve(options, target, situation), situation.record)


def own_sources(script: ScriptReport) -> tuple[tuple[str, str], ...]:
    """Return the files of this directory that the script consists of, as it shows, each with a digest."""
    inside = [path for path, _ in script.code if not path.startswith(("/", "../"))]
    return tuple((path, digest) for path in inside if (digest := digest_of_file(Path(path))) is not None)


#: What `--sync` makes alike, and what therefore is not compared before it has: all of it, and after it the commits.
SYNCED_BEFORE = frozenset(
    {
        "host-directory-missing",
        "host-script-missing",
        "hosts-differ-script",
        "hosts-differ-sources",
        "hosts-differ-from-here",
        "hosts-differ-commit",
    }
)
SYNCED_AFTER = frozenset({"hosts-differ-commit"})


def synced(
    links: Links, hosts: tuple[Host, ...], asked: AskedHosts, options: Options, target: Target, dry_run: bool
) -> Mapping[str, Mapping[str, str]]:
    """Copy this directory's tracked files, and what the script imports of it, to every host; return what each got.

    ``dry_run``: only find out. Raises RefusedError where git lists nothing, or a host takes a file not.
    """
    cwd = working_directory()
    read = locate(target.kind, target.name, cwd, ())
    report = read_script(read, cwd, (), target.args) if isinstance(read, Path) else None
    imported = [] if report is None or isinstance(report, Unavailable) else [path for path, _ in own_sources(report)]
    files = tuple(dict.fromkeys([*tracked(cwd), *imported]))
    names, deadline_s = [host.name for host in hosts], asked.join_timeout or _FACTS_S
    start = _starting(links, names, asked, deadline_s)
    return sync(links, names, start, asked.directory, files, asked.interpreter, deadline_s, dry_run)


def meeting_of(links: Links, gathered: Gathered, options: Options) -> Meeting | tuple[Finding, ...]:
    """Return where the hosts that answered meet, or what keeps them from it."""
    return meet(links, gathered.links, value_of(options.master_port, None), value_of(options.master_addr, None))


def answering(hosts: tuple[Host, ...], gathered: Gathered, enough: int) -> tuple[tuple[Host, ...], tuple[Finding, ...]]:
    """Return the hosts that answered, and a warning for each other one. Raises RefusedError for too few."""
    names = {report.name for report in gathered.reports}
    there = tuple(host for host in hosts if host.name in names)
    if len(there) == len(hosts):
        return there, ()
    if len(there) < enough:
        raise RefusedError(*once(by_host(gathered.missing), len(hosts)))
    return there, tuple(
        warning(
            "host-left-out",
            f"{finding.where[0]} is left out of {len(hosts)} hosts: {finding.what}",
            why=f"`--nnodes {enough}:{len(hosts)}` goes on with those that answer, if there are at least {enough}; "
            "numbers are planned for them",
            fix=finding.fix,
            where=finding.where,
        )
        for finding in gathered.missing
    )


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
        finding
        if finding.where and len(named) == hosts
        else replace(finding, where=tuple(dict.fromkeys((*named, *finding.where))))
        for finding, named in groups.values()
    )


def by_host(missing: Sequence[Finding]) -> list[tuple[str | None, Finding]]:
    """Return the findings about hosts that did not answer, each with its host beside it."""
    return [(finding.where[0], replace(finding, where=())) for finding in alike(missing)]
