"""Chooses the root cause among what a log holds; refuses to word it."""

from __future__ import annotations

from collections.abc import Sequence

from ddplaunch.explain.candidates import Candidate, candidates
from ddplaunch.explain.endings import Ended, ended_well, unexplained, went_on
from ddplaunch.explain.facts import RunFacts
from ddplaunch.explain.matching import Hit
from ddplaunch.explain.scan import Scanned
from ddplaunch.explain.stuck import Stuck, Waited, first_never_done, mismatch, stuck, uneven
from ddplaunch.explain.trailer import RankExit
from ddplaunch.frozen import dataclass

#: What an end from outside may interrupt and what therefore does not count after it.
_OUTSIDE = frozenset(("terminated", "time-limit"))
#: What may be printed after an end from outside and still be its reason.
_REASONS = frozenset(("host-out-of-memory", "scheduler-error", "time-limit"))


@dataclass(frozen=True)
class Decision:
    """The chosen root. Exactly one of ``candidate``, ``ended`` and ``mismatched`` is set, or none: unknown."""

    code: str
    rank: int | None
    host: str | None
    candidate: Candidate | None = None
    ended: Ended | None = None
    mismatched: tuple[Waited, Waited] | None = None
    stuck: Stuck | None = None
    echoes: tuple[Hit, ...] = ()
    losers: tuple[Candidate, ...] = ()
    last: int = 0


def decide(scanned: Scanned, facts: RunFacts | None) -> Decision | None:
    """Return what was decided, None where nothing failed."""
    found, echoes = candidates(scanned)
    if facts is not None and facts.state == "succeeded":
        return None
    failed = bool([each for each in scanned.exits if not each.by_agent]) or scanned.summary is not None
    if not failed and facts is None:
        found = [each for each in found if not went_on(scanned.lines, each.line.at)]
    found = _after_the_end(_in_one_cause(found))
    found.sort(key=lambda each: (each.weight, each.line.at))
    ended = unexplained(scanned.exits)
    waits = stuck(scanned)
    if found and not _exit_first(found[0], ended):
        return _of_candidate(found, echoes, scanned, waits)
    if ended is not None:
        rank = ended.exit.rank if ended.exit.rank is not None else _only_rank(ended.exit, scanned)
        return Decision(
            ended.code, rank, ended.exit.host, ended=ended, stuck=waits, echoes=tuple(echoes), losers=tuple(found)
        )
    if not failed and ended_well(scanned.lines, facts):
        return None
    return Decision("unknown", None, None, stuck=waits, echoes=tuple(echoes))


def _in_one_cause(found: list[Candidate]) -> list[Candidate]:
    """A generic exception of a speaker gives way to a specific cause that the same speaker names close to it."""
    specific = {(each.speaker, each.code) for each in found if each.signature is not None}
    named = [each for each in found if each.signature is not None and not each.likely]
    result = []
    for each in found:
        near = each.code == "script-exception" and any(
            other.speaker == each.speaker and abs(other.line.at - each.line.at) <= 40 for other in named
        )
        if not near or not specific:
            result.append(each)
    return result


def _after_the_end(found: list[Candidate]) -> list[Candidate]:
    """Order an end from outside and what else went wrong: whatever came first is the cause."""
    outside = [each.line.at for each in found if each.code in _OUTSIDE and not each.likely]
    if not outside:
        return found
    end = min(outside)
    own = [each.line.at for each in found if each.code not in _OUTSIDE and each.weight < 20 and each.line.at < end]
    result = []
    for each in found:
        if each.code in _OUTSIDE:
            late = bool(own) and each.code == "terminated"
            result.append(_heavier(each, 25) if late else each)
        else:
            result.append(_heavier(each, 50) if each.line.at > end and each.code not in _REASONS else each)
    return result


def _heavier(each: Candidate, more: int) -> Candidate:
    return Candidate(
        each.code,
        each.weight + more,
        each.line,
        each.speaker,
        each.signature,
        each.groups,
        each.raised,
        each.likely,
    )


def _exit_first(best: Candidate, ended: Ended | None) -> bool:
    """A rank that died of a signal explains time-outs and lost connections of the others."""
    if ended is None or ended.code == "unknown":
        return best.weight >= 60 and ended is not None
    if ended.code == "aborted":
        return best.weight >= 50
    return best.weight >= 30


def _of_candidate(found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned, waits: Stuck) -> Decision:
    best = found[0]
    code, rank, host, pair = best.code, best.speaker.rank, best.speaker.host, None
    if code in ("collective-timeout", "gpu-p2p-broken"):
        pair = mismatch(waits)
        apart = uneven(waits)
        if pair is not None or apart is not None:
            code = "collective-mismatch"
        elif first_never_done(waits):
            code = "gpu-p2p-broken"
        rank = waits.absent[0] if len(waits.absent) == 1 and pair is None else None
    else:
        rank = _rank(best, found, scanned)
    return Decision(
        code,
        rank,
        host,
        candidate=best,
        mismatched=pair,
        stuck=waits,
        echoes=tuple(echoes),
        losers=tuple(found[1:]),
    )


def _rank(best: Candidate, found: Sequence[Candidate], scanned: Scanned) -> int | None:
    """Return the one rank that shows the cause, None where several do or none is named."""
    same = [each for each in found if each.code == best.code and each.weight <= best.weight + 8]
    ranks = {_global(each, scanned) for each in same} - {None}
    if len(ranks) > 1:
        return None
    if ranks:
        return ranks.pop()
    own = {each.rank for each in scanned.exits if not each.by_agent and each.rank is not None}
    return own.pop() if len(own) == 1 and len(same) == 1 else None


def _global(each: Candidate, scanned: Scanned) -> int | None:
    speaker = each.speaker
    if speaker.rank is not None:
        return speaker.rank
    for known in scanned.exits:
        if known.rank is None:
            continue
        if speaker.pid is not None and known.pid == speaker.pid:
            return known.rank
        if speaker.local is not None and known.local == speaker.local and known.host in (speaker.host, None):
            return known.rank
    return speaker.local


def _only_rank(known: RankExit, scanned: Scanned) -> int | None:
    """With one node the local rank is the global one."""
    hosts = {line.speaker.host for line in scanned.lines if line.speaker.host}
    return known.local if len(hosts) <= 1 else None
