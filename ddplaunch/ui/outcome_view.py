"""The last words of a run: how it ended, why it failed, and whether it is launched again."""

from __future__ import annotations

import signal as signals

from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.launch.relaunch import RelaunchDecision, RelaunchPolicy, RunProgress, pause_s
from ddplaunch.records.outcome import RunOutcome
from ddplaunch.ui.speech import finding_text
from ddplaunch.ui.terminal import Terminal, visible, wrap
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.words import duration_text

_FIXES = 2  # the best ones; `ddplaunch explain` shows more


def outcome_text(
    outcome: RunOutcome,
    record: str | None,
    terminal: Terminal,
    *,
    signal: int | None = None,
    unrecorded: str | None = None,
    stopped: bool = False,
) -> str:
    """Return the last words of a run; on failure the diagnosis stands at the end, where the eye is.

    ``record`` is the run's directory as it is shown, ``signal`` what torchrun was told to end with, ``unrecorded`` why
    something is missing in the record, ``stopped`` whether a time-out of ours ended the run.
    """
    head, rest = ("stopped", f" (exit status {outcome.exit_status})") if stopped else _head(outcome, signal)
    where = f"record in {record}" if record and unrecorded is None else _unrecorded(record, unrecorded)
    after = duration_text(outcome.ended_s - outcome.started_s)
    lines = wrap(visible(f"{head}{rest} after {after}, {where}"), terminal.width, "ddplaunch: ", "  ")
    label = f"ddplaunch: {head}"
    if lines[0].startswith(label):
        lines[0] = terminal.paint(label, "good" if outcome.state == "succeeded" else "error") + lines[0][len(label) :]
    text = terminal.spell("\n".join(lines)) + "\n"
    attempts = _attempts_text(outcome)
    if attempts:
        text += terminal.spell("\n".join(wrap(visible(attempts), terminal.width, "  ", "  "))) + "\n"
    if outcome.diagnosis is not None:
        text += finding_text(as_finding(outcome.diagnosis, record), terminal)
    return text


def _unrecorded(record: str | None, reason: str | None) -> str:
    return f"{f'record in {record}, incomplete' if record else 'no record'}: {reason or 'no run directory'}"


def _head(outcome: RunOutcome, signal: int | None) -> tuple[str, str]:
    if outcome.state == "succeeded":
        return "done", f" in {len(outcome.attempts)} attempts" if len(outcome.attempts) > 1 else ""
    if outcome.state == "terminated":
        name = signals.Signals(signal).name if signal else "a signal"
        return (
            "interrupted" if signal == signals.SIGINT else f"ended by {name}",
            f" (exit status {outcome.exit_status})",
        )
    if outcome.state == "killed":
        return "torchrun was killed", ""
    return "failed", f" (exit status {outcome.exit_status})"


def attempt_text(attempt: int, attempts: int, diagnosis: Diagnosis | None, width: int) -> str:
    """Return the line for an attempt (from 0, of ``attempts``) that failed and is followed by another one."""
    reason = "no reason is known" if diagnosis is None else f"error[{diagnosis.code}] {diagnosis.what}"
    text = f"attempt {attempt + 1} of {max(attempts, attempt + 2)} failed: {reason}; restarting"
    return line_text(text, width)


def elsewhere_text(attempt: int, attempts: int) -> str:
    """Return the line for an attempt whose ranks torchrun ended though none of this node had failed."""
    return (
        f"ddplaunch: attempt {attempt + 1} of {max(attempts, attempt + 2)} was ended by another node, which failed or "
        "joined; restarting\n"
    )


def _attempts_text(outcome: RunOutcome) -> str:
    """Return in a clause how the attempts before compare with the last; empty if there was none that failed."""
    earlier = [each for each in outcome.attempts[:-1] if each.failed]
    if not earlier or outcome.state != "failed":
        return ""
    reasons = [_reason(each.diagnosis) for each in (*earlier, *outcome.attempts[-1:])]
    if len(set(reasons)) == 1:
        return f"all {len(reasons)} attempts failed alike"
    named = "; ".join(f"attempt {each.attempt + 1}: {_reason(each.diagnosis)}" for each in earlier)
    return f"the attempts did not fail alike: {named}; the last one:"


def _reason(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None:
        return "no reason is known"
    raised = diagnosis.raised
    return f"{diagnosis.code} ({raised.type})" if raised is not None else diagnosis.code


def as_finding(diagnosis: Diagnosis, record: str | None) -> Finding:
    """Return a diagnosis in the shape of everything that a user is told to act on."""
    where = []
    if diagnosis.rank is not None:
        where.append(f"rank {diagnosis.rank}" + (f" on {diagnosis.host}" if diagnosis.host else ""))
    elif diagnosis.host and diagnosis.host not in diagnosis.what:
        where.append(diagnosis.host)
    if diagnosis.evidence and diagnosis.evidence[0].line:
        first = diagnosis.evidence[0]
        own = record and not first.file.startswith(("/", "<"))  # else it is the script's, not the record's
        where.append(f"{f'{record}/' if own else ''}{first.file}:{first.line}")
    fix = "\nor: ".join(diagnosis.fixes[:_FIXES]) or "`ddplaunch explain` shows all that is known"
    return Finding(diagnosis.code, Severity.ERROR, diagnosis.what, diagnosis.why, fix, tuple(where))


def relaunching_text(
    decision: RelaunchDecision, policy: RelaunchPolicy, number: int, width: int, at_least_s: float = 0.0
) -> str:
    """Return the line before the pause that a relaunch begins with; the pause takes ``at_least_s`` seconds."""
    return line_text(f"{_begins(policy, number, at_least_s)}, because {because(decision, policy)}", width)


def asking_text(progress: RunProgress, policy: RelaunchPolicy, number: int, width: int) -> str:
    """Return the line where the other nodes have a word in it."""
    seen = _advanced(progress.advanced) if progress.advanced is not None else _lived(progress)
    return line_text(f"{_begins(policy, number, 0.0)}, if the nodes agree; here {seen}", width)


def not_relaunched_text(decision: RelaunchDecision, policy: RelaunchPolicy, width: int) -> str:
    """Return the line for a run that stays as it ended."""
    return line_text(f"not relaunched: {because(decision, policy)}", width)


def because(decision: RelaunchDecision, policy: RelaunchPolicy) -> str:
    """Return the reason of a decision as a clause."""
    progress = decision.progress
    if decision.reason == "spent":
        return f"`--relaunch {policy.times}` is used up"
    if decision.reason == "advanced":
        return _advanced(progress.advanced)
    if decision.reason == "lived":
        return _lived(progress)
    output = f"`--output` {progress.unseen}" if progress.unseen else "nothing in `--output` is newer than at its start"
    less = f", less than {duration_text(policy.after_s)} (`--relaunch-after`)" if progress.lived_s is not None else ""
    return f"{_lived(progress)}{less}, and {output}"


def _begins(policy: RelaunchPolicy, number: int, at_least_s: float) -> str:
    pause = duration_text(max(pause_s(policy, number), at_least_s))
    return f"relaunching {number} of {policy.times} in {pause}"


def _advanced(path: str | None) -> str:
    return f"`{path}` is newer than at its start"


def _lived(progress: RunProgress) -> str:
    if progress.lived_s is None:
        return "nobody saw how long its ranks ran"
    return f"its ranks ran for {duration_text(progress.lived_s)}"


def line_text(text: str, width: int) -> str:
    """Return one of ddplaunch's own lines."""
    return "\n".join(wrap(visible(text), width, "ddplaunch: ", "  ")) + "\n"
