"""Findings as text, in one form everywhere: what, where, why, fix."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.variable_names import CALLED_AS
from ddplaunch.values.words import count, listed

_PLACES = 2  # most places to name; the rest is counted


def finding_text(finding: Finding, terminal: Terminal, story: Sequence[str] = ()) -> str:
    """Return a finding in its four parts, wrapped to the terminal; commands in backticks are never broken.

    ``story`` are lines below the place.
    """
    label = f"{finding.severity.value}[{finding.code}]: "
    lines = terminal.lines(finding.what, label, "  ", emphasis=finding.severity.value)
    if finding.where:
        lines += terminal.lines(listed(map(called, finding.where), _PLACES), "  --> ")
    lines += story
    if finding.why:
        lines += terminal.lines(finding.why, "  why: ", newlines=True)
    if finding.fix:
        lines += terminal.lines(called(finding.fix), "  fix: ", newlines=True)
    return terminal.page(lines)


def called(text: str) -> str:
    """Return ``text`` with ddplaunch's options named as by the script that started ddplaunch in its place.

    The script sets DDPLAUNCH_CALLED_AS: each line is a ddplaunch option and its replacement.
    """
    for line in os.environ.get(CALLED_AS, "").splitlines():
        flag, _, words = line.partition(" ")
        text = re.sub(rf"(^|`){re.escape(flag)}(?=[ `]|$)", rf"\1{words}", text) if words else text
    return text


def findings_text(findings: Iterable[Finding], terminal: Terminal) -> str:
    """Return all findings, separated by empty lines; errors last, because the eye lands there."""
    ordered = sorted(findings, key=lambda finding: finding.severity is Severity.ERROR)
    return "\n".join(finding_text(finding, terminal) for finding in ordered)


def counted(findings: Sequence[Finding]) -> str:
    """Return ``2 errors, 1 warning``, or an empty text if there is no finding."""
    severities = [finding.severity for finding in findings]
    return ", ".join(count(severities.count(one), one.value) for one in Severity if one in severities)


def refusal_text(findings: Sequence[Finding], terminal: Terminal) -> str:
    """Return the last lines of a refused launch: nothing was launched, and how to override that."""
    refusing = [finding for finding in findings if finding.severity is Severity.ERROR]
    ignore = " ".join(f"--ignore {code}" for code in dict.fromkeys(finding.code for finding in refusing))
    way = f"add `{ignore}`"
    if os.environ.get(CALLED_AS):  # a script that runs ddplaunch has options of its own
        way = f"put `DDPLAUNCH_OPTIONS='{ignore}'` before the command; other options of ddplaunch go there too"
    text = f"{counted(refusing)}. To launch all the same, {way}."
    return terminal.page(terminal.lines(text, "nothing was launched: ", "  ", emphasis="error"))
