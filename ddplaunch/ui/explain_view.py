"""A diagnosis as a finding with the story of the failed rank, and what a diagnosis code stands for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ddplaunch.explain.diagnosis import Diagnosis, Echo, Explanation, UserCall
from ddplaunch.explain.signatures import Signature
from ddplaunch.ui.speech import finding_text
from ddplaunch.ui.terminal import Terminal, cut
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.words import count, ranks_text

_EVIDENCE = 3  # lines of evidence that are shown
_FOLLOWED = 2  # kinds of consequences that are named
_FIXES = 3
_CALLS = 12  # lines of the way to the failure
_NOTES = 6  # lines in which an exception goes on
_SAID = 60  # characters of a message by which it is found again
_INDENT = "      "
_EXAMPLE = 200  # characters of a line that shows a code
_SHORT = "the training still runs, or it was cut off or killed, and then its exit status and the scheduler say how"


def explanation_text(explanation: Explanation, names: str, terminal: Terminal, record: str = "") -> str:
    """Return the whole answer; ``names`` says in a word or two which logs were read, ``record`` where a run's lie."""
    diagnosis = explanation.diagnosis
    if diagnosis is None:
        return _nothing_failed(explanation, names, terminal)
    story = story_lines(diagnosis, terminal, _CALLS, _NOTES)
    for line in diagnosis.evidence[:_EVIDENCE]:
        file = f"{record}/{line.file}" if record and line.line else line.file
        place = f"{file}:{line.line}" if line.line else file
        story += terminal.lines(f"{place}: {line.text}", "  evidence: ")
    if (rival := diagnosis.rival) is not None:
        place = f"{rival.evidence.file}:{rival.evidence.line}"
        story += terminal.lines(f"{rival.code}: {rival.what} ({place})", "  less likely: ")
    story += followed_lines(explanation.cascade, terminal)
    likely = " (likely)" if diagnosis.certainty == "likely" else ""
    finding = as_finding(replace(diagnosis, what=diagnosis.what + likely, evidence=()), None, _FIXES)
    return finding_text(finding, terminal, story)


def _nothing_failed(explanation: Explanation, names: str, terminal: Terminal) -> str:
    text = f"nothing failed in {names}"
    if explanation.stops_at:
        last = cut(explanation.stops_at, min(_EXAMPLE, terminal.width - 5))  # on one line, with its quotes
        text += f"; it stops before the last step, at `{last}`: {_SHORT}"
    lines = terminal.lines(text)
    if (passed_over := explanation.passed_over) is not None:
        lines += terminal.lines(f"{passed_over.file}:{passed_over.line}: {passed_over.text}", "  it went on after: ")
    return terminal.page(lines)


def as_finding(diagnosis: Diagnosis, record: str | None, fixes: int = 2) -> Finding:
    """Return a diagnosis as a finding, whose files lie in the run's directory ``record``, with the best ``fixes``."""
    places = []
    if diagnosis.rank is not None:
        places.append(f"rank {diagnosis.rank}" + (f" on {diagnosis.host}" if diagnosis.host else ""))
    elif diagnosis.host and diagnosis.host not in diagnosis.what:
        places.append(diagnosis.host)
    if diagnosis.evidence and (first := diagnosis.evidence[0]).line:
        place = f"{first.file}:{first.line}"
        of_record = record and not place.startswith(("/", "<"))  # else it is the script's, not the record's
        places.append(f"{record}/{place}" if of_record else place)
    fix = "\nor: ".join(diagnosis.fixes[:fixes]) or "`ddplaunch explain` shows all that is known"
    return Finding(diagnosis.code, Severity.ERROR, diagnosis.what, diagnosis.why, fix, tuple(places))


def story_lines(diagnosis: Diagnosis, terminal: Terminal, calls: int, notes: int, named: bool = True) -> list[str]:
    """Return the way to a failure and how its exception goes on, in at most ``calls`` and ``notes`` lines.

    The exception is between them unless it is ``named`` elsewhere.
    """
    lines, raised = calls_text(diagnosis.calls, terminal, calls), diagnosis.exception
    if raised is None:
        return lines
    if lines and not named and raised.message[:_SAID] not in diagnosis.what:
        lines.append(cut(f"{_INDENT}{raised.type.rpartition('.')[2]}: {raised.message}", terminal.width))
    return lines + [cut(f"{_INDENT}{text}", terminal.width) for text in raised.notes[:notes]]


def calls_text(calls: Sequence[UserCall], terminal: Terminal, most: int) -> list[str]:
    """Return the user's calls that led to a failure, each with its source, in at most ``most`` lines.

    Calls in libraries are one line; of more calls than fit, the last ones are shown. None for one without a source: the
    first line of a finding names the place.
    """
    if len(calls) < 2 and not any(call.source for call in calls):
        return []
    texts = []
    for call in calls:
        texts.append(f"{call.place}  {call.source}".rstrip())
        texts += [f"  … {count(call.folded, 'call')} in {call.library}"] if call.folded else []
    if len(texts) > most:
        texts = ["…", *texts[1 - most :]]
    return [cut(f"{_INDENT}{text}", terminal.width) for text in texts]


def followed_lines(echoes: Sequence[Echo], terminal: Terminal) -> list[str]:
    """Name what the cause set off, ranks that say the same in one entry; nothing if it set off nothing."""
    ranks_by_kind: dict[str, set[int]] = {}
    for echo in echoes:
        ranks_by_kind.setdefault(echo.what, set()).update(() if echo.rank is None else (echo.rank,))
    texts = [f"{ranks_text(sorted(ranks))}: {what}" if ranks else what for what, ranks in ranks_by_kind.items()]
    more = [f"and {count(len(texts) - _FOLLOWED, 'other kind')} of line"] if len(texts) > _FOLLOWED else []
    return terminal.lines("; ".join([*texts[:_FOLLOWED], *more]), "  followed by: ") if texts else []


def code_text(code: str, signatures: Sequence[Signature], terminal: Terminal) -> str:
    """Return what a diagnosis code stands for, from the signatures that name it: each mechanism with its own fixes."""
    lines = [f"{terminal.paint(code, 'bold')} {terminal.paint('(diagnosis of a failed run)', 'dim')}"]
    mechanisms: dict[tuple[str, str], str] = {}  # why and how to mend it → an example
    for signature in signatures:
        if signature.is_root:
            fix = _generally("\nor: ".join(signature.fixes[:_FIXES]))
            mechanisms.setdefault((_generally(signature.why), fix), signature.example.strip()[:_EXAMPLE])
    for (why, fix), example in mechanisms.items():
        lines += [*([""] if len(lines) > 1 else []), *terminal.lines(example, "  shows as: ")]
        lines += [*terminal.lines(why, "  why: "), *terminal.lines(fix, "  fix: ", newlines=True)]
    return terminal.page(lines)


def _generally(text: str) -> str:
    """Return a sentence with what a log would fill in as a word in capitals: ``ls -l PATH``."""
    return re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), text)
