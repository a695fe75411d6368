"""From the flags that name hosts to the hosts' facts and a checked launch for each, for ``run`` and ``doctor``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.checks.all_checks import run_across
from ddplaunch.cli.configuration import hostfile_text, working_directory
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
from ddplaunch.comm.inbound import connected
from ddplaunch.hosts.hostlist import Host, chosen, from_file, from_words
from ddplaunch.hosts.session.answers import Question, digest_of_file
from ddplaunch.hosts.session.collect import Gathered, ask_all, meet
from ddplaunch.hosts.session.links import Link, Links
from ddplaunch.hosts.ssh import alike, command, ssh_missing
from ddplaunch.planning.hosts_plan import HostReport, Meeting, forwarded, part
from ddplaunch.planning.launch import Launch, Target
from ddplaunch.planning.options import Options
from ddplaunch.planning.resolve import Situation, resolve
from ddplaunch.values.finding import Finding, RefusedError, UsageError, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable, value_of

_HOST_TIMEOUT_S = 300.0
JOIN_S = 60.0  # for a host to answer, by default


@dataclass(frozen=True)
class AskedHosts:
    """The flags that name hosts and how to reach them; None or empty where not given."""

    hosts: Sequence[str] = ()
    hostfile: str | None = None
    exclude: Sequence[str] = ()
    chdir: str | None = None
    python: str | None = None
    join_timeout: float | None = None
    #: After a cut, TCP resends what was lost only after as long again, two minutes at most (RFC 6298, section 5.5).
    host_timeout: float | None = None

    @property
    def interpreter(self) -> str:
        """The path of Python on every host."""
        return self.python or sys.executable

    @property
    def patience_s(self) -> float:
        """How long nothing may be heard of a host before it is lost."""
        return self.host_timeout or _HOST_TIMEOUT_S


def asked_for(flags: Mapping[str, Any]) -> AskedHosts | None:
    """Return the flags that name hosts, None where there are none. Raises UsageError if they name no host."""
    typed_flags = [name.replace("_", "-") for name, value in flags.items() if value not in (None, [])]
    if typed_flags and "hosts" not in typed_flags and "hostfile" not in typed_flags:
        raise usage(
            f"`--{typed_flags[0]}` without hosts",
            why="it is for a launch over several hosts",
            fix=f"add `--hosts gpu-a,gpu-b`, or leave `--{typed_flags[0]}` out",
            where=f"flag: --{typed_flags[0]}",
        )
    return AskedHosts(**flags) if typed_flags else None


def hosts_of(asked_hosts: AskedHosts) -> tuple[Host, ...]:
    """Return the hosts that were named and chosen. Raises UsageError for an invalid list."""
    if asked_hosts.hosts and asked_hosts.hostfile is not None:
        raise usage("`--hosts` and `--hostfile` together", why="both name the hosts", fix="give one of them")
    if asked_hosts.hostfile is not None:
        hosts = from_file(hostfile_text(asked_hosts.hostfile), asked_hosts.hostfile)
    else:
        hosts = from_words(",".join(asked_hosts.hosts))
    return chosen(hosts, asked_hosts.exclude)


@dataclass(frozen=True)
class HostPart:
    """One host's part of a launch: its report, its options, and the launch decided from both.

    ``record`` is the run's directory on that host.
    """

    report: HostReport
    link: Link
    options: Options
    launch: Launch
    record: str


@dataclass(frozen=True)
class Planned:
    """The parts in the order of the hosts, and the findings of all checks; errors refuse the launch."""

    parts: tuple[HostPart, ...]
    findings: tuple[Finding, ...]


class LaunchedHosts:
    """The hosts of a launch, reached over ``links``: their facts, their files, and each host's part."""

    def __init__(
        self, links: Links, hosts: Sequence[Host], asked: AskedHosts, options: Options, target: Target | None
    ) -> None:
        """Connect to no host yet. ``hosts`` are those of ``asked``, read only once: `--hostfile` may name a pipe."""
        self._links, self._asked, self._options, self._target = links, asked, options, target
        self._hosts = {host.name: host for host in hosts}
        self._script = script_report(options, target, Path.cwd())

    def facts(self, *, torch: bool = False) -> Gathered:
        """Ask all hosts at once for their facts. Raises UsageError where there is no ssh."""
        target = self._target
        question = Question(
            request=replace(
                probe_request(self._options, {}, import_torch=torch),
                record_paths=(value_of(self._options.run_dir, ""),),
                master_addr=None,
                master_port=None,
            ),
            python=self._asked.interpreter,
            cwd=self._asked.chdir or str(working_directory()),
            script=target.name if target is not None and target.kind == "script" else None,
            sources=self._sources(),
            env=forwarded(os.environ),
            deadline_s=self._asked.join_timeout or JOIN_S,
        )

        def start(name: str) -> Link:
            return self._links.open(name, command(name, self._asked.interpreter, self._asked.patience_s))

        try:
            return self._links.run(ask_all(self._links, list(self._hosts), start, question))
        except FileNotFoundError as exception:
            raise UsageError(ssh_missing()) from exception

    def meeting(self, gathered: Gathered) -> Meeting | tuple[Finding, ...]:
        """Return where the hosts that answered meet, or findings that explain why they cannot."""
        port, address = value_of(self._options.master_port, None), value_of(self._options.master_addr, None)
        meeting = connected if checked(self._options) else meet
        return self._links.run(meeting(gathered.links, port, address))

    def plan(self, gathered: Gathered) -> Planned:
        """Decide each host's part and check it. Raises RefusedError where the hosts cannot meet."""
        options = self._options
        across = run_across(gathered.reports, ignored(options)) if checked(options) else ()
        findings = alike(finding for outcome in across for finding in outcome.findings)
        if errors(findings):
            return Planned((), findings)
        meeting = self.meeting(gathered)
        if not isinstance(meeting, Meeting):
            raise RefusedError(*meeting)
        run_id = run_id_of(options)
        parts = []
        named_findings: list[tuple[str | None, Finding]] = [(None, finding) for finding in findings]
        for node, (link, report) in enumerate(zip(gathered.links, gathered.reports, strict=True)):
            host_options = part(options, node, meeting, run_id)
            if not isinstance(report.facts.network, Unavailable):
                network = replace(report.facts.network, route_to_master=meeting.route(node, report.facts.network))
                report = replace(report, facts=replace(report.facts, network=network))
            situation = self._situation(host_options, report, run_id)
            parts.append(
                HostPart(report, link, host_options, resolve(host_options, self._target, situation), situation.record)
            )
            for outcome in check(host_options, parts[-1].launch, report.facts, self._script):
                named_findings += [(report.name, finding) for finding in outcome.findings]
        return Planned(tuple(parts), once(named_findings, len(parts)))

    def _sources(self) -> tuple[tuple[str, str | None], ...]:
        """Return the script and what it imports from this directory, each with its digest here.

        The digest is None where the hosts use another directory, whose files may differ from those here.
        """
        target, chdir = self._target, self._asked.chdir
        files = {target.name: None} if target is not None and target.kind == "script" else {}
        if checked(self._options) and not isinstance(self._script, Unavailable):
            files |= dict.fromkeys(path for path, _ in self._script.code if not path.startswith(("/", "../")))
        here = chdir is None or Path(chdir) == Path.cwd()
        return tuple((path, digest_of_file(Path(path)) if here else None) for path in files)

    def _situation(self, options: Options, report: HostReport, run_id: str) -> Situation:
        """Return the input for deciding one host's launch. The host decides again, by what it finds then."""
        python = (self._asked.python,) if self._asked.python else interpreter()
        plugin = report.plugin if report.plugin is not None else Unavailable(f"ddplaunch on {report.name} has none")
        environ, cwd = report.facts.environment, Path(report.cwd)
        return situation_of(options, report.facts, self._script, environ, cwd, python, plugin, run_id)


def once(named_findings: Sequence[tuple[str | None, Finding]], hosts: int) -> tuple[Finding, ...]:
    """Return each finding once, its places preceded by the hosts that have it, unless all hosts do.

    ``named_findings`` has each finding's host; None where the finding itself names hosts.
    """
    groups: dict[tuple[Any, ...], tuple[Finding, list[str]]] = {}
    for host, finding in named_findings:
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
