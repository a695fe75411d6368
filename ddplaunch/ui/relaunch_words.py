"""What is said of launching a failed run again, or of not doing so, as one line; decides neither."""

from __future__ import annotations

from ddplaunch.launch.relaunch import Decision, Evidence, Policy, pause_s
from ddplaunch.ui.ages import duration_text
from ddplaunch.ui.style import visible
from ddplaunch.ui.wrapping import wrap


def relaunching_text(decision: Decision, policy: Policy, number: int, width: int, at_least_s: float = 0.0) -> str:
    """Return the line before the pause that a relaunch begins with; the pause takes ``at_least_s`` seconds."""
    return line_text(f"{_begins(policy, number, at_least_s)}, because {because(decision, policy)}", width)


def asking_text(evidence: Evidence, policy: Policy, number: int, width: int) -> str:
    """Return the line where the other nodes have a word in it."""
    seen = _advanced(evidence.advanced) if evidence.advanced is not None else _lived(evidence)
    return line_text(f"{_begins(policy, number, 0.0)}, if the nodes agree; here {seen}", width)


def not_relaunched_text(decision: Decision, policy: Policy, width: int) -> str:
    """Return the line for a run that stays as it ended."""
    return line_text(f"not relaunched: {because(decision, policy)}", width)


def because(decision: Decision, policy: Policy) -> str:
    """Return the reason of a decision as a clause."""
    evidence = decision.evidence
    if decision.reason == "spent":
        return f"`--relaunch {policy.times}` is used up"
    if decision.reason == "advanced":
        return _advanced(evidence.advanced)
    if decision.reason == "lived":
        return _lived(evidence)
    output = f"`--output` {evidence.unseen}" if evidence.unseen else "nothing in `--output` is newer than at its start"
    less = f", less than {duration_text(policy.after_s)} (`--relaunch-after`)" if evidence.lived_s is not None else ""
    return f"{_lived(evidence)}{less}, and {output}"


def _begins(policy: Policy, number: int, at_least_s: float) -> str:
    pause = duration_text(max(pause_s(policy, number), at_least_s))
    return f"relaunching {number} of {policy.times} in {pause}"


def _advanced(path: str | None) -> str:
    return f"`{path}` is newer than at its start"


def _lived(evidence: Evidence) -> str:
    if evidence.lived_s is None:
        return "nobody saw how long its ranks ran"
    return f"its ranks ran for {duration_text(evidence.lived_s)}"


def line_text(text: str, width: int) -> str:
    """Return one of ddplaunch's own lines."""
    return "\n".join(wrap(visible(text), width, "ddplaunch: ", "  ")) + "\n"
