"""The output of `ddplaunch doctor`: checks of one machine, or of several hosts side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ddplaunch.checks.check import Check, CheckOutcome
from ddplaunch.machine.facts import Facts
from ddplaunch.planning.hosts_plan import HostReport
from ddplaunch.ui.speech import counted, findings_text
from ddplaunch.ui.table import panel, section, table
from ddplaunch.ui.terminal import Emphasis, Terminal
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding
from ddplaunch.values.secrets import hide_json
from ddplaunch.values.words import count, size_text, tallied

_SCHEMA = 1


def found(outcomes: Iterable[CheckOutcome]) -> tuple[Finding, ...]:
    """Return all findings in the order of the checks."""
    return tuple(finding for outcome in outcomes for finding in outcome.findings)


def _machine(facts: Facts) -> dict[str, str]:
    """Return a machine's properties by title, empty where unknown: an ``Unavailable`` fact has no such attributes."""
    kind = (getattr(facts.host, name, "") for name in ("container", "wsl", "machine"))
    inside = ", ".join(filter(None, kind)).replace("x86_64", "").strip(", ")
    models = tallied(gpu.name for gpu in getattr(facts.nvml, "gpus", ()))
    return {
        "host": getattr(facts.host, "name", "") + (f" ({inside})" if inside else ""),
        "Python": getattr(facts.python, "version", ""),
        "torch": getattr(facts.torch, "version", "none"),
        "CPUs": str(getattr(facts.cpu, "usable", "")),
        "memory": size_text(getattr(facts.memory, "total_bytes", None)),
        "/dev/shm": size_text(getattr(facts.shm, "size_bytes", None)),
        "GPUs": f"{models}, driver {getattr(facts.nvml, 'driver_version', '')}" if models else "none",
    }


def doctor_text(
    outcomes: Sequence[CheckOutcome],
    facts: Facts,
    terminal: Terminal,
    *,
    picture: Sequence[str] = (),
    verbose: bool = False,
) -> str:
    """Return the page: a line for the machine, crashed checks, findings, the verdict.

    ``picture`` are lines about the measurements between ranks. ``verbose`` adds why checks were skipped.
    """
    machine_texts = (f"{title} {text}" for title, text in _machine(facts).items() if text not in ("", "none"))
    lines = [*terminal.lines(", ".join(machine_texts)), "", *picture]
    if verbose:
        lines += section("skipped", _reasons(outcomes, "skipped", terminal), terminal)
    crashed = _reasons(outcomes, "crashed", terminal)
    lines += section("crashed (a bug in ddplaunch, not in the machine)", crashed, terminal)
    tally = _tally(outcomes)
    more = " (`--verbose` says why)" if tally["skipped"] and not verbose else ""
    sound = not tally["crashed"] and tally["passed"] > 0
    return terminal.page(lines + _conclusion(found(outcomes), verdict_text(outcomes) + more, terminal, sound))


def _conclusion(findings: Sequence[Finding], verdict: str, terminal: Terminal, sound: bool = True) -> list[str]:
    """Return the findings, then the verdict, which is green only without findings and if the checks were ``sound``."""
    lines = findings_text(findings, terminal).split("\n") if findings else []
    emphasis: Emphasis = "bold" if findings or not sound else "good"
    return lines + [terminal.paint(line, emphasis) for line in terminal.lines(verdict)]


def _tally(outcomes: Iterable[CheckOutcome]) -> Counter[str]:
    """Return how many outcomes have each status."""
    return Counter(outcome.status for outcome in outcomes)


def _reasons(outcomes: Sequence[CheckOutcome], status: str, terminal: Terminal) -> list[str]:
    """Return a line for each reason with its codes, because one missing fact explains many skips."""
    codes: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.status == status:
            codes.setdefault(outcome.reason, []).append(outcome.check.code)
    return [
        line
        for reason, names in codes.items()
        for line in terminal.lines(f"{reason}: {', '.join(names)}", "  ", "    ")
    ]


def verdict_text(outcomes: Sequence[CheckOutcome]) -> str:
    """Return ``healthy: 41 checks passed, 6 skipped`` or ``2 errors, 1 warning: 38 checks passed``."""
    tally = _tally(outcomes)
    clean = "no findings" if tally["crashed"] else "healthy" if tally["passed"] else "nothing was checked"
    rest = [f"{tally[status]} {status}" for status in ("skipped", "crashed") if tally[status]]
    passed = f"{count(tally['passed'], 'check')} passed"
    return f"{counted(found(outcomes)) or clean}: {', '.join([passed, *rest])}"


