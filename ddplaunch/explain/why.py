"""What each stage of ``explain`` decided, as lines of text for ``ddplaunch explain --why``."""

from __future__ import annotations

from collections.abc import Iterator

from ddplaunch.explain.decide.choose import RootCause
from ddplaunch.explain.decide.failures import Failure
from ddplaunch.explain.decide.fate import Case
from ddplaunch.explain.read.scan import Scanned
from ddplaunch.values.words import ranks_text


def stages(scanned: Scanned, case: Case, cause: RootCause | None) -> Iterator[str]:
    """Yield a line for what was read, for each failure with its fate, and for what was chosen."""
    lines = scanned.lines
    ranks = sorted({line.speaker.rank for line in lines if line.speaker.rank is not None})
    yield (
        f"read: {len(lines)} lines of {ranks_text(ranks) if ranks else 'no rank by name'}, {len(scanned.tracebacks)} "
        f"tracebacks, {len(case.scanned.exits)} exits, {len(scanned.hits)} lines with a known failure"
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
    rank = failure.speaker.rank
    who = "" if rank is None else f" of rank {rank}"
    return f"{failure.line.file}:{failure.line.number} {failure.code}{who}"
