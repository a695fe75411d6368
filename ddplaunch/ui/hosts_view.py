"""Several hosts side by side, as people read them and as JSON; refuses to judge which differences matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddplaunch.checks.check import Outcome
from ddplaunch.finding import Finding, Severity
from ddplaunch.launch.hosts_plan import HostReport
from ddplaunch.records.plain import plain
from ddplaunch.ui.export import finding_json
from ddplaunch.ui.speech import count, counted, findings_text
from ddplaunch.ui.style import Emphasis, ascii_only, paint
from ddplaunch.ui.table import table
from ddplaunch.ui.wrapping import wrap
from ddplaunch.values import Unavailable

SCHEMA = 1
_HEADER = ("host", "Python", "torch", "CPUs", "memory", "/dev/shm", "clock", "GPUs")
_GIB = 1 << 30


def hosts_text(
    reports: Sequence[HostReport],
    missing: Sequence[Finding],
    findings: Sequence[Finding],
    passed: int,
    width: int,
    styled: bool,
    *,
    unicode: bool = True,
    picture: Sequence[str] = (),
) -> str:
    """Return a row for each host that answered, what is wrong, and the verdict in a line.

    ``findings`` are all, those of ``missing`` hosts too; ``passed`` counts checks over all hosts. ``picture`` are the
    lines of what was measured between them.
    """
    rows = [row(report) for report in reports]
    lines = [*table(_HEADER, rows, width, styled, right=frozenset({3})), "", *picture] if rows else []
    if findings:
        lines += findings_text(findings, width, styled, unicode).split("\n")
    errors = any(each.severity is Severity.ERROR for each in findings)
    emphasis: Emphasis = "error" if errors else "warning" if findings else "good"
    answered = f"{len(reports)} of {count(len(reports) + len(missing), 'host')} answered"
    verdict = f"{counted(findings) or 'healthy'}: {answered}, {count(passed, 'check')} passed"
    lines += [paint(line, emphasis, styled) for line in wrap(verdict, width, "", "  ")]
    return ascii_only("\n".join(lines) + "\n", unicode)


def row(report: HostReport) -> tuple[str, ...]:
    """Return the cells of one host; what is not known is ``?``."""
    facts = report.facts
    torch = "none" if isinstance(facts.torch, Unavailable) else facts.torch.version
    gpus = "none"
    if not isinstance(facts.nvml, Unavailable) and facts.nvml.gpus:
        names = [gpu.name for gpu in facts.nvml.gpus]
        gpus = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
        gpus += f", driver {facts.nvml.driver_version}"
    return (
        report.name,
        "?" if isinstance(facts.python, Unavailable) else facts.python.version,
        torch,
        "?" if isinstance(facts.cpu, Unavailable) else str(facts.cpu.usable),
        "?" if isinstance(facts.memory, Unavailable) else _gib(facts.memory.total_bytes),
        "?" if isinstance(facts.shm, Unavailable) else _gib(facts.shm.size_bytes),
        clock_text(report),
        gpus,
    )


def _gib(size: int) -> str:
    return f"{size / _GIB:.0f} GiB" if size >= 10 * _GIB else f"{size / _GIB:.1f} GiB"


def clock_text(report: HostReport) -> str:
    """Return how far the clock is off, ``ok`` where it is within a second and what could be measured."""
    if abs(report.clock_ahead_s) <= max(1.0, report.clock_unsure_s):
        return "ok"
    return f"{report.clock_ahead_s:+.1f} s"


def hosts_json(
    reports: Sequence[HostReport],
    outcomes: Sequence[Sequence[Outcome]],
    across: Sequence[Outcome],
    findings: Sequence[Finding],
) -> dict[str, Any]:
    """Return facts and outcomes of each host, those of the comparison, and all findings, each once."""
    return {
        "schema": SCHEMA,
        "hosts": [
            {
                "name": report.name,
                "clock_ahead_s": round(report.clock_ahead_s, 3),
                "clock_unsure_s": round(report.clock_unsure_s, 3),
                "checks": [_outcome(outcome) for outcome in own],
                "facts": plain(report.facts),
            }
            for report, own in zip(reports, outcomes, strict=True)
        ],
        "checks": [_outcome(outcome) for outcome in across],
        "findings": [finding_json(finding) for finding in findings],
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "code": outcome.check.code,
        "family": outcome.check.family,
        "status": outcome.status,
        "reason": outcome.reason,
        "findings": [finding_json(finding) for finding in outcome.findings],
    }
