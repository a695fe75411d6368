"""``ddplaunch doctor``: all checks of this machine or of ``--hosts``, and with ``--comm`` collectives between ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ddplaunch.checks.all_checks import ALL, across, run_across
from ddplaunch.checks.check import CheckOutcome
from ddplaunch.cli.child_run import end_run, start_run, told_so_far
from ddplaunch.cli.configuration import with_configuration
from ddplaunch.cli.hosts.plan_hosts import AskedHosts, LaunchedHosts, asked_for, hosts_of, once
from ddplaunch.cli.parsing.command import HOSTS, OUTPUT, Command
from ddplaunch.cli.parsing.typed_words import TypedLaunch, words_of
from ddplaunch.cli.prepare import check, errors, ignored, prepare, probe_request
from ddplaunch.cli.streams import StartReport, answer, answer_json, say
from ddplaunch.cli.target import parse_target
from ddplaunch.comm.checks import CHECKS as MEASURED
from ddplaunch.comm.checks import run_measured
from ddplaunch.comm.results import Comm, comm_results
from ddplaunch.comm.view import comm_json, comm_text
from ddplaunch.hosts.session.links import Links
from ddplaunch.hosts.ssh import alike
from ddplaunch.machine.facts import Facts, TorchImport
from ddplaunch.machine.gather import gather
from ddplaunch.planning.flag import Flag
from ddplaunch.planning.hosts_plan import Meeting
from ddplaunch.planning.options import CHECKING, Options
from ddplaunch.records.directory import new_run_id
from ddplaunch.records.find import read_record
from ddplaunch.ui.doctor_view import doctor_json, doctor_text, hosts_json, hosts_text, list_json, list_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, Finding, error
from ddplaunch.values.resolved import Resolved, Source, Unavailable, value_of

COMMAND = Command(
    examples=(
        ("ddplaunch doctor", "drivers, GPUs, network, limits and files of this machine"),
        ("ddplaunch doctor 2 --device cpu -- train.py", "this launch and its script too"),
    ),
    options=(
        Flag("list_checks", "switch", OUTPUT, "List every check and what it looks at.", spelling="--list"),
        Flag("json", "switch", OUTPUT, "Outcomes, facts and versions as JSON, without secrets: for bug reports too."),
        Flag("comm", "switch", CHECKING, "Run all-reduces: all ranks, those of each host, hosts in pairs (seconds)."),
        Flag("comm_timeout", "duration", CHECKING, "With --comm: time for each group [20; with GPUs 60].", "TIME"),
        *HOSTS,
    ),
)

#: The flags of a launch that set where and how ranks run, without those about training.
_SHARED = """
    gpus device nnodes placement memory node_rank master_addr master_port socket_ifname nccl_debug env torchrun_arg
    ignore checks run_dir
