"""Several hosts side by side, as people read them and as JSON; refuses to judge which differences matter.

The progress of a roll call: one line that is rewritten on a terminal, few plain ones elsewhere; refuses to wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from ddplaunch.checks.check import Outcome
from ddplaunch.hosts.roll_call.messages import Status
from ddplaunch.launch.hosts_plan import HostReport
from ddplaunch.ui.export import finding_json
from ddplaunch.ui.speech import counted, findings_text
from ddplaunch.ui.table import table
from ddplaunch.ui.terminal import Emphasis, Terminal, cells, speak, visible, wrap
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import count, listed, size_text

SCHEMA = 1
_HEADER = ("host", "Python", "torch", "CPUs", "memory", "/dev/shm", "clock", "GPUs")


def hosts_text(
    reports: Sequence[HostReport],
    missing: Sequence[Finding],
    findings: Sequence[Finding],
    passed: int,
    terminal: Terminal,
    *,
    picture: Sequence[str] = (),
) -> str:
    """Return a row for each host that answered, what is wrong, and the verdict in a line.

    ``findings`` are all, those of ``missing`` hosts too; ``passed`` counts checks over all hosts. ``picture`` are the
    lines of what was measured between them.
    """
    rows = [row(report) for report in reports]
    lines = [*table(_HEADER, rows, terminal, right=frozenset({3})), "", *picture] if rows else []
    if findings:
        lines += findings_text(findings, terminal).split("\n")
    errors = any(each.severity is Severity.ERROR for each in findings)
    emphasis: Emphasis = "error" if errors else "warning" if findings else "good"
    answered = f"{len(reports)} of {count(len(reports) + len(missing), 'host')} answered"
    verdict = f"{counted(findings) or 'healthy'}: {answered}, {count(passed, 'check')} passed"
    lines += [terminal.paint(line, emphasis) for line in wrap(verdict, terminal.width, "", "  ")]
    return terminal.spell("\n".join(lines) + "\n")


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
        "?" if isinstance(facts.memory, Unavailable) else size_text(facts.memory.total_bytes),
        "?" if isinstance(facts.shm, Unavailable) else size_text(facts.shm.size_bytes),
        clock_text(report),
        gpus,
    )


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


_FIRST_S = 0.5  # nodes that are started together need no words
_PLAIN_S = 10.0


def status_text(status: Status, columns: int | None = None) -> str:
    """Return ``3 of 4 nodes joined, waiting for node 2 (gpu-07)``, cut where ``columns`` cells do not suffice."""
    shown = listed(status.missing)
    if not status.missing:
        text = f"{status.expected} of {status.expected} nodes joined"
    elif status.joined is None:
        text = f"waiting for {shown}"
    else:
        text = f"{status.joined} of {status.expected} nodes joined, waiting for {shown}"
    text = visible(f"{text}; {status.note}" if status.note and status.missing else text)
    if columns is not None and cells(text) >= columns:
        return text[: max(0, columns - 4)] + "..."
    return text


class RollCallLine:
    """Shows where a roll call stands on ``stream``; ``clock`` counts seconds."""

    def __init__(self, stream: TextIO | None, terminal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Write nothing yet."""
        self._stream, self._terminal, self._clock = stream, terminal, clock
        self._last_text = ""
        self._last_s: float | None = None

    def show(self, status: Status) -> None:
        """Show ``status``, unless it is too early or, off a terminal, nothing new or too soon after the last line."""
        if self._last_s is None and (status.waited_s < _FIRST_S or not status.missing):
            return
        if self._terminal:
            waited = f" ({status.waited_s:.0f} s)"
            text = f"\r\x1b[K{status_text(status, Terminal.of(self._stream).width - len(waited))}{waited}"
        else:
            text = status_text(status) + "\n"
            soon = self._last_s is not None and self._clock() - self._last_s < _PLAIN_S and status.missing
            if soon:
                return
        if text != self._last_text:
            speak(text, self._stream)
            self._last_text, self._last_s = text, self._clock()

    def end(self) -> None:
        """Leave the line behind, so that what follows starts on one of its own."""
        if self._terminal and self._last_s is not None:
            speak("\n", self._stream)
            self._last_s = None
