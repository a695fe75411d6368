"""What `ddplaunch doctor` prints: checks of one machine, of several hosts side by side, and a report for a bug."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddplaunch.checks.check import Check, Outcome
from ddplaunch.launch.hosts_plan import HostReport
from ddplaunch.machine.environ import redact
from ddplaunch.machine.facts import Facts
from ddplaunch.ui.export import finding_json
from ddplaunch.ui.speech import counted, findings_text
from ddplaunch.ui.table import section, table
from ddplaunch.ui.terminal import Emphasis, Terminal, visible, wrap
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import count, size_text, tallied

_SCHEMA = 1


def found(outcomes: Iterable[Outcome]) -> tuple[Finding, ...]:
    """Return all findings in the order of the checks."""
    return tuple(finding for outcome in outcomes for finding in outcome.findings)


def _machine_text(facts: Facts) -> str:
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
    return ", ".join([*parts, tallied(gpu.name for gpu in gpus) or "no GPU"])


def doctor_text(
    outcomes: Sequence[Outcome],
    facts: Facts,
    terminal: Terminal,
    *,
    picture: Sequence[str] = (),
) -> str:
    """Return a line for the machine, one for each family, skips with reasons, crashes, findings, the verdict.

    ``picture`` are the lines of what was measured between the ranks.
    """
    lines = [
        *wrap(visible(_machine_text(facts)), terminal.width, "", "  "),
        "",
        *_families(outcomes, terminal),
        "",
        *picture,
    ]
    lines += section("skipped", _reasons(outcomes, "skipped", terminal.width), terminal)
    lines += section(
        "crashed (a bug in ddplaunch, not in the machine)", _reasons(outcomes, "crashed", terminal.width), terminal
    )
    findings = found(outcomes)
    if findings:
        lines += findings_text(findings, terminal).split("\n")
    lines += _verdict_lines(outcomes, terminal)
    return terminal.spell("\n".join(lines) + "\n")


def _families(outcomes: Sequence[Outcome], terminal: Terminal) -> list[str]:
    rows = []
    for family in dict.fromkeys(outcome.check.family for outcome in outcomes):
        members = [outcome for outcome in outcomes if outcome.check.family == family]
        passed = sum(outcome.status == "passed" for outcome in members)
        parts = [f"{passed} passed"] if passed else []
        parts += [counted(found(members))] if found(members) else []
        parts += [f"{number} {status}" for status in ("skipped", "crashed") if (number := _tally(members, status))]
        rows.append([family, ", ".join(parts)])
    return table(["", ""], rows, terminal) if rows else []


def _tally(outcomes: Iterable[Outcome], status: str) -> int:
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
    passed, skipped, crashed = (_tally(outcomes, status) for status in ("passed", "skipped", "crashed"))
    rest = [f"{count(passed, 'check')} passed"]
    rest += [f"{skipped} skipped"] if skipped else []
    rest += [f"{crashed} crashed"] if crashed else []
    head = counted(found(outcomes)) or ("no findings" if crashed else "healthy" if passed else "nothing was checked")
    return f"{head}: {', '.join(rest)}"


def _verdict_lines(outcomes: Sequence[Outcome], terminal: Terminal) -> list[str]:
    severities = {finding.severity for finding in found(outcomes)}
    emphasis: Emphasis = "good"
    if Severity.ERROR in severities:
        emphasis = "error"
    elif severities or _tally(outcomes, "crashed") or not _tally(outcomes, "passed"):
        emphasis = "warning"
    return [terminal.paint(line, emphasis) for line in wrap(verdict_text(outcomes), terminal.width, "", "  ")]


def doctor_json(outcomes: Sequence[Outcome], facts: Facts) -> dict[str, Any]:
    """Return verdict, counts, every check's outcome and the facts as JSON values."""
    statuses = ("passed", "found", "skipped", "crashed")
    return {
        "schema": _SCHEMA,
        "verdict": verdict_text(outcomes),
        "counts": {status: _tally(outcomes, status) for status in statuses},
        "checks": [_outcome_json(outcome) for outcome in outcomes],
        "facts": plain(facts),
    }


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "code": outcome.check.code,
        "family": outcome.check.family,
        "status": outcome.status,
        "reason": outcome.reason,
        "findings": [finding_json(finding) for finding in outcome.findings],
    }


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
    rows = [_row(report) for report in reports]
    lines = [*table(_HEADER, rows, terminal, right=frozenset({3})), "", *picture] if rows else []
    if findings:
        lines += findings_text(findings, terminal).split("\n")
    errors = any(each.severity is Severity.ERROR for each in findings)
    emphasis: Emphasis = "error" if errors else "warning" if findings else "good"
    answered = f"{len(reports)} of {count(len(reports) + len(missing), 'host')} answered"
    verdict = f"{counted(findings) or 'healthy'}: {answered}, {count(passed, 'check')} passed"
    lines += [terminal.paint(line, emphasis) for line in wrap(verdict, terminal.width, "", "  ")]
    return terminal.spell("\n".join(lines) + "\n")