"""
_START_S = 180.0  # for the ranks to import torch and meet, over all hosts
_MOST_GROUPS = 10  # one after the other: all ranks, hosts, rounds of pairs, doubtful pairs again
_SILENT_S = 30.0  # then a host is lost: a test has nothing that would be worth a longer cut
_GRACE_S = 30.0  # torchrun's
_ON_CPU = 2  # ranks on a host, at most, where neither NPROC nor GPUs set the number
_TIMEOUT_S = 60.0  # for each group by default: the longer one of ``examples.comm_test``
_NO_LAUNCH = Unavailable("hosts are checked without a launch; `ddplaunch run --hosts … --dry-run` checks one")


def doctor(
    typed: TypedLaunch,
    list_checks: bool | None,
    json: bool | None,
    comm: bool | None,
    comm_timeout: float | None,
    **hosts: Any,
) -> int:
    """Run every check and show each outcome. ``hosts`` are the flags that name other machines."""
    if list_checks:
        every = (*ALL, *across(), *MEASURED)
        answer_json(list_json(every)) if json else answer(list_text(every, Terminal.of(sys.stdout)))
        return ExitStatus.DONE
    asked_hosts = asked_for(hosts)
    options = with_configuration(typed)
    if asked_hosts is not None:
        hosts["host_timeout"] = hosts["host_timeout"] or _SILENT_S
        named = [word for flag in HOSTS for word in words_of(flag, hosts[flag.name])]
        test = partial(_collectives, typed, options, comm_timeout, hosts=named) if comm else None
        return _doctor_hosts(options, asked_hosts, typed.script, bool(json), test)
    facts, outcomes = _examine(options, typed.script)
    collectives = _collectives(typed, options, comm_timeout, [facts]) if comm else None
    if collectives is not None:
        outcomes += run_measured(collectives, ignored(options))
    document = doctor_json(outcomes, facts) if json else None
    text = partial(doctor_text, outcomes, facts, verbose=value_of(options.verbose, False))
    wrong = any(outcome.status in ("found", "crashed") for outcome in outcomes)
    return _shown(document, text, collectives, wrong=wrong)


def _shown(document: dict[str, Any] | None, text: Callable[..., str], measured: Comm | None, *, wrong: bool) -> int:
    """Print the ``document`` if there is one, else the ``text``, with what was ``measured``; return the status."""
    if document is not None:
        answer_json(document | ({} if measured is None else {"comm": comm_json(measured)}))
    else:
        terminal = Terminal.of(sys.stdout)
        answer(text(terminal, picture=() if measured is None else comm_text(measured, terminal)))
    return ExitStatus.FINDINGS if wrong else ExitStatus.DONE


def _doctor_hosts(
    options: Options,
    asked_hosts: AskedHosts,
    script: list[str] | None,
    json: bool,
    test: Callable[[Sequence[Facts], Sequence[str], int], Comm] | None,
) -> int:
    """Check all hosts and show them side by side; a finding is shown once for all hosts that have it.

    ``test`` tests collectives between the hosts that meet; it gets their facts, the names of the missing hosts, and how
    many ranks a host takes that has no GPUs.
    """
    target = parse_target(script) if script is not None else None
    hosts = hosts_of(asked_hosts)
    if target is None and asked_hosts.chdir is None:
        asked_hosts = replace(asked_hosts, chdir=".")  # without a launch, where ssh begins
    measured = None
    with Links() as links:
        launched = LaunchedHosts(links, hosts, asked_hosts, options, target)
        gathered = launched.facts(torch=True)
        reports = gathered.reports
        of_all = list(run_across(reports, ignored(options))) if reports else []
        outcomes_of_hosts = [check(options, _NO_LAUNCH, report.facts, _NO_LAUNCH) for report in reports]
        meeting = launched.meeting(gathered) if len(reports) > 1 else ()
    if test is not None and reports and (len(reports) == 1 or isinstance(meeting, Meeting)):
        on_cpu = min(_ON_CPU, *(host.slots or _ON_CPU for host in hosts))
        missing = [finding.where[0] for finding in gathered.missing]
        measured = test([report.facts for report in reports], missing, on_cpu)
        of_all += run_measured(measured, ignored(options))
    findings = (*gathered.missing, *(finding for outcome in of_all for finding in outcome.findings))
    named_findings: list[tuple[str | None, Finding]] = [(None, finding) for finding in alike(findings)]
    for report, outcomes in zip(reports, outcomes_of_hosts, strict=True):
        named_findings += [(report.name, finding) for outcome in outcomes for finding in outcome.findings]
    named_findings += [] if isinstance(meeting, Meeting) else [(None, finding) for finding in meeting]
    findings = once(named_findings, len(hosts))
    statuses = [outcome.status for outcomes in (of_all, *outcomes_of_hosts) for outcome in outcomes]
    document = hosts_json(reports, outcomes_of_hosts, of_all, findings) if json else None
    text = partial(hosts_text, reports, gathered.missing, findings, statuses.count("passed"))
    return _shown(document, text, measured, wrong=bool(findings) or "crashed" in statuses)


def _examine(options: Options, words: list[str] | None) -> tuple[Facts, tuple[CheckOutcome, ...]]:
    """Gather all facts, including torch's own, and run every check whose facts are available."""
    if words is not None:
        prepared = prepare(options, parse_target(words), import_torch=True)
        return prepared.facts, prepared.outcomes
    facts = gather(probe_request(options, os.environ, import_torch=True))
    nothing = Unavailable("no launch was named: `ddplaunch doctor 4 -- train.py` checks one")
    return facts, check(options, nothing, facts, nothing)


