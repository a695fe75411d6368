"""The last words of a run: how it ended, and why it failed."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Sequence
from dataclasses import replace

from ddplaunch.explain.diagnosis import Diagnosis, Evidence
from ddplaunch.records.outcome import RankOutcome, RunOutcome
from ddplaunch.ui.explain_view import calls_text, cut, followed_text, notes_text
from ddplaunch.ui.speech import finding_text, findings_text, headline
from ddplaunch.ui.terminal import Emphasis, Terminal, visible, wrap
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.words import duration_text, listed, ranks_text, signal_name

_FORGOTTEN_S = 120.0  # what was said longer ago is not on the screen any more
_OF_RANK = re.compile(r"/rank-(\d{1,9})\.(?:out|err)")
_FIXES = 2  # the best ones; `ddplaunch explain` shows more
_SCREEN = 23  # lines of a small terminal, without the prompt
_SAID = 60  # characters of a message by which it is found again
_DETERMINISTIC = ": this is deterministic, and starting it again does not help"
_LEAST_STORY, _MOST_LINES, _NOTES = 3, 6, 3
_OF_MISSING = 3  # lines of a rank that did not come, with their head


def outcome_text(
    outcome: RunOutcome,
    record: str | None,
    terminal: Terminal,
    *,
    signal: int | None = None,
    typed_s: float | None = None,
    unrecorded: str | None = None,
    stopped: bool = False,
    told: Sequence[str] = (),
    unshown: str | None = None,
    last_words: RankOutcome | None = None,
) -> str:
    """Return the last words of a run; on failure the diagnosis stands at the end, where the eye is.

    ``record`` is the run's directory as it is shown, ``signal`` what torchrun was told to end with, ``typed_s``
    when the user started it, in seconds since 1970 [when ranks could begin], ``unrecorded`` why something is missing in
    the record, ``stopped`` whether a time-out of ours ended the run, ``told`` the first lines
    of findings that were told while it ran: after a long run they are told again, in short. ``unshown`` says why the
    console did not take all output, ``last_words`` whose last lines are shown because they are in no file.
    """
    head, rest = ("stopped", f" (exit status {outcome.exit_status})") if stopped else _head(outcome, signal)
    killed = _killed(outcome) if stopped or outcome.state == "terminated" else ()
    asked = outcome.state == "terminated" and signal == signals.SIGINT  # the user's own doing
    where = f"record in {record}" if record and unrecorded is None else _unrecorded(record, unrecorded)
    where += f"; not all output was shown: {unshown}" if unshown else ""
    after = duration_text(outcome.ended_s - (outcome.started_s if typed_s is None else typed_s))
    lines = wrap(visible(f"{head}{rest} after {after}, {where}"), terminal.width, "ddplaunch: ", "  ")
    label = f"ddplaunch: {head}"
    if lines[0].startswith(label):
        colour: Emphasis = "good" if outcome.state == "succeeded" else "bold" if asked and not killed else "error"
        lines[0] = terminal.paint(label, colour) + lines[0][len(label) :]
    if killed:
        lines += wrap(_killed_text(killed), terminal.width, "  ", "  ")
    for said in filter(None, (_attempts_text(outcome), _previous_text(outcome))):
        lines += wrap(visible(said), terminal.width, "  ", "  ")
    text = _findings_of(outcome, terminal, told) + terminal.spell("\n".join(lines)) + "\n"
    if asked and outcome.diagnosis is not None and outcome.diagnosis.code == "terminated":
        return text
    if last_words is not None and outcome.diagnosis is not None:  # they are the story
        followed = followed_text(outcome.cascade, terminal)
        finding = as_finding(outcome.diagnosis, record)
        return text + _in_no_file(last_words, terminal) + finding_text(finding, terminal, followed)
    return text + _diagnosis_text(outcome, record, terminal, _SCREEN - len(lines), stopped)


def _diagnosis_text(outcome: RunOutcome, record: str | None, terminal: Terminal, room: int, stopped: bool) -> str:
    """Return the diagnosis with the failed rank's own story, in ``room`` lines if that is possible."""
    found = outcome.diagnosis
    if found is None:
        return ""
    finding, story = as_finding(found, record), followed_text(outcome.cascade, terminal)
    left = room - finding_text(finding, terminal, story).count("\n")
    if left < _LEAST_STORY and len(found.fixes) > 1:
        finding = as_finding(replace(found, fixes=found.fixes[:1]), record)
        left = room - finding_text(finding, terminal, story).count("\n")
    raised = _raised(found, terminal) + notes_text(found, terminal, min(_NOTES, left - _LEAST_STORY))
    if found.calls:
        calls = calls_text(found.calls, terminal, max(_LEAST_STORY, left) - len(raised))
        room = min(_OF_MISSING, left - len(calls) - len(raised))
        silent = all(each.rank != found.rank or each.exception is None for each in outcome.last_ranks)
        missing = found.code == "collective-timeout" and found.rank is not None and room > 1 and silent
        story = calls + raised + (_last_lines(outcome, terminal, room) if missing else []) + story
    elif outcome.state == "failed" and not stopped:
        story = _last_lines(outcome, terminal, min(_MOST_LINES, max(_LEAST_STORY, left))) + story
    return finding_text(finding, terminal, story)


