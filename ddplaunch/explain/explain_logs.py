"""The way from logs and facts of a run to its explanation: read, scan, decide, word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddplaunch.explain.decide.candidates import NOISE
from ddplaunch.explain.decide.decide import RootCause, decide
from ddplaunch.explain.decide.endings import stops_short
from ddplaunch.explain.diagnosis import Echo, Evidence, Explanation, LogSource, RunFacts
from ddplaunch.explain.read.lines import Line, Speaker, numbered_lines, read_lines
from ddplaunch.explain.read.scan import scan
from ddplaunch.explain.wording import filled, worded

_MOST_ECHOES = 12


def explain_texts(sources: Sequence[LogSource], facts: RunFacts | None = None) -> Explanation:
    """Return the root cause that ``sources`` and ``facts`` support, and what followed from it.

    Raises OSError if a file cannot be read.
    """
    scanned = scan(_lines(sources))
    cause = decide(scanned, facts)
    if cause is not None:
        return Explanation(worded(cause, facts), _echoes(cause))
    last = stops_short(scanned.lines) if facts is None else None
    return Explanation(None, stops_at=last.text.strip() if last is not None else "")


def _lines(sources: Sequence[LogSource]) -> Iterator[Line]:
    first = 0
    for source, numbered in numbered_lines(sources):
        for line in read_lines(numbered, source.name, Speaker(source.rank, source.host), first):
            yield line
            first = line.at + 1


def _echoes(cause: RootCause) -> tuple[Echo, ...]:
    """Return what followed, one entry for each kind of line and speaker, in the order of their first lines."""
    entries = [
        (hit.line, hit.line.speaker, filled(hit.signature.what, hit.groups))
        for hit in cause.echoes
        if hit.signature.code not in NOISE
    ]
    for loser in cause.losers:
        if loser.code == cause.code:
            continue
        what = loser.code
        if loser.signature is not None:
            what = filled(loser.signature.what, loser.groups)
        elif loser.raised is not None:
            what = f"{loser.raised.type}: {loser.raised.message}"[:160]
        entries.append((loser.line, loser.speaker, what))
    groups: dict[tuple[str, int | None, str | None], list[Evidence]] = {}
    for line, speaker, what in sorted(entries, key=lambda entry: entry[0].at):
        evidence = Evidence(line.file, line.number, line.text.strip()[:300])
        groups.setdefault((what, speaker.rank, speaker.host), []).append(evidence)
    kinds = list(groups.items())[:_MOST_ECHOES]
    return tuple(Echo(what, rank, host, found[0], len(found)) for (what, rank, host), found in kinds)
