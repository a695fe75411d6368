"""Explains a run from its logs and facts, in stages: read, episodes, fate, choose, wording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.explain.decide.choose import RootCause, choose, passed_over
from ddplaunch.explain.decide.fate import FOLLOWED, Case, Failure
from ddplaunch.explain.decide.flight import flight, is_dump, read_dump
from ddplaunch.explain.decide.work import not_a_number, says_something, stops_short
from ddplaunch.explain.diagnosis import (
    NOTHING_KNOWN,
    VAGUE,
    Diagnosis,
    Echo,
    Evidence,
    Explanation,
    LogSource,
    RunFacts,
)
from ddplaunch.explain.episodes import last_episode
from ddplaunch.explain.read.lines import Line, Numbered, numbered_lines, read_lines
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.explain.read.scan import Scanned, scan
from ddplaunch.explain.signatures import filled, say
from ddplaunch.explain.stacks.hang import located
from ddplaunch.explain.wording import worded


def stages(scanned: Scanned, case: Case, cause: RootCause | None) -> Iterator[str]:
    """Yield a line on what was read, on each failure with its fate, and on what was chosen."""
    lines = scanned.lines
    yield (
        f"read: {len(lines)} lines, {len(scanned.tracebacks)} tracebacks, {len(case.scanned.exits)} exits, "
        f"{len(scanned.hits)} lines with a known failure"
    )
    yield f"episodes: the run begins at line {lines[0].number if lines else 0}"
    yield f"fate: the run {'failed' if case.failed else 'is not said to have failed'}; {len(case.echoes)} echoes"
    for failure in case.failures:
        reason = f" ({failure.reason.replace('_', ' ')})" if failure.reason else ""
        yield f"  {_named(failure)}: {failure.fate}{reason}, tier {failure.standing.name.lower()}"
    if cause is None:
        yield "choose: nothing failed"
    elif cause.candidate is not None:
        yield f"choose: {cause.code}, by {_named(cause.candidate)}"
    else:
        how = "by an exit that no line explains" if cause.ended is not None else "by no failure of its own"
        yield f"choose: {cause.code}, {'by the record' if cause.told else how}"


def _named(failure: Failure) -> str:
    who = "" if failure.speaker.rank is None else f" of rank {failure.speaker.rank}"
    return f"{failure.line.file}:{failure.line.number} {failure.code}{who}"


#: Codes of a log that flight recorders say more about.
_COLLECTIVE = VAGUE | {"collective-mismatch", "nccl-watchdog-abort"}


def explain_texts(
    sources: Sequence[LogSource], facts: RunFacts | None = None, why: list[str] | None = None
) -> Explanation:
    """Return the root cause that ``sources`` and ``facts`` support, and what followed from it.

    Of several runs appended to one file, only the last is explained. Each stage appends its decisions to ``why``.
    Raises OSError if a file cannot be read.
    """
    dumps = [source.read for source in sources if isinstance(source.read, Path) and is_dump(source.read)]
    if dumps:
        return _of_dumps(dumps, [source for source in sources if source.read not in dumps])
    scanned = read_logs(sources, facts)
    cause, case = choose(scanned, facts or NOTHING_KNOWN)
    if why is not None:
        why += stages(scanned, case, cause)
    if cause is not None:
        return Explanation(worded(cause), _echoes(cause))
    warnings = tuple(not_a_number(scanned.lines))
    if facts is not None:
        return Explanation(None, warnings=warnings)
    last, error = stops_short(scanned.lines), passed_over(case)
    stops_at = last.text.strip() if last else ""
    return Explanation(None, (), stops_at, error.line.evidence if error else None, warnings)


def _of_dumps(paths: Sequence[Path], logs: Sequence[LogSource]) -> Explanation:
    """Return what flight recorders tell, where the ``logs`` beside them do not name another cause."""
    recorded = flight(dict(map(read_dump, paths)))
    explanation = explain_texts(logs) if logs else Explanation(None)
    found = explanation.diagnosis
    if recorded is None or (found is not None and found.code not in _COLLECTIVE):
        return explanation
    code = "collective-mismatch" if recorded.differs else "collective-timeout"
    base = Diagnosis(code, "observed", *say(f"recorded-{code}", what=recorded.what))
    return replace(explanation, diagnosis=located(base, (), recorded))


def read_logs(sources: Sequence[LogSource], facts: RunFacts | None = None) -> Scanned:
    """Return the contents of a record, or of the last run in one file. Raises OSError if a file cannot be read."""
    lines = list(_lines(numbered_lines(sources)))
    return scan(lines[last_episode(lines, says_something) :] if len(sources) == 1 and facts is None else lines)


def _lines(logs: Iterable[tuple[LogSource, list[Numbered]]]) -> Iterator[Line]:
    first = 0
    for source, numbered in logs:
        for line in read_lines(numbered, source.name, Speaker(source.rank, source.host), first):
            yield line
            first = line.at + 1


def _echoes(cause: RootCause) -> tuple[Echo, ...]:
    """Return the consequences, one entry per kind of line and speaker, in the order of their first lines."""
    entries = [
        (hit.line, hit.line.speaker, filled(hit.signature.what, hit.groups))
        for hit in cause.case.echoes
        if hit.signature.kind != "noise"
    ]
    for loser in cause.losers:
        if loser.code == cause.code or (loser.fate != "fatal" and loser.reason not in FOLLOWED):
            continue  # nothing made it follow: a rank only quoted it, or printed it before its own exception
        entries.append((loser.line, loser.speaker, loser.words))
    groups: dict[tuple[str, int | None, str | None], list[Evidence]] = {}
    for line, speaker, what in sorted(entries, key=lambda entry: entry[0].at):
        groups.setdefault((what, speaker.rank, speaker.host), []).append(line.evidence)
    return tuple(Echo(what, rank, host, lines[0], len(lines)) for (what, rank, host), lines in groups.items())
