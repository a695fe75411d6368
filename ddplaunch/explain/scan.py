"""One pass over the lines of all logs: signatures, tracebacks and exits; refuses to weigh them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from ddplaunch.explain.lines import Line
from ddplaunch.explain.matching import Hit, Matcher
from ddplaunch.explain.signatures import all_signatures
from ddplaunch.explain.traceback import Traceback, Tracebacks
from ddplaunch.explain.trailer import RankExit, Trailer
from ddplaunch.frozen import dataclass


@dataclass(frozen=True)
class Scanned:
    """What the logs hold. ``lines`` are all that were read; ``trailer_lines`` are indices of the launcher's summary."""

    lines: tuple[Line, ...]
    hits: tuple[Hit, ...]
    tracebacks: tuple[Traceback, ...]
    exits: tuple[RankExit, ...]
    trailer_lines: frozenset[int]
    summary: Line | None


@cache
def matcher() -> Matcher:
    """Return the matcher of all signatures; its memory of line shapes lasts as long as the process."""
    return Matcher(all_signatures())


def scan(lines: Iterable[Line]) -> Scanned:
    """Read ``lines`` once, in their order."""
    tracebacks, trailer, find = Tracebacks(), Trailer(), matcher()
    kept: list[Line] = []
    hits: list[Hit] = []
    for line in lines:
        line = trailer.feed(line)
        kept.append(line)
        tracebacks.feed(line)
        if line.text:
            hits.extend(find.hits(line))
    return Scanned(
        tuple(kept),
        tuple(hits),
        tuple(tracebacks.finish()),
        tuple(trailer.finish()),
        frozenset(trailer.lines),
        trailer.failed_summary,
    )
