"""How a run ended as text for the console: one line for success, four for a failure; refuses to find the reason."""

from __future__ import annotations

import signal as signals

from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.finding import Finding, Severity
from ddplaunch.records.outcome import Outcome
from ddplaunch.ui.ages import duration_text
from ddplaunch.ui.speech import finding_text
from ddplaunch.ui.style import ascii_only, paint, visible
from ddplaunch.ui.wrapping import wrap

_FIXES = 2  # the best ones; `ddplaunch explain` shows more


def outcome_text(
    outcome: Outcome,
    record: str | None,
    width: int,
    styled: bool,
    *,
    unicode: bool = True,
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
    lines = wrap(visible(f"{head}{rest} after {after}, {where}"), width, "ddplaunch: ", "  ")
    label = f"ddplaunch: {head}"
    if lines[0].startswith(label):
        lines[0] = paint(label, "good" if outcome.state == "succeeded" else "error", styled) + lines[0][len(label) :]
    text = ascii_only("\n".join(lines), unicode) + "\n"
    attempts = attempts_text(outcome)
    if attempts:
        text += ascii_only("\n".join(wrap(visible(attempts), width, "  ", "  ")), unicode) + "\n"
    if outcome.diagnosis is not None:
        text += finding_text(as_finding(outcome.diagnosis, record), width, styled, unicode)
    return text


def _unrecorded(record: str | None, reason: str | None) -> str:
    return f"{f'record in {record}, incomplete' if record else 'no record'}: {reason or 'no run directory'}"


def _head(outcome: Outcome, signal: int | None) -> tuple[str, str]:
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
    return "\n".join(wrap(visible(text), width, "ddplaunch: ", "  ")) + "\n"


def elsewhere_text(attempt: int, attempts: int) -> str:
    """Return the line for an attempt whose ranks torchrun ended though none of this node had failed."""
    return (
        f"ddplaunch: attempt {attempt + 1} of {max(attempts, attempt + 2)} was ended by another node, which failed or "
        "joined; restarting\n"
    )


def attempts_text(outcome: Outcome) -> str:
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
