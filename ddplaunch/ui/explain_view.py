"""Shows a diagnosis as a finding with the story of the failed rank, explains a diagnosis code, and shows stacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ddplaunch.explain.diagnosis import Diagnosis, Echo, Evidence, Explanation, UserCall
from ddplaunch.explain.signatures import Signature
from ddplaunch.explain.stacks.parse import RankStack, place_of
from ddplaunch.ui.speech import finding_text, findings_text
from ddplaunch.ui.terminal import Terminal, cut
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.words import count, ranks_text

_EVIDENCE = 3  # most lines of evidence
_FOLLOWED = 2  # most kinds of consequences to name
_FIXES = 3
_CALLS = 12  # most lines of calls that led to the failure
_NOTES = 6  # most lines of an exception's further text
_SAID = 60  # first characters of a message, to recognize it in the diagnosis
_INDENT = "      "
_EXAMPLE = 200  # most characters of an example line
_SHORT = "the training still runs, or it was cut off or killed, and then its exit status and the scheduler say how"


def explanation_text(explanation: Explanation, names: str, terminal: Terminal, record: str = "") -> str:
    """Return the whole answer; ``names`` names the logs that were read, ``record`` is the directory of a run's logs."""
    diagnosis = explanation.diagnosis
    if diagnosis is None or diagnosis.is_stop:
        return _nothing_failed(explanation, names, terminal)
    story = story_lines(diagnosis, terminal, _CALLS, _NOTES)
    for line in diagnosis.evidence[:_EVIDENCE]:
        story += terminal.lines(f"{_place(line, record)}: {line.text}", "  evidence: ")
    story += followed_lines(explanation.cascade, terminal)
    likely = " (likely)" if diagnosis.certainty == "likely" else ""
    finding = as_finding(replace(diagnosis, what=diagnosis.what + likely, evidence=()), None, _FIXES)
    return finding_text(finding, terminal, story)


def _nothing_failed(explanation: Explanation, names: str, terminal: Terminal) -> str:
    text = f"nothing failed in {names}{f': {explanation.diagnosis.what}' if explanation.diagnosis else ''}"
    if explanation.stops_at:
        last = cut(explanation.stops_at, min(_EXAMPLE, terminal.width - 5))  # on one line, with its quotes
        text += f"; it stops before the last step, at `{last}`: {_SHORT}"
    lines = terminal.lines(text)
    if passed_over := explanation.passed_over:
        lines += terminal.lines(f"{passed_over.file}:{passed_over.line}: {passed_over.text}", "  it went on after: ")
    return terminal.page(lines) + findings_text(explanation.warnings, terminal)


def as_finding(diagnosis: Diagnosis, record: str | None, fixes: int = 2) -> Finding:
    """Return a diagnosis as a finding with its best ``fixes``; evidence files are in the run's directory ``record``."""
    places = []
    if diagnosis.rank is not None:
        on = f" on {diagnosis.host}" if diagnosis.host else ""
        places.append(f"rank {diagnosis.rank}{on}")
    elif diagnosis.host and diagnosis.host not in diagnosis.what:
        places.append(diagnosis.host)
    places += [_place(line, record) for line in diagnosis.evidence[:1] if line.line]
    fix = "\nor: ".join(diagnosis.fixes[:fixes])
    return Finding(diagnosis.code, Severity.ERROR, diagnosis.what, diagnosis.why, fix, tuple(places))


def _place(line: Evidence, record: str | None) -> str:
    """Return a line's file and number; a path from the root is a file of the script, others are in ``record``."""
    file = f"{record}/{line.file}" if record and line.line and line.file[:1] not in "/<" else line.file
    return f"{file}:{line.line}" if line.line else file


def story_lines(diagnosis: Diagnosis, terminal: Terminal, calls: int, notes: int, named: bool = True) -> list[str]:
    """Return the calls that led to a failure and its exception's notes, in at most ``calls`` and ``notes`` lines.

    The exception itself comes between them unless it is ``named`` elsewhere.
    """
    lines, raised = calls_text(diagnosis.calls, terminal, calls), diagnosis.exception
    if raised is None:
        return lines
    if lines and not named and raised.message[:_SAID] not in diagnosis.what:
        lines.append(cut(f"{_INDENT}{raised.type.rpartition('.')[2]}: {raised.message}", terminal.width))
    return lines + [cut(f"{_INDENT}{text}", terminal.width) for text in raised.notes[:notes]]


