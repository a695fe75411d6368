"""``ddplaunch doctor``: all checks of this machine or of ``--hosts``, and with ``--comm`` collectives between ranks."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ddplaunch.checks.all_checks import ALL, across, run_across
from ddplaunch.checks.check import Outcome
from ddplaunch.cli.configuration import variables, with_configuration, working_directory
from ddplaunch.cli.hosts.plan_hosts import AskedHosts, by_host, facts_of, hosts_of, once
from ddplaunch.cli.prepare import check, prepare, probe_request
from ddplaunch.cli.streams import answer, answer_json, tell
from ddplaunch.cli.target import parse_target
from ddplaunch.comm.checks import CHECKS as MEASURED
from ddplaunch.comm.checks import run_measured
from ddplaunch.comm.drive import DEADLINE_S, CommTest, Member
from ddplaunch.comm.groups import Comm
from ddplaunch.comm.view import comm_json, comm_text
from ddplaunch.hosts.session.collect import meet
from ddplaunch.hosts.session.links import Link, Links, allow_many
from ddplaunch.launch.hosts_plan import Meeting
from ddplaunch.launch.options import Options, Said
from ddplaunch.machine.facts import Facts, TorchImport
from ddplaunch.machine.gather import gather
from ddplaunch.records.directory import new_run_id
from ddplaunch.ui.doctor_view import doctor_json, doctor_text, hosts_json, hosts_text, list_json, list_text, report_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import count

_ON_CPU = 2  # ranks of a host alone, where neither NPROC nor GPUs say how many
_LEAST_S = 2.0
_PACKAGES = ("ddplaunch", "torch", "typer", "rich", "psutil", "nvidia-ml-py", "pyyaml")
_NO_LAUNCH = Unavailable("hosts are checked without a launch; `ddplaunch run --hosts … --dry-run` checks one")


@dataclass(frozen=True)
class CommAsked:
    """That `--comm` was given; ``deadline_s`` is None where the backend decides it."""

    deadline_s: float | None = None

    def within(self, device: str) -> float:
        """Return the seconds for each step."""
        return self.deadline_s or DEADLINE_S[device]


def asked_for(comm: bool, deadline_s: float | None) -> CommAsked | None:
    """Return what `--comm` and `--comm-timeout` say. Raises UsageError for a time that is too short, or alone."""
    if deadline_s is None:
        return CommAsked() if comm else None
    if comm and deadline_s >= _LEAST_S:
        return CommAsked(deadline_s)
    raise usage(
        f"`--comm-timeout {deadline_s:g}` is too short" if comm else "`--comm-timeout` without `--comm`",
        why="it is the time in which ranks connect and measure; what takes longer counts as broken",
        fix=f"`--comm --comm-timeout {DEADLINE_S['cpu']:.0f}`, or more for a slow network",
        where="flag: --comm-timeout",
    )


def doctor(
    said: Said,
    script: list[str] | None,
    profile: str | None,
    list_checks: bool | None,
    json: bool | None,
    report: str | None,
    comm: bool | None,
    comm_timeout: float | None,
    **hosts: Any,
) -> int:
    """Run every check and show what became of each. ``hosts`` are the flags that name other machines."""
    if list_checks:
        every = (*ALL, *across(), *MEASURED)
        answer_json(list_json(every)) if json else answer(list_text(every, Terminal.of(sys.stdout)))
        return ExitStatus.DONE
    asked = asked_for(bool(comm), comm_timeout)
    if any(value not in (None, []) for value in hosts.values()):
        from ddplaunch.cli.hosts import plan_hosts

        return _doctor_hosts(said, plan_hosts.asked_for(hosts), script, profile, bool(json), asked)
    options = with_configuration(said, profile, working_directory())
    facts, outcomes = _examine(options, script)
    found = None if asked is None else _here(facts, options, asked)
    if found is not None and (found.groups or found.untested):
        outcomes += run_measured(found, {item.value for item in options.ignore})
    if report is not None:
        _write_report(Path(report), report_text(facts, outcomes, _versions()))
    elif json:
        answer_json(doctor_json(outcomes, facts) | ({} if found is None else {"comm": comm_json(found)}))
    else:
        terminal = Terminal.of(sys.stdout)
        picture = () if found is None else comm_text(found, terminal)
        answer(doctor_text(outcomes, facts, terminal, picture=picture))
    wrong = any(outcome.status in ("found", "crashed") for outcome in outcomes)
    return ExitStatus.FINDINGS if wrong else ExitStatus.DONE


def _doctor_hosts(
    said: Said,
    asked: AskedHosts,
    script: list[str] | None,
    profile: str | None,
    json: bool,
    collectives: CommAsked | None,
) -> int:
    """Check all hosts and show them side by side; findings are said once for all the hosts that they are about.

    ``collectives`` is what `--comm` asked for, None where it was not given.
    """
    options = with_configuration(said, profile, working_directory())
    target = parse_target(script) if script is not None else None
    hosts = hosts_of(asked)
    allow_many(len(hosts))
    if target is None and asked.chdir is None:
        asked = replace(asked, chdir="/")  # without a launch no directory is wanted
    with Links() as links:
        gathered = facts_of(links, hosts, asked, options, target, torch=True)
        reports = gathered.reports
        ignored = {item.value for item in options.ignore}
        across = run_across(reports, ignored) if reports else ()
        own = [check(options, _NO_LAUNCH, report.facts, Unavailable(_NO_LAUNCH.reason)) for report in reports]
        found = by_host(gathered.missing)
        found += [(None, finding) for outcome in across for finding in outcome.findings]
        for report, outcomes in zip(reports, own, strict=True):
            found += [(report.name, each) for outcome in outcomes for each in outcome.findings]
        if len(reports) > 1:
            port = options.master_port.value if options.master_port else None
            meeting = meet(links, gathered.links, port, options.master_addr.value if options.master_addr else None)
            found += [] if isinstance(meeting, Meeting) else [(None, finding) for finding in meeting]
        comm = None
        if collectives is not None and reports:
            facts = [report.facts for report in reports]
            comm = _between(links, gathered.links, facts, options, asked.python or sys.executable, collectives)
            across += run_measured(comm, ignored)
            found += [(None, finding) for outcome in across[-len(MEASURED) :] for finding in outcome.findings]
    findings = once(found, len(hosts))
    if json:
        answer_json(hosts_json(reports, own, across, findings) | ({} if comm is None else {"comm": comm_json(comm)}))
    else:
        passed = _passed(across) + sum(_passed(outcomes) for outcomes in own)
        terminal = Terminal.of(sys.stdout)
        picture = () if comm is None else comm_text(comm, terminal)
        answer(hosts_text(reports, gathered.missing, findings, passed, terminal, picture=picture))
    crashed = any(outcome.status == "crashed" for outcomes in (across, *own) for outcome in outcomes)
    return ExitStatus.FINDINGS if findings or crashed else ExitStatus.DONE


def _passed(outcomes: tuple[Outcome, ...]) -> int:
    return sum(outcome.status == "passed" for outcome in outcomes)


def _examine(options: Options, words: list[str] | None) -> tuple[Facts, tuple[Outcome, ...]]:
    """Gather everything, torch's own answer included, and run every check that has its facts."""
    if words is not None:
        prepared = prepare(options, parse_target(words), import_torch=True)
        return prepared.facts, prepared.outcomes
    facts = gather(probe_request(options, os.environ, import_torch=True))
    nothing = Unavailable("no launch was named: `ddplaunch doctor 4 -- train.py` checks one")
    return facts, check(options, nothing, facts, Unavailable(nothing.reason))


