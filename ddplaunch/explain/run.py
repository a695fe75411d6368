"""Logs and facts of one run to its explanation: read, scan, decide, word; refuses to print."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddplaunch.explain.cascade import cascade
from ddplaunch.explain.decide import decide
from ddplaunch.explain.diagnosis import Explanation
from ddplaunch.explain.facts import LogSource, RunFacts
from ddplaunch.explain.lines import Line, Speaker, read_lines
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
    for source in sources:
        text = _bytes(source).decode("utf-8", "replace")
        numbered = enumerate(text.split("\n"), start=1)
        for line in read_lines(numbered, source.name, Speaker(source.rank, source.host), first):
            yield line
            first = line.at + 1


def _bytes(source: LogSource) -> bytes:
    if isinstance(source.read, bytes):
        return source.read
    if isinstance(source.read, Path):
        return source.read.read_bytes()
    assert isinstance(source.read, io.IOBase) or hasattr(source.read, "read")
    return source.read.read()
