"""What `ddplaunch doctor` prints: checks of one machine, of several hosts side by side, and a report for a bug."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddplaunch.checks.check import Check, CheckOutcome
from ddplaunch.checks.storage import SLOW_IMPORT_S
from ddplaunch.machine.facts import Facts, TorchFacts, TorchImport
from ddplaunch.planning.hosts_plan import HostReport
from ddplaunch.ui.speech import counted, findings_text
from ddplaunch.ui.table import section, table
from ddplaunch.ui.terminal import Emphasis, Terminal, visible, wrap
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.secrets import hide_json, hide_text
from ddplaunch.values.words import count, duration_text, numbers_text, size_text, tallied

_SCHEMA = 1


def found(outcomes: Iterable[CheckOutcome]) -> tuple[Finding, ...]:
    """Return all findings in the order of the checks."""
    return tuple(finding for outcome in outcomes for finding in outcome.findings)


def _machine_text(facts: Facts) -> str:
    """Return the machine in a line: host, Python, torch, CPUs, GPUs."""
    parts = []
    if not isinstance(facts.host, Unavailable):
        inside = ", ".join(filter(None, (facts.host.container, facts.host.wsl)))
        parts.append(facts.host.name + (f" ({inside})" if inside else ""))
        parts += [facts.host.machine] if facts.host.machine not in ("", "x86_64") else []
        parts += [facts.host.libc] if facts.host.libc == "musl" else []
    if not isinstance(facts.python, Unavailable):
        parts.append(f"Python {facts.python.version}")
    if not isinstance(facts.torch, Unavailable):
        parts.append(f"torch {facts.torch.version}{_about_torch(facts.torch, facts.torch_import)}")
    if not isinstance(facts.cpu, Unavailable):
        parts.append(count(facts.cpu.usable, "usable CPU"))
    if not isinstance(facts.cpu_layout, Unavailable) and len(facts.cpu_layout.nodes) > 1:
        parts.append(count(len(facts.cpu_layout.nodes), "NUMA node"))
    gpus = () if isinstance(facts.nvml, Unavailable) else facts.nvml.gpus
    return ", ".join([*parts, tallied(gpu.name for gpu in gpus) or "no GPU"])


def _about_torch(torch: TorchFacts, imported: TorchImport | Unavailable) -> str:
    """Return what its version does not tell: a build for ROCm, and how long it took to import if that was long."""
    about = [f"ROCm {torch.hip}"] if torch.hip and "rocm" not in torch.version else []
    if isinstance(imported, TorchImport) and imported.idle_s >= SLOW_IMPORT_S:
        compiled = ", compiling it" if imported.bytecode == "written" else ""
        about.append(f"imported in {duration_text(imported.idle_s)}{compiled}")
    return f" ({', '.join(about)})" if about else ""


def _wsl_text(facts: Facts) -> str:
    """Return what GPUs do not do in WSL2, as https://docs.nvidia.com/cuda/wsl-user-guide says; "" elsewhere."""
    gpus = not isinstance(facts.nvml, Unavailable) and bool(facts.nvml.gpus)
    if isinstance(facts.host, Unavailable) or facts.host.wsl != "WSL2" or not gpus:
        return ""
    told = "NVML does not answer all questions, such as which processes are on a GPU"
    return f"WSL2: {told}; pinned memory (`pin_memory=True`) is limited"


def _nodes_text(facts: Facts) -> str:
    """Return which CPUs and GPUs each NUMA node has: of a machine with one node nothing."""
    layout = facts.cpu_layout
    if isinstance(layout, Unavailable) or len(layout.nodes) == 1:
        return ""
    gpus = () if isinstance(facts.nvml, Unavailable) else facts.nvml.gpus
    parts = []
    for node in layout.nodes:
        near = [gpu.index for gpu in gpus if layout.gpu_nodes.get(gpu.pci_bus_id) == node.index]
        has = [f"CPUs {numbers_text(sorted(node.cpus))}" if node.cpus else "no usable CPU"]
        has += [f"GPU {numbers_text(near)}"] if near else []
        parts.append(f"NUMA node {node.index}: {', '.join(has)}")
    return "; ".join(parts)


def doctor_text(
    outcomes: Sequence[CheckOutcome],
    facts: Facts,
    terminal: Terminal,
    *,
    picture: Sequence[str] = (),
    verbose: bool = False,
) -> str:
    """Return a line for the machine, one for each family, crashes, findings, the verdict.

    ``picture`` are the lines of what was measured between the ranks. ``verbose`` adds why checks were skipped.
    """
    lines = [
        *wrap(visible(_machine_text(facts)), terminal.width, "", "  "),
        *(wrap(visible(nodes), terminal.width, "", "  ") if (nodes := _nodes_text(facts)) else ()),
        *(wrap(wsl, terminal.width, "", "  ") if (wsl := _wsl_text(facts)) else ()),
        "",
        *_families(outcomes, terminal),
        "",
        *picture,
    ]
    if verbose:
        lines += section("skipped", _reasons(outcomes, "skipped", terminal.width), terminal)
    crashed = _reasons(outcomes, "crashed", terminal.width)
    lines += section("crashed (a bug in ddplaunch, not in the machine)", crashed, terminal)
    tally = _tally(outcomes)
    sound = not tally["crashed"] and tally["passed"] > 0
    more = " (`--verbose` says why)" if tally["skipped"] and not verbose else ""
    lines += _conclusion(found(outcomes), verdict_text(outcomes) + more, terminal, sound)
    return terminal.spell("\n".join(lines) + "\n")