def _write_report(path: Path, text: str) -> None:
    """Write the report to ``path`` (``-`` is stdout). Raises UsageError where it cannot be written."""
    if str(path) == "-":
        answer(text)
        return
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as exception:
        raise usage(
            f"the report cannot be written to `{path}`: {exception.strerror}",
            why="`--report` takes the file to write",
            fix="`ddplaunch doctor --report -` prints it",
            where="flag: --report",
        ) from exception
    tell(f"report written to {path}\n")


def _versions() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages that matter."""
    found = {"Python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _between(
    links: Links, opened: Sequence[Link], facts: Sequence[Facts], options: Options, python: str, asked: CommAsked
) -> Comm:
    """Test all hosts alone and in pairs. ``opened`` are their sessions, ``facts`` theirs, in the same order."""
    device = device_of(options, facts)
    members = [Member(link, python, *counts(options, device, each)) for link, each in zip(opened, facts, strict=True)]
    deadline_s = asked.within(device)
    tell(f"testing collectives on {count(len(members), 'host')}, each step for {deadline_s:.0f} s at most\n")
    return CommTest(links, members, device, f"comm-{new_run_id()}", deadline_s, _environment(options)).run()


def _here(facts: Facts, options: Options, asked: CommAsked) -> Comm:
    """Test the ranks of this machine among themselves."""
    device = device_of(options, [facts])
    with Links() as links:
        link = links.open(socket.gethostname(), [sys.executable, "-m", "ddplaunch.hosts.remote"])
        member = Member(link, sys.executable, *counts(options, device, facts))
        return CommTest(
            links, [member], device, f"comm-{new_run_id()}", asked.within(device), _environment(options)
        ).run()


def _environment(options: Options) -> dict[str, str]:
    """Return what `--env`, `--env-file` and `--socket-ifname` say, which a launch would hand its ranks too."""
    given = {name: value for name, value, _ in variables(options)}
    if options.socket_ifname is not None:
        given["GLOO_SOCKET_IFNAME"] = given["NCCL_SOCKET_IFNAME"] = options.socket_ifname.value
    return given


def device_of(options: Options, facts: Sequence[Facts]) -> str:
    """Return ``cuda`` where torch sees a GPU on every host, unless `--device cpu` says otherwise."""
    if options.device is not None and options.device.value == "cpu":
        return "cpu"
    return "cuda" if all(_gpus(each) for each in facts) else "cpu"


def counts(options: Options, device: str, facts: Facts) -> tuple[int, int]:
    """Return the ranks of a host alone and in a pair: one for each GPU that torch sees, at most NPROC.

    On CPUs NPROC or two alone, and one in a pair: more of them measure processors.
    """
    asked = options.nproc.value if options.nproc else "auto"
    if device == "cuda":
        ranks = _gpus(facts) if asked == "auto" else min(asked, _gpus(facts))
        return ranks, ranks
    return (_ON_CPU if asked == "auto" else asked), 1


def _gpus(facts: Facts) -> int:
    torch = facts.torch_import
    return torch.device_count if isinstance(torch, TorchImport) and torch.cuda_available and torch.nccl_available else 0