def _row(report: HostReport) -> tuple[str, ...]:
    """Return the cells of one host; what is not known is ``?``."""
    facts = report.facts
    torch = "none" if isinstance(facts.torch, Unavailable) else facts.torch.version
    gpus = "none"
    if not isinstance(facts.nvml, Unavailable) and facts.nvml.gpus:
        gpus = f"{tallied(gpu.name for gpu in facts.nvml.gpus)}, driver {facts.nvml.driver_version}"
    return (
        report.name,
        "?" if isinstance(facts.python, Unavailable) else facts.python.version,
        torch,
        "?" if isinstance(facts.cpu, Unavailable) else str(facts.cpu.usable),
        "?" if isinstance(facts.memory, Unavailable) else size_text(facts.memory.total_bytes),
        "?" if isinstance(facts.shm, Unavailable) else size_text(facts.shm.size_bytes),
        _clock_text(report),
        gpus,
    )


def _clock_text(report: HostReport) -> str:
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
        "schema": _SCHEMA,
        "hosts": [
            {
                "name": report.name,
                "clock_ahead_s": round(report.clock_ahead_s, 3),
                "clock_unsure_s": round(report.clock_unsure_s, 3),
                "checks": [_outcome_json(outcome) for outcome in own],
                "facts": plain(report.facts),
            }
            for report, own in zip(reports, outcomes, strict=True)
        ],
        "checks": [_outcome_json(outcome) for outcome in across],
        "findings": [finding_json(finding) for finding in findings],
    }


def list_text(checks: Sequence[Check], terminal: Terminal) -> str:
    """Return every check's code and title, grouped by family."""
    lines: list[str] = []
    for family in dict.fromkeys(check.family for check in checks):
        rows = [[check.code, check.title] for check in checks if check.family == family]
        lines += section(family, table(["", ""], rows, terminal), terminal)
    lines += wrap(
        f"{count(len(checks), 'check')}; `ddplaunch explain CODE` says more about one", terminal.width, "", "  "
    )
    return "\n".join(lines) + "\n"


def list_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return every check with its family, title, explanation and the facts that it needs."""
    keys = ("code", "family", "title", "explanation", "needs", "wants")
    return {"schema": _SCHEMA, "checks": [{key: plain(getattr(check, key)) for key in keys} for check in checks]}


def explain_text(check: Check, terminal: Terminal) -> str:
    """Return what one check looks at and why."""
    lines = [f"{terminal.paint(check.code, 'bold')} {terminal.paint(f'({check.family})', 'dim')}"]
    lines += wrap(check.title, terminal.width, "  ", "  ")
    for paragraph in check.explanation.split("\n\n") if check.explanation else ():
        lines += ["", *wrap(" ".join(paragraph.split("\n")), terminal.width, "  ", "  ")]
    used = [("needs", check.needs), ("wants", check.wants)]
    said = [
        line for word, names in used if names for line in wrap(", ".join(names), terminal.width, f"  {word}: ", "    ")
    ]
    lines += ["", *said] if said else []
    return "\n".join(lines) + "\n"


# What concerns a launch; the rest of an environment is nobody's business.
_RELEVANT = re.compile(
    r"(NCCL|TORCH|PYTORCH|CUDA|NVIDIA|GLOO|PET|OMP|MKL|SLURM|DDPLAUNCH|UCX|FI|MASTER)_"
    r"|(RANK|LOCAL_RANK|GROUP_RANK|NODE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|LD_LIBRARY_PATH|PATH|PYTHON\w*|VIRTUAL_ENV)$"
)
# A command line or an address can carry a secret outside of any variable: --api-key x, TOKEN=x, https://user:x@host.
_NAME = r"(?:token|secret|password|passwd|passphrase|credential|(?:api|access|secret|private)[-_]?key)s?"
_SECRET = re.compile(rf"(--?[\w-]*{_NAME}(?:=|\s+)|\b\w*{_NAME}=)(\"[^\"]*\"|'[^']*'|[^\s\"',`]+)", re.IGNORECASE)
_LOGIN = re.compile(r"(\w+://[^\s/:@]*:)[^\s/@]+@")


def scrub(text: str) -> str:
    """Return ``text`` with the values of what looks like a password or a token replaced by ``***``."""
    return _LOGIN.sub(r"\1***@", _SECRET.sub(r"\1***", text))


def report_text(facts: Facts, outcomes: Sequence[Outcome], versions: Mapping[str, str]) -> str:
    """Return the report: versions, the checks as `doctor` prints them, the facts as JSON."""
    lines = ["### ddplaunch doctor", ""]
    lines += [f"- {name} {version}" for name, version in versions.items()]
    lines += ["", "```text", scrub(doctor_text(outcomes, facts, Terminal(100))).rstrip("\n"), "```", ""]
    lines += ["<details><summary>Facts</summary>", "", "```json", _facts(facts), "```", "", "</details>"]
    return "\n".join(lines) + "\n"


def _facts(facts: Facts) -> str:
    shown = plain(facts)
    environment = {name: value for name, value in sorted(facts.environment.items()) if _RELEVANT.match(name)}
    shown["environment"] = {name: redact(name, value) for name, value in environment.items()}
    return json.dumps(_scrubbed(shown), indent=1)


def _scrubbed(value: object) -> object:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {key: _scrubbed(each) for key, each in value.items()}
    return [_scrubbed(each) for each in value] if isinstance(value, list) else value