def _collectives(
    typed: TypedLaunch,
    options: Options,
    timeout_s: float | None,
    facts: Sequence[Facts],
    missing: Sequence[str] = (),
    on_cpu: int = _ON_CPU,
    hosts: Sequence[str] = (),
) -> Comm:
    """Test collectives on this machine, on all nodes of its Slurm job, or on ``hosts``, given as typed.

    ``facts`` are those of the machines that answered, ``missing`` the others; ``timeout_s`` is `--comm-timeout`,
    ``on_cpu`` the ranks on each of them where there are no GPUs and NPROC was not given.
    """
    nproc = typed.nproc
    if device_of(options, facts) == "cpu" and options.nproc is None and "SLURM_JOB_ID" not in os.environ:
        device = Resolved("cpu", Source("detected", "no GPU"))
        nproc, typed = str(on_cpu), replace(typed, said={"device": device, **typed.said})
    say("testing collectives")
    machines = [*hosts, *(f"--exclude={name}" for name in missing)]
    return run_comm_test(comm_words(typed, nproc, machines, timeout_s))


def device_of(options: Options, facts: Sequence[Facts]) -> str:
    """Return ``cuda`` where torch sees a GPU on every host, unless `--device cpu` was given."""
    if value_of(options.device, None) == "cpu":
        return "cpu"
    return "cuda" if all(_gpus(host_facts) for host_facts in facts) else "cpu"


def _gpus(facts: Facts) -> int:
    torch = facts.torch_import
    return torch.device_count if isinstance(torch, TorchImport) and torch.cuda_available and torch.nccl_available else 0


def comm_words(typed: TypedLaunch, nproc: str | None, hosts: Sequence[str], timeout_s: float | None) -> list[str]:
    """Return the words after ``ddplaunch`` that launch the test; ``hosts`` are words that name other machines."""
    words = ["run", *([] if nproc is None else [nproc]), "--run-id", f"comm-{new_run_id()}", "--no-observe"]
    words += replace(typed, said={name: value for name, value in typed.said.items() if name in _SHARED.split()}).words()
    limit = [] if timeout_s is None else ["--timeout", f"{timeout_s:g}"]
    words += ["--timeout", f"{_START_S + _MOST_GROUPS * (timeout_s or _TIMEOUT_S):g}"]
    # with PYTHONSAFEPATH, `python -m` does not import from the working directory
    return [*words, *hosts, "--env", "PYTHONSAFEPATH=1", "--", "-m", "ddplaunch.examples.comm_test", *limit]


def run_comm_test(words: Sequence[str]) -> Comm:
    """Run the test to its end and return what it measured. If this process is killed, the kernel ends the run."""
    with tempfile.TemporaryDirectory(prefix="ddplaunch-", ignore_cleanup_errors=True) as folder:
        report_path = Path(folder) / "told.jsonl"
        with start_run(words, report_path, subprocess.PIPE) as process:
            try:
                output = process.communicate()[0]
            finally:
                report = told_so_far(report_path)
                end_run(process, report.directory, _GRACE_S)
    comm = comm_results(output.decode("utf-8", "replace").splitlines())
    good = process.returncode == 0 and comm.ended
    return comm if good else replace(comm, failure=_failure(report, process.returncode))


def _failure(report: StartReport, status: int) -> Finding:
    """Return why the run failed: the error that refused it, or the diagnosis in its record."""
    refusing = errors(report.findings)
    if report.run_id is None and refusing:
        return refusing[0]
    outcome = report.directory and read_record(report.directory).outcome
    diagnosis = outcome and outcome.diagnosis
    fix = "`ddplaunch run 2 --device cpu -- -m ddplaunch.examples.comm_test` shows what it prints"
    if report.run_id is not None:
        fix = f"`ddplaunch explain {report.run_id}`"
    if diagnosis:
        return error(diagnosis.code, diagnosis.what, why=diagnosis.why, fix=fix)
    return error("", f"its run ended with status {status}", why="a training on these ranks might end alike", fix=fix)
