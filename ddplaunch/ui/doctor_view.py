"""The outcomes of checks as people read them and as JSON; refuses to judge which ones matter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ddplaunch.checks.check import Check, Outcome
from ddplaunch.finding import Finding, Severity
from ddplaunch.probes.facts import Facts
from ddplaunch.records.plain import plain
from ddplaunch.ui.export import finding_json
from ddplaunch.ui.speech import count, counted, findings_text
from ddplaunch.ui.style import Emphasis, ascii_only, paint, visible
from ddplaunch.ui.table import section, table
from ddplaunch.ui.wrapping import wrap
from ddplaunch.values import Unavailable

SCHEMA = 1


def found(outcomes: Iterable[Outcome]) -> tuple[Finding, ...]:
    """Return all findings in the order of the checks."""
    return tuple(finding for outcome in outcomes for finding in outcome.findings)


def machine_text(facts: Facts) -> str:
    """Return the machine in a line: host, Python, torch, CPUs, GPUs."""
    parts = []
    if not isinstance(facts.host, Unavailable):
        parts.append(facts.host.name + (f" ({facts.host.container})" if facts.host.container else ""))
    if not isinstance(facts.python, Unavailable):
        parts.append(f"Python {facts.python.version}")
    if not isinstance(facts.torch, Unavailable):
        parts.append(f"torch {facts.torch.version}")
    if not isinstance(facts.cpu, Unavailable):
        parts.append(count(facts.cpu.usable, "usable CPU"))
    gpus = () if isinstance(facts.nvml, Unavailable) else facts.nvml.gpus
    names = [gpu.name for gpu in gpus]
    parts += [f"{number} × {name}" for name, number in {name: names.count(name) for name in names}.items()]
    return ", ".join(parts if gpus else [*parts, "no GPU"])


def doctor_text(
    outcomes: Sequence[Outcome],
    facts: Facts,
    width: int,
    styled: bool,
    *,
    unicode: bool = True,
    picture: Sequence[str] = (),
) -> str:
    """Return a line for the machine, one for each family, skips with reasons, crashes, findings, the verdict.

    ``picture`` are the lines of what was measured between the ranks.
    """
    lines = [
        *wrap(visible(machine_text(facts)), width, "", "  "),
        "",
        *_families(outcomes, width, styled),
        "",
        *picture,
    ]
    lines += section("skipped", _reasons(outcomes, "skipped", width), styled)
    lines += section("crashed (a bug in ddplaunch, not in the machine)", _reasons(outcomes, "crashed", width), styled)
    findings = found(outcomes)
    if findings:
        lines += findings_text(findings, width, styled, unicode).split("\n")
    lines += _verdict_lines(outcomes, width, styled)
    return ascii_only("\n".join(lines) + "\n", unicode)


def _families(outcomes: Sequence[Outcome], width: int, styled: bool) -> list[str]:
    rows = []
    for family in dict.fromkeys(outcome.check.family for outcome in outcomes):
        members = [outcome for outcome in outcomes if outcome.check.family == family]
        passed = sum(outcome.status == "passed" for outcome in members)
        parts = [f"{passed} passed"] if passed else []
        parts += [counted(found(members))] if found(members) else []
        parts += [f"{number} {status}" for status in ("skipped", "crashed") if (number := tally(members, status))]
        rows.append([family, ", ".join(parts)])
    return table(["", ""], rows, width, styled) if rows else []


def tally(outcomes: Iterable[Outcome], status: str) -> int:
    """Return how many outcomes have ``status``."""
    return sum(outcome.status == status for outcome in outcomes)


def _reasons(outcomes: Sequence[Outcome], status: str, width: int) -> list[str]:
    """Group codes by reason: one missing fact explains many skips."""
    lines: list[str] = []
    members = [outcome for outcome in outcomes if outcome.status == status]
    for reason in dict.fromkeys(outcome.reason for outcome in members):
        codes = ", ".join(outcome.check.code for outcome in members if outcome.reason == reason)
        lines += wrap(f"{visible(reason)}: {codes}", width, "  ", "    ")
    return lines


def verdict_text(outcomes: Sequence[Outcome]) -> str:
    """Return ``healthy: 41 checks passed, 6 skipped`` or ``2 errors, 1 warning: 38 checks passed``."""
    passed, skipped, crashed = (tally(outcomes, status) for status in ("passed", "skipped", "crashed"))
    rest = [f"{count(passed, 'check')} passed"]
    rest += [f"{skipped} skipped"] if skipped else []
    rest += [f"{crashed} crashed"] if crashed else []
    head = counted(found(outcomes)) or ("no findings" if crashed else "healthy" if passed else "nothing was checked")
    return f"{head}: {', '.join(rest)}"


def _verdict_lines(outcomes: Sequence[Outcome], width: int, styled: bool) -> list[str]:
    severities = {finding.severity for finding in found(outcomes)}
    emphasis: Emphasis = "good"
    if Severity.ERROR in severities:
        emphasis = "error"
    elif severities or tally(outcomes, "crashed") or not tally(outcomes, "passed"):
        emphasis = "warning"
    return [paint(line, emphasis, styled) for line in wrap(verdict_text(outcomes), width, "", "  ")]


def doctor_json(outcomes: Sequence[Outcome], facts: Facts) -> dict[str, Any]:
    """Return verdict, counts, every check's outcome and the facts as JSON values."""
    statuses = ("passed", "found", "skipped", "crashed")
    return {
        "schema": SCHEMA,
        "verdict": verdict_text(outcomes),
        "counts": {status: tally(outcomes, status) for status in statuses},
        "checks": [
            {
                "code": outcome.check.code,
                "family": outcome.check.family,
                "status": outcome.status,
                "reason": outcome.reason,
                "findings": [finding_json(finding) for finding in outcome.findings],
            }
            for outcome in outcomes
        ],
        "facts": plain(facts),
    }


def list_text(checks: Sequence[Check], width: int, styled: bool) -> str:
    """Return every check's code and title, grouped by family."""
    lines: list[str] = []
    for family in dict.fromkeys(check.family for check in checks):
        rows = [[check.code, check.title] for check in checks if check.family == family]
        lines += section(family, table(["", ""], rows, width, styled), styled)
    lines += wrap(f"{count(len(checks), 'check')}; `ddplaunch explain CODE` says more about one", width, "", "  ")
    return "\n".join(lines) + "\n"


def list_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return every check with its family, title, explanation and the facts that it needs."""
    keys = ("code", "family", "title", "explanation", "needs", "wants")
    return {"schema": SCHEMA, "checks": [{key: plain(getattr(check, key)) for key in keys} for check in checks]}


def explain_text(check: Check, width: int, styled: bool) -> str:
    """Return what one check looks at and why."""
    lines = [f"{paint(check.code, 'bold', styled)} {paint(f'({check.family})', 'dim', styled)}"]
    lines += wrap(check.title, width, "  ", "  ")
    for paragraph in check.explanation.split("\n\n") if check.explanation else ():
        lines += ["", *wrap(" ".join(paragraph.split("\n")), width, "  ", "  ")]
    used = [("needs", check.needs), ("wants", check.wants)]
    said = [line for word, names in used if names for line in wrap(", ".join(names), width, f"  {word}: ", "    ")]
    lines += ["", *said] if said else []
    return "\n".join(lines) + "\n"
