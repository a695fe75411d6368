"""Findings as people read them, in one form everywhere: what, where, why, fix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ddplaunch.ui.terminal import Emphasis, Terminal, visible, wrap
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.words import count

_SHOWN = 2  # places named before the rest is counted
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?"  # compiled when first needed: most launches have no finding


def where_text(where: Sequence[str]) -> str:
    """Return the places in a line: all of up to three, else two and the number of the others."""
    if len(where) <= _SHOWN + 1:
        return ", ".join(where)
    return f"{', '.join(where[:_SHOWN])}, and {len(where) - _SHOWN} more{_noun(where)}"


def _noun(where: Sequence[str]) -> str:
    """Return what the places are, as far as their spelling tells: hosts, or "rank 1", "rank 2" → ranks."""
    if len({place.split(" ")[0] for place in where}) == 1 and " " in where[0]:
        return f" {where[0].split(' ')[0]}s"
    return " hosts" if all(re.fullmatch(_HOST, place) for place in where) else ""


def finding_text(finding: Finding, terminal: Terminal) -> str:
    """Return a finding in its four parts, wrapped at ``width`` cells; commands in backticks are never broken."""
    emphasis: Emphasis = "error" if finding.severity is Severity.ERROR else "warning"
    label = f"{finding.severity.value}[{finding.code}]:"
    lines = wrap(visible(finding.what), terminal.width, f"{label} ", "  ")
    lines[0] = terminal.paint(label, emphasis) + terminal.paint(lines[0][len(label) :], "bold")
    if finding.where:
        lines += labelled("  --> ", visible(where_text(finding.where)), terminal)
    lines += labelled("  why: ", finding.why, terminal)
    lines += labelled("  fix: ", finding.fix, terminal)
    return terminal.spell("\n".join(lines)) + "\n"


def labelled(label: str, text: str, terminal: Terminal) -> list[str]:
    """Return the lines of one part of a finding: its dim label, then the text, which keeps its newlines."""
    lines = wrap(visible(text, keep_newlines=True), terminal.width, label, " " * len(label))
    return [terminal.paint(label, "dim") + lines[0][len(label) :], *lines[1:]]


def findings_text(findings: Iterable[Finding], terminal: Terminal) -> str:
    """Return all findings, errors last, because the eye lands there; an empty line between two."""
    ordered = sorted(findings, key=lambda finding: finding.severity is Severity.ERROR)
    return "\n".join(finding_text(finding, terminal) for finding in ordered)


def counted(findings: Sequence[Finding]) -> str:
    """Return ``2 errors, 1 warning``, or an empty text if there is no finding."""
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    warnings = len(findings) - errors
    parts = [count(errors, "error")] if errors else []
    return ", ".join([*parts, count(warnings, "warning")] if warnings else parts)


def refusal_text(findings: Sequence[Finding], terminal: Terminal) -> str:
    """Return the last lines of a refused launch: that nothing was launched, and the way to override."""
    codes = [finding.code for finding in findings if finding.severity is Severity.ERROR]
    ignore = " ".join(f"--ignore {code}" for code in dict.fromkeys(codes))
    lines = wrap(
        f"nothing was launched: {counted(findings)}. To launch all the same, add `{ignore}`.", terminal.width, "", "  "
    )
    head = "nothing was launched"
    return terminal.paint(head, "error") + "\n".join(lines)[len(head) :] + "\n"