def calls_text(calls: Sequence[UserCall], terminal: Terminal, most: int) -> list[str]:
    """Return the user's calls that led to a failure, each with its line of source, in at most ``most`` lines.

    Successive calls in a library share one line; if there are too many lines, the last ones are shown. Returns no lines
    for a single call without source: the first line of a finding already names its place.
    """
    if len(calls) < 2 and not any(call.source for call in calls):
        return []
    texts = []
    for call in calls:
        texts += [f"{call.place}  {'' if call.around else call.source}".rstrip(), *call.around]
        texts += [f"  … {count(call.folded, 'call')} in {call.library}"] if call.folded else []
    if len(texts) > most:
        texts = ["…", *texts[1 - most :]]
    return [cut(f"{_INDENT}{text}", terminal.width) for text in texts]


def followed_lines(echoes: Sequence[Echo], terminal: Terminal) -> list[str]:
    """Return the consequences of the cause, ranks that report the same in one entry; no lines if there are none."""
    ranks_by_kind: dict[str, set[int]] = {}
    for echo in echoes:
        ranks_by_kind.setdefault(echo.what, set()).update(() if echo.rank is None else (echo.rank,))
    texts = [f"{ranks_text(sorted(ranks))}: {what}" if ranks else what for what, ranks in ranks_by_kind.items()]
    more = [f"and {count(len(texts) - _FOLLOWED, 'other kind')} of line"] if len(texts) > _FOLLOWED else []
    return terminal.lines("; ".join([*texts[:_FOLLOWED], *more]), "  followed by: ") if texts else []


def code_text(code: str, signatures: Sequence[Signature], terminal: Terminal) -> str:
    """Return the meaning of a diagnosis code, from the signatures that have it: each mechanism with its own fixes."""
    lines = [f"{terminal.paint(code, 'bold')} {terminal.paint('(diagnosis of a failed run)', 'dim')}"]
    mechanisms: dict[tuple[str, str], str] = {}  # why and fix → an example
    for signature in signatures:
        if signature.is_root:
            fix = _generally("\nor: ".join(signature.fixes[:_FIXES]))
            mechanisms.setdefault((_generally(signature.why), fix), signature.example.strip()[:_EXAMPLE])
    for (why, fix), example in mechanisms.items():
        lines += [*[""] * (len(lines) > 1), *terminal.lines(example, "  shows as: ")]
        lines += [*terminal.lines(why, "  why: "), *terminal.lines(fix, "  fix: ", newlines=True)]
    return terminal.page(lines)


def _generally(text: str) -> str:
    """Return a sentence with each placeholder for text from a log as a word in capitals: ``ls -l PATH``."""
    return re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), text)


def stack_text(stack: RankStack, who: str = "") -> str:
    """Return all threads of a rank as text, in the order and format of faulthandler."""
    head = f"{who or f'rank {stack.rank}'}, pid {stack.pid}" + (f", by {stack.source}" if stack.source else "")
    lines = [head]
    if stack.kernel:
        lines.append(f"  waits in the kernel: {stack.kernel}" + (f", reading {stack.reads}" if stack.reads else ""))
    if stack.problem:
        lines.append(f"  no stack: {stack.problem}")
    for position, thread in enumerate(stack.threads):
        name = thread.name or ("main" if position == 0 else "another")
        lines.append(f"  thread {name} (most recent call first):")
        lines += [f'    File "{frame.file}", line {frame.line} in {frame.function}' for frame in thread.frames]
    what = "DataLoader worker" if place_of(stack).kind == "loader" else "process"
    workers = (stack_text(worker, f"{what} of rank {stack.rank}") for worker in stack.workers)
    return "\n".join(lines) + "\n" + "".join(workers)
