"""Logs and facts of one run to its explanation: read, scan, decide, word; refuses to print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddplaunch.explain.cascade import cascade
from ddplaunch.explain.decide import decide
from ddplaunch.explain.diagnosis import Explanation
from ddplaunch.explain.facts import LogSource, RunFacts
from ddplaunch.explain.lines import Line, Speaker, read_lines
from ddplaunch.explain.reading import numbered_lines
from ddplaunch.explain.scan import scan
from ddplaunch.explain.wording import worded


def explain_texts(sources: Sequence[LogSource], facts: RunFacts | None = None) -> Explanation:
    """Return the root cause that ``sources`` and ``facts`` support, and what followed from it.

    Raises OSError if a file cannot be read.
    """
    scanned = scan(_lines(sources))
    decision = decide(scanned, facts)
    if decision is None:
        return Explanation(None)
    return Explanation(worded(decision, scanned, facts), cascade(decision))


def _lines(sources: Sequence[LogSource]) -> Iterator[Line]:
    first = 0
    for source, numbered in numbered_lines(sources):
        for line in read_lines(numbered, source.name, Speaker(source.rank, source.host), first):
            yield line
            first = line.at + 1