def _conclusion(findings: Sequence[Finding], verdict: str, terminal: Terminal, sound: bool = True) -> list[str]:
    """Return the findings, then the verdict, green only where nothing was found and what was asked is ``sound``."""
    lines = findings_text(findings, terminal).split("\n") if findings else []
    emphasis: Emphasis = "warning" if findings or not sound else "good"
    if any(each.severity is Severity.ERROR for each in findings):
        emphasis = "error"
    return lines + [terminal.paint(line, emphasis) for line in wrap(verdict, terminal.width, "", "  ")]


def _families(outcomes: Sequence[CheckOutcome], terminal: Terminal) -> list[str]:
    rows = []
    for family in dict.fromkeys(outcome.check.family for outcome in outcomes):
        members = [outcome for outcome in outcomes if outcome.check.family == family]
        tally = _tally(members)
        parts = [f"{tally['passed']} passed"] if tally["passed"] else []
        parts += [counted(found(members))] if found(members) else []
        parts += [f"{tally[status]} {status}" for status in ("skipped", "crashed") if tally[status]]
        rows.append([family, ", ".join(parts)])
    return table(["", ""], rows, terminal)


def _tally(outcomes: Iterable[CheckOutcome]) -> Counter[str]:
    """Return how many outcomes have each status."""
    return Counter(outcome.status for outcome in outcomes)


def _reasons(outcomes: Sequence[CheckOutcome], status: str, width: int) -> list[str]:
    """Group codes by reason: one missing fact explains many skips."""
    lines: list[str] = []
    members = [outcome for outcome in outcomes if outcome.status == status]
    for reason in dict.fromkeys(outcome.reason for outcome in members):
        codes = ", ".join(outcome.check.code for outcome in members if outcome.reason == reason)
        lines += wrap(f"{visible(reason)}: {codes}", width, "  ", "    ")
    return lines


def verdict_text(outcomes: Sequence[CheckOutcome]) -> str:
    """Return ``healthy: 41 checks passed, 6 skipped`` or ``2 errors, 1 warning: 38 checks passed``."""
    tally = _tally(outcomes)
    clean = "no findings" if tally["crashed"] else "healthy" if tally["passed"] else "nothing was checked"
    rest = [f"{tally[status]} {status}" for status in ("skipped", "crashed") if tally[status]]
    passed = f"{count(tally['passed'], 'check')} passed"
    return f"{counted(found(outcomes)) or clean}: {', '.join([passed, *rest])}"


def doctor_json(outcomes: Sequence[CheckOutcome], facts: Facts) -> dict[str, Any]:
    """Return verdict, counts, every check's outcome and the facts as JSON values."""
    tally = _tally(outcomes)
    return {
        "schema": _SCHEMA,
        "verdict": verdict_text(outcomes),
        "counts": {status: tally[status] for status in ("passed", "found", "skipped", "crashed")},
        "checks": [_outcome_json(outcome) for outcome in outcomes],
        "facts": plain(facts),
    }


def _outcome_json(outcome: CheckOutcome) -> dict[str, Any]:
    return {
        "code": outcome.check.code,
        "family": outcome.check.family,
        "status": outcome.status,
        "reason": outcome.reason,
        "findings": plain(outcome.findings),
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
    lines = [*table(_HEADER, rows, terminal, right=(3,)), "", *picture] if rows else []
    answered = f"{len(reports)} of {count(len(reports) + len(missing), 'host')} answered"
    verdict = f"{counted(findings) or 'healthy'}: {answered}, {count(passed, 'check')} passed"
    lines += _conclusion(findings, verdict, terminal)
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
    outcomes: Sequence[Sequence[CheckOutcome]],
    across: Sequence[CheckOutcome],
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
        "findings": plain(findings),
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
    return "\n".join(lines) + "\n"


# What concerns a launch; the rest of an environment is nobody's business.
_RELEVANT = re.compile(
    r"(NCCL|TORCH|PYTORCH|CUDA|NVIDIA|GLOO|PET|OMP|MKL|SLURM|DDPLAUNCH|UCX|FI|MASTER)_"
    r"|(RANK|LOCAL_RANK|GROUP_RANK|NODE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|LD_LIBRARY_PATH|PATH|PYTHON\w*|VIRTUAL_ENV)$"
)


def report_text(facts: Facts, outcomes: Sequence[CheckOutcome], versions: Mapping[str, str]) -> str:
    """Return the report: versions, the checks as `doctor` prints them, the facts as JSON."""
    lines = ["### ddplaunch doctor", ""]
    lines += [f"- {name} {version}" for name, version in versions.items()]
    lines += [
        "",
        "```text",
        hide_text(doctor_text(outcomes, facts, Terminal(100), verbose=True)).rstrip("\n"),
        "```",
        "",
    ]
    lines += ["<details><summary>Facts</summary>", "", "```json", _facts(facts), "```", "", "</details>"]
    return "\n".join(lines) + "\n"


def _facts(facts: Facts) -> str:
    shown = plain(facts)
    environment = {name: value for name, value in sorted(facts.environment.items()) if _RELEVANT.match(name)}
    shown["environment"] = environment
    return json.dumps(hide_json(shown), indent=1)