def _raised(found: Diagnosis, terminal: Terminal) -> list[str]:
    """Return the exception in a line, none if the diagnosis begins with it."""
    raised = found.exception
    if raised is None or raised.message[:_SAID] in found.what:
        return []
    return [cut(f"      {visible(raised.type.rpartition('.')[2])}: {visible(raised.message)}", terminal.width)]


def _last_lines(outcome: RunOutcome, terminal: Terminal, most: int) -> list[str]:
    """Return what the failed rank said at the end, in at most ``most`` lines, none if the diagnosis repeats it all."""
    from ddplaunch.explain.decide.progress import telling

    found, ranks = outcome.diagnosis, {each.rank: each for each in outcome.last_ranks}
    rank = found.rank if found is not None and found.rank is not None else outcome.first_failed_rank
    said = [text.strip() for text in telling(ranks[rank].last_lines)] if rank in ranks else []
    if found is None or all(text in found.what for text in said):
        return []
    lines = [cut(f"      {visible(text)}", terminal.width) for text in said[-max(1, most - 1) :]]
    return [f"  rank {rank} said last:", *lines]


def _findings_of(outcome: RunOutcome, terminal: Terminal, told: Sequence[str]) -> str:
    """Return what is to be said of the numbers before the end is."""
    new = [finding for finding in outcome.findings if finding.what not in told]
    lines = []
    if outcome.ended_s - outcome.started_s > _FORGOTTEN_S:
        for finding in outcome.findings:
            if finding.what in told:
                lines += headline(finding.severity.value, finding.code, finding.what, terminal)
    again = terminal.spell("".join(f"{line}\n" for line in lines))
    return again + (findings_text(new, terminal) + "\n" if new else "")


def _in_no_file(rank: RankOutcome, terminal: Terminal) -> str:
    """Return the last lines of a rank, as it printed them."""
    head = terminal.paint(f"  the last lines of rank {rank.rank}, which are in no file:", "dim")
    return "\n".join([head, *(terminal.spell(f"    {visible(line)}") for line in rank.last_lines)]) + "\n"


def _unrecorded(record: str | None, reason: str | None) -> str:
    return f"{f'record in {record}, incomplete' if record else 'no record'}: {reason or 'no run directory'}"


def _head(outcome: RunOutcome, signal: int | None) -> tuple[str, str]:
    if outcome.state == "succeeded":
        return "done", f" in {len(outcome.attempts)} attempts" if len(outcome.attempts) > 1 else ""
    if outcome.state == "terminated":
        name = signal_name(signal) if signal else "a signal"
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


def attempts_text(outcome: RunOutcome | None, width: int) -> str:
    """Return a line for each attempt that failed before the last one; empty where there was none."""
    attempts = () if outcome is None else outcome.attempts
    failed = [each for each in attempts[:-1] if each.failed and each.diagnosis is not None]
    said = (f"attempt {each.attempt + 1} of {len(attempts)} failed: {_told(each.diagnosis)}" for each in failed)
    return "".join("\n".join(wrap(visible(text), width, "", "  ")) + "\n" for text in said)


