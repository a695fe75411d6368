"""``ddplaunch doctor``: all checks of this machine, and of a launch if one is named; changes nothing."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ddplaunch.checks.all_checks import ALL, across, measured, run_measured
from ddplaunch.checks.check import Outcome
from ddplaunch.cli.comm import asked_for, here
from ddplaunch.cli.configuration import with_configuration, working_directory
from ddplaunch.cli.prepare import check, prepare, probe_request
from ddplaunch.cli.say import answer, answer_json, tell
from ddplaunch.cli.target import parse_target
from ddplaunch.errors import ExitStatus, usage
from ddplaunch.launch.options import Options
from ddplaunch.probes.facts import Facts
from ddplaunch.probes.gather import gather
from ddplaunch.ui.comm_view import comm_json, comm_text
from ddplaunch.ui.doctor_view import doctor_json, doctor_text, list_json, list_text
from ddplaunch.ui.report import report_text
from ddplaunch.ui.streams import styled, unicode_ok, width
from ddplaunch.values import Unavailable

_PACKAGES = ("ddplaunch", "torch", "typer", "rich", "psutil", "nvidia-ml-py")


def doctor(
    options: Options,
    script: list[str] | None,
    profile: str | None,
    list_checks: bool | None,
    json: bool | None,
    report: str | None,
    comm: bool | None,
    comm_timeout: str | None,
    **hosts: Any,
) -> int:
    """Run every check and show what became of each. ``hosts`` are the flags that name other machines."""
    if list_checks:
        every = (*ALL, *across(), *measured())
        answer_json(list_json(every)) if json else answer(list_text(every, width(sys.stdout), styled(sys.stdout)))
        return ExitStatus.DONE
    asked = asked_for(bool(comm), comm_timeout)
    if any(value not in (None, []) for value in hosts.values()):
        from ddplaunch.cli import hosts_doctor, hosts_flags

        return hosts_doctor.doctor_hosts(options, hosts_flags.asked_for(hosts), script, profile, bool(json), asked)
    options = with_configuration(options, profile, working_directory())
    facts, outcomes = examine(options, script)
    found = None if asked is None else here(facts, options, asked)
    if found is not None and (found.groups or found.untested):
        outcomes += run_measured(found, {item.value for item in options.ignore})
    if report is not None:
        write_report(Path(report), report_text(facts, outcomes, versions()))
    elif json:
        answer_json(doctor_json(outcomes, facts) | ({} if found is None else {"comm": comm_json(found)}))
    else:
        columns, colours = width(sys.stdout), styled(sys.stdout)
        picture = () if found is None else comm_text(found, columns, colours)
        answer(doctor_text(outcomes, facts, columns, colours, unicode=unicode_ok(sys.stdout), picture=picture))
    wrong = any(outcome.status in ("found", "crashed") for outcome in outcomes)
    return ExitStatus.FINDINGS if wrong else ExitStatus.DONE


def examine(options: Options, words: list[str] | None) -> tuple[Facts, tuple[Outcome, ...]]:
    """Gather everything, torch's own answer included, and run every check that has its facts."""
    if words is not None:
        prepared = prepare(options, parse_target(words), import_torch=True)
        return prepared.facts, prepared.outcomes
    facts = gather(probe_request(options, os.environ, import_torch=True))
    nothing = Unavailable("no launch was named: `ddplaunch doctor 4 -- train.py` checks one")
    return facts, check(options, nothing, facts, Unavailable(nothing.reason))


def write_report(path: Path, text: str) -> None:
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


def versions() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages that matter."""
    found = {"Python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
