"""Logs and facts of one run to its explanation: read, scan, decide, word; refuses to print.

What followed from the root cause, one entry for each kind of line; refuses to list every line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddplaunch.explain.decide.candidates import NOISE
from ddplaunch.explain.decide.decide import RootCause, decide
from ddplaunch.explain.diagnosis import Echo, Evidence, Explanation, LogSource, RunFacts
from ddplaunch.explain.read.lines import Line, Speaker, numbered_lines, read_lines
from ddplaunch.explain.read.scan import scan
from ddplaunch.explain.wording import filled, worded

_MOST = 12


def cascade(cause: RootCause) -> tuple[Echo, ...]:
    """Return the kinds of consequences in the order of their first lines."""
    groups: dict[tuple[str, int | None, str | None], list[Evidence]] = {}
    entries = [
        (hit.line.at, filled(hit.signature.what, hit.groups), hit.line.speaker, hit.line)
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
        entries.append((loser.line.at, what, loser.speaker, loser.line))
    for _, what, speaker, line in sorted(entries, key=lambda entry: entry[0]):
        evidence = Evidence(line.file, line.number, line.text.strip()[:300])
        groups.setdefault((what, speaker.rank, speaker.host), []).append(evidence)
    return tuple(
        Echo(what, rank, host, found[0], len(found)) for (what, rank, host), found in list(groups.items())[:_MOST]
    )


def explain_texts(sources: Sequence[LogSource], facts: RunFacts | None = None) -> Explanation:
    """Return the root cause that ``sources`` and ``facts`` support, and what followed from it.

    Raises OSError if a file cannot be read.
    """
    scanned = scan(_lines(sources))
    cause = decide(scanned, facts)
    if cause is None:
        return Explanation(None)
    return Explanation(worded(cause, scanned, facts), cascade(cause))


def _lines(sources: Sequence[LogSource]) -> Iterator[Line]:
    first = 0
    for source, numbered in numbered_lines(sources):
        for line in read_lines(numbered, source.name, Speaker(source.rank, source.host), first):
            yield line
            first = line.at + 1