def _told(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None:
        return "no reason is known"
    on = f" on {diagnosis.host}" if diagnosis.host else ""
    where = "" if diagnosis.rank is None else f", rank {diagnosis.rank}{on}"
    return f"error[{diagnosis.code}] {diagnosis.what}{where}"


def elsewhere_text(attempt: int, attempts: int) -> str:
    """Return the line for an attempt whose ranks torchrun ended though none of this node had failed."""
    return (
        f"ddplaunch: attempt {attempt + 1} of {max(attempts, attempt + 2)} was ended by another node, which failed or "
        "joined; restarting\n"
    )


def node_failed_text(outcome: RunOutcome, node: int, record: str, width: int) -> str:
    """Return the last line of a node that ended because ``node`` failed, whose own words are on the same console."""
    found = outcome.diagnosis
    after = duration_text(outcome.ended_s - outcome.started_s)
    reason = "" if found is None else f": error[{found.code}] {found.what}"
    text = (
        f"failed (exit status {outcome.exit_status}) after {after}, because node {node} did{reason}; record in {record}"
    )
    return line_text(text, width)


def _killed(outcome: RunOutcome) -> tuple[int, ...]:
    """Return the ranks that did not end when they were told to, and had to be killed."""
    last = outcome.attempts[-1].ranks if outcome.attempts else ()
    return tuple(each.rank for each in last if each.signal == "SIGKILL" and each.ended_by == "launcher")


def _killed_text(killed: Sequence[int]) -> str:
    they = "it was" if len(killed) == 1 else "they were"
    return f"had to be killed: {ranks_text(killed)}; a checkpoint that {they} writing may be incomplete"


def _attempts_text(outcome: RunOutcome) -> str:
    """Return in a clause how the attempts before compare with the last; empty if there was none that failed."""
    earlier = [each for each in outcome.attempts[:-1] if each.failed]
    if not earlier or outcome.state != "failed":
        return ""
    reasons = [_reason(each.diagnosis) for each in (*earlier, *outcome.attempts[-1:])]
    if len(set(reasons)) == 1:
        same = all(each.diagnosis is not None and each.diagnosis.is_like(outcome.diagnosis) for each in earlier)
        return f"all {len(reasons)} attempts failed alike{_DETERMINISTIC if same else ''}"
    named = "; ".join(f"attempt {each.attempt + 1}: {_reason(each.diagnosis)}" for each in earlier)
    return f"the attempts did not fail alike: {named}; the last one:"


def _previous_text(outcome: RunOutcome) -> str:
    """Return how the failure compares with the run of the same command before; empty where that says nothing."""
    before = outcome.previous
    if before is None or before.ended == "otherwise" or outcome.state != "failed":
        return ""
    if before.ended == "succeeded":
        code = f", before {listed(before.changed, 2)} changed" if before.changed else " with the same code"
        return f"the same command succeeded as {before.run_id}{code}"
    if before.changed:
        return f"it failed like {before.run_id} before, although {listed(before.changed, 2)} changed since"
    return f"it failed like {before.run_id} before, with the same command and code{_DETERMINISTIC}"


def _reason(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None:
        return "no reason is known"
    exception = diagnosis.exception
    return f"{diagnosis.code} ({exception.type})" if exception is not None else diagnosis.code


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
        named = _OF_RANK.search(first.file)
        other = named is not None and diagnosis.rank is not None and int(named[1]) != diagnosis.rank
        told = f"told by rank {named[1]} in " if named is not None and other else ""
        where.append(f"{told}{f'{record}/' if own else ''}{first.file}:{first.line}")
    fix = "\nor: ".join(diagnosis.fixes[:_FIXES]) or "`ddplaunch explain` shows all that is known"
    return Finding(diagnosis.code, Severity.ERROR, diagnosis.what, diagnosis.why, fix, tuple(where))


def line_text(text: str, width: int) -> str:
    """Return one of ddplaunch's own lines."""
    return "\n".join(wrap(visible(text), width, "ddplaunch: ", "  ")) + "\n"


#: What `outcome_text` begins with, and the finding below it, in a log of any width.
_TOLD = re.compile(
    r"^ddplaunch: (?:failed|killed|stopped)[^\n]*\n(?: [^\n]*\n)*error\[([a-z0-9-]+)\]: ((?:.*\n)(?: .*\n)*)",
    re.MULTILINE,
)
_FINDINGS = re.compile(r"^(?:(?:error|warning)\[[a-z0-9-]+\]: .*\n(?: .*\n|\n)*)+\Z", re.MULTILINE)
_ERROR = re.compile(r"^error\[([a-z0-9-]+)\]: ((?:.*\n)(?: .*\n)*)", re.MULTILINE)
_FINDINGS_CHARS = 1 << 14
_LABEL = re.compile(r"^ +(-->|evidence:|followed by:|why:|fix:|or:) ", re.MULTILINE)


def told_in_log(text: str, log: str) -> Diagnosis | None:
    """Return the diagnosis that a run told at its end in a log, None where none did; ``log`` is its name.

    The log of a pod has the lines of rank 0; the run in it knew those of all ranks.
    """
    told = list(_TOLD.finditer(f"{text}\n"))
    return _as_told(told[-1][1], told[-1][2], log) if told else refused_in_log(text, log)


def refused_in_log(text: str, log: str) -> Diagnosis | None:
    """Return the first error for which a launch in a log was refused, None where none was; ``log`` is its name."""
    before, refused, _ = text.rpartition("\nnothing was launched")
    found = _FINDINGS.search(f"{before[-_FINDINGS_CHARS:]}\n") if refused else None
    first = None if found is None else _ERROR.search(found[0])
    return None if first is None else _as_told(first[1], first[2], log)


def _as_told(code: str, block: str, log: str) -> Diagnosis:
    what, *parts = (" ".join(part.split()) for part in _LABEL.split(block))
    said = list(zip(parts[::2], parts[1::2], strict=True))
    place = next((value for label, value in said if label == "-->"), "")
    rank = re.match(r"rank (\d+)", place)
    fixes = tuple(value for label, value in said if label in ("fix:", "or:"))
    why = next((value for label, value in said if label == "why:"), "")
    more = (
        place if not re.fullmatch(r"(?:rank \d+)?(?: ?on \S+)?", place) else ""
    )  # the rank and host alone show nothing
    evidence = (Evidence(log, 0, more),) if more else ()
    return Diagnosis(code, "observed", what, why, fixes, int(rank[1]) if rank else None, log, evidence)
