"""The final message of a run: how it ended, and why it failed."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Sequence

from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.records.outcome import RankOutcome, RunOutcome
from ddplaunch.ui.explain_view import as_finding, followed_lines, story_lines
from ddplaunch.ui.speech import finding_text, findings_text
from ddplaunch.ui.terminal import Emphasis, Terminal, cut
from ddplaunch.values.words import duration_text, listed, ranks_text, signal_name

_CALLS, _NOTES = 5, 2  # most lines of the failed rank's story: the message has to fit on a small terminal
_LAST_LINES = 5
_DETERMINISTIC = ": this is deterministic, and starting it again does not help"


def outcome_text(
    outcome: RunOutcome,
    record: str | None,
    terminal: Terminal,
    *,
    signal: int | None = None,
    typed_s: float | None = None,
    unrecorded: str | None = None,
    stopped: bool = False,
    notices: Sequence[str] = (),
) -> str:
    """Return the final message of a run; on failure the diagnosis comes last, where the eye is.

    ``record`` is the run's directory as shown, ``signal`` what ended torchrun, ``typed_s`` when the user started it, in
    seconds since 1970 [when ranks could begin]. ``unrecorded`` explains why the record is incomplete, ``stopped`` is
    whether our own time-out ended the run, ``notices`` are the first lines of findings that were shown while it ran.
    """
    killed = _killed_text(outcome) if stopped or outcome.state == "terminated" else ""
    diagnosis = outcome.diagnosis
    stop = diagnosis.what if diagnosis is not None and diagnosis.is_stop else ""
    head = stop or ("stopped" if stopped else _head(outcome, signal))
    by_user = stop or (outcome.state == "terminated" and signal == signals.SIGINT)
    status = "" if outcome.state == "succeeded" else f"(exit status {outcome.exit_status}) "
    record_text = f"record in {record}" if record else "no record"
    record_text += f"{', incomplete' if record else ''}: {unrecorded}" if unrecorded else ""
    duration = duration_text(outcome.ended_s - (outcome.started_s if typed_s is None else typed_s))
    colour: Emphasis = "good" if outcome.state == "succeeded" else "bold" if by_user and not killed else "error"
    lines = terminal.lines(f"{status}after {duration}, {record_text}", f"ddplaunch: {head} ", "  ", emphasis=colour)
    for text in (killed, _attempts_text(outcome), _previous_text(outcome)):
        lines += terminal.lines(text, "  ") if text else []
    new = [finding for finding in outcome.findings if finding.what not in notices]
    page = (findings_text(new, terminal) + "\n" if new else "") + terminal.page(lines)
    if diagnosis is None or (by_user and diagnosis.code == "terminated"):
        return page
    story = story_lines(diagnosis, terminal, _CALLS, _NOTES, named=False)
    if not (story or stopped) and outcome.state == "failed":
        accused = outcome.first_failed_rank if diagnosis.rank is None else diagnosis.rank
        rank = next((one for one in outcome.last_ranks if one.rank == accused), None)
        story = _last_lines(diagnosis, rank, terminal) if rank is not None else []
    story += followed_lines(outcome.cascade, terminal)
    return page + finding_text(as_finding(diagnosis, record), terminal, story)


def _last_lines(diagnosis: Diagnosis, rank: RankOutcome, terminal: Terminal) -> list[str]:
    """Return the last lines that a rank printed, none if the diagnosis repeats them."""
    from ddplaunch.explain.decide.work import telling

    texts = [text.strip() for text in telling(rank.last_lines)][-_LAST_LINES:]
    lines = [cut(f"      {text}", terminal.width) for text in texts]
    return [] if all(text in diagnosis.what for text in texts) else [f"  rank {rank.rank} printed last:", *lines]


def _head(outcome: RunOutcome, signal: int | None) -> str:
    if outcome.state == "succeeded":
        return f"done in {len(outcome.attempts)} attempts" if len(outcome.attempts) > 1 else "done"
    if outcome.state == "terminated":
        by = signal_name(signal) if signal else "a signal"
        return "interrupted" if signal == signals.SIGINT else f"ended by {by}"
    return "torchrun was killed" if outcome.state == "killed" else "failed"


def attempt_text(attempt: int, attempts: int, diagnosis: Diagnosis | None, terminal: Terminal) -> str:
    """Return the line for an attempt (from 0, of ``attempts``) that failed and is followed by another."""
    number = f"attempt {attempt + 1} of {max(attempts, attempt + 2)}"
    return terminal.note(f"ddplaunch: {number} failed: {_reason(diagnosis)}; restarting")


def attempts_text(outcome: RunOutcome | None, terminal: Terminal) -> str:
    """Return a line for each failed attempt before the last one; empty if there was none."""
    attempts = () if outcome is None else outcome.attempts
    return "".join(
        terminal.note(f"attempt {one.attempt + 1} of {len(attempts)} failed: {_reason(one.diagnosis)}")
        for one in attempts[:-1]
        if one.failed
    )


def elsewhere_text(attempt: int, attempts: int) -> str:
    """Return the line for an attempt that torchrun ended although no rank of this node had failed."""
    number = f"attempt {attempt + 1} of {max(attempts, attempt + 2)}"
    return f"ddplaunch: {number} was ended by another node, which failed or joined; restarting\n"


def node_failed_text(outcome: RunOutcome, node: int, record: str, terminal: Terminal) -> str:
    """Return the last line of a node that ended because ``node`` failed, whose own message is on the same console."""
    duration = duration_text(outcome.ended_s - outcome.started_s)
    head = f"ddplaunch: failed (exit status {outcome.exit_status}) after {duration}, because node {node} did"
    return terminal.note(f"{head}: {_reason(outcome.diagnosis)}; record in {record}")


def _reason(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None:
        return "no reason is known"
    rank = "" if diagnosis.rank is None else f", rank {diagnosis.rank}"
    on = f" on {diagnosis.host}" if rank and diagnosis.host else ""
    return f"error[{diagnosis.code}] {diagnosis.what}{rank}{on}"


def _killed_text(outcome: RunOutcome) -> str:
    """Return which ranks had to be killed because they did not end when asked; empty if all did."""
    last = outcome.attempts[-1].ranks if outcome.attempts else ()
    killed = [rank.rank for rank in last if rank.signal == "SIGKILL" and rank.ended_by == "launcher"]
    return f"had to be killed: {ranks_text(killed)}; a checkpoint being written may be incomplete" if killed else ""


def _attempts_text(outcome: RunOutcome) -> str:
    """Return a clause that compares earlier attempts with the last; empty if none of them failed."""
    earlier = [attempt.diagnosis for attempt in outcome.attempts[:-1] if attempt.failed]
    if not earlier or outcome.state != "failed":
        return ""
    same = all(diagnosis is not None and diagnosis.is_like(outcome.diagnosis) for diagnosis in earlier)
    codes = ["unknown" if diagnosis is None else diagnosis.code for diagnosis in earlier]
    if same or (outcome.diagnosis and {*codes} == {outcome.diagnosis.code}):
        return (
            f"{'both' if len(earlier) == 1 else f'all {len(earlier) + 1}'} attempts failed alike"
            f"{_DETERMINISTIC if same else ''}"
        )
    return f"earlier attempts failed with {listed(codes, 3)}"


def _previous_text(outcome: RunOutcome) -> str:
    """Return how the failure compares with the previous run of the same command; empty where that tells nothing."""
    previous = outcome.previous
    if previous is None or previous.ended == "otherwise" or outcome.state != "failed":
        return ""
    changed = listed(previous.changed, 2)
    if previous.ended == "succeeded":
        since = f"before {changed} changed" if changed else "with the same code"
        return f"the same command succeeded as {previous.run_id}, {since}"
    since = f"although {changed} changed since" if changed else f"with the same command and code{_DETERMINISTIC}"
    return f"it failed like {previous.run_id}, {since}"


#: How `outcome_text` and a refusal appear in a log of any width, with the parts of a finding.
_ENDED = re.compile(r"^ddplaunch: (?:failed|killed|stopped)", re.MULTILINE)
_ERROR = re.compile(r"^error\[([a-z0-9-]+)\]: ((?:.*\n)(?: .*\n)*)", re.MULTILINE)
_LABEL = re.compile(r"^ +(-->|evidence:|followed by:|why:|fix:) ", re.MULTILINE)


def told_in_log(text: str) -> Diagnosis | None:
    """Return the diagnosis from a run's final message in a log, None without one; its host is left open.

    A pod's log contains only the lines of rank 0, but the run inside it knew those of all ranks.
    """
    ends = [match.start() for match in _ENDED.finditer(text)]
    found = _ERROR.search(f"{text}\n", ends[-1]) if ends else None
    return _as_told(found) if found else refused_in_log(text)


def refused_in_log(text: str) -> Diagnosis | None:
    """Return the last error that refused a launch in a log, None without one."""
    refusal = text.rpartition("\nnothing was launched")[0]
    *_, last = (None, *_ERROR.finditer(f"{refusal}\n"))
    return None if last is None else _as_told(last)


def _as_told(error: re.Match[str]) -> Diagnosis:
    what, *parts = (" ".join(part.split()) for part in _LABEL.split(error[2]))
    values = dict(zip(parts[::2], parts[1::2], strict=True))
    rank = re.match(r"rank (\d+)", values.get("-->", ""))
    fixes = tuple(values["fix:"].split(" or: ")) if "fix:" in values else ()
    return Diagnosis(error[1], "observed", what, values.get("why:", ""), fixes, int(rank[1]) if rank else None)