def doctor_json(outcomes: Sequence[CheckOutcome], facts: Facts) -> dict[str, Any]:
    """Return verdict, counts, every check's outcome and the facts as JSON values, without secrets."""
    tally = _tally(outcomes)
    return {
        "schema": _SCHEMA,
        "verdict": verdict_text(outcomes),
        "counts": {status: tally[status] for status in ("passed", "found", "skipped", "crashed")},
        "checks": hide_json([_outcome_json(outcome) for outcome in outcomes]),
        "facts": hide_json(plain(facts)),
    }


def _outcome_json(outcome: CheckOutcome) -> dict[str, Any]:
    return {
        "code": outcome.check.code,
        "family": outcome.check.family,
        "status": outcome.status,
        "reason": outcome.reason,
        "findings": plain(outcome.findings),
    }


def hosts_text(
    reports: Sequence[HostReport],
    missing: Sequence[Finding],
    findings: Sequence[Finding],
    passed: int,
    terminal: Terminal,
    *,
    picture: Sequence[str] = (),
) -> str:
    """Return a row for each host that answered, the findings, and the verdict in a line.

    ``findings`` are all, including those of ``missing`` hosts; ``passed`` counts checks over all hosts. ``picture`` are
    lines about the measurements between hosts.
    """
    rows = []
    for report in reports:
        near = abs(report.clock_ahead_s) <= max(1.0, report.clock_unsure_s)  # to a second, or as far as is known
        clock = "ok" if near else f"{report.clock_ahead_s:+.1f} s"
        rows.append({**_machine(report.facts), "host": report.name, "clock": clock})
    lines = [*table(rows, terminal, ("CPUs",)), "", *picture] if rows else []
    answers = f"{len(reports)} of {count(len(reports) + len(missing), 'host')} answered"
    verdict = f"{counted(findings) or 'healthy'}: {answers}, {count(passed, 'check')} passed"
    return terminal.page(lines + _conclusion(findings, verdict, terminal))


def hosts_json(
    reports: Sequence[HostReport],
    outcomes: Sequence[Sequence[CheckOutcome]],
    across: Sequence[CheckOutcome],
    findings: Sequence[Finding],
) -> dict[str, Any]:
    """Return facts and outcomes of each host, outcomes of the comparison, and each finding once."""
    return {
        "schema": _SCHEMA,
        "hosts": [
            {
                "name": report.name,
                "clock_ahead_s": round(report.clock_ahead_s, 3),
                "clock_unsure_s": round(report.clock_unsure_s, 3),
                "checks": [_outcome_json(outcome) for outcome in outcomes_of_host],
                "facts": plain(report.facts),
            }
            for report, outcomes_of_host in zip(reports, outcomes, strict=True)
        ],
        "checks": [_outcome_json(outcome) for outcome in across],
        "findings": plain(findings),
    }


def list_text(checks: Sequence[Check], terminal: Terminal) -> str:
    """Return every check's code and title, grouped by family."""
    lines: list[str] = []
    for family in dict.fromkeys(check.family for check in checks):
        rows = [(check.code, check.title) for check in checks if check.family == family]
        lines += section(family, panel(rows, terminal), terminal)
    return terminal.page(
        [*lines, *terminal.lines(f"{count(len(checks), 'check')}; `ddplaunch explain CODE` says more")]
    )


def list_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return every check with its family, title, explanation and the facts that it needs."""
    keys = ("code", "family", "title", "explanation", "needs", "wants")
    return {"schema": _SCHEMA, "checks": [{key: plain(getattr(check, key)) for key in keys} for check in checks]}


def explain_text(check: Check, terminal: Terminal) -> str:
    """Return one check's title and explanation."""
    lines = [f"{terminal.paint(check.code, 'bold')} {terminal.paint(f'({check.family})', 'dim')}"]
    for paragraph in (check.title, *check.explanation.split("\n\n")):
        lines += [*terminal.lines(" ".join(paragraph.split()), "  "), ""]
    return terminal.page(lines[:-1] if check.explanation else lines[:2])
