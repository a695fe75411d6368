"""Chooses the root cause among what a log holds; refuses to word it.

Which rank and host a root cause belongs to; refuses to name one where several show it alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ddplaunch.explain.decide.candidates import NOISE, Candidate, candidates
from ddplaunch.explain.decide.collectives import Stuck, Waited, first_never_done, mismatch, stuck, uneven
from ddplaunch.explain.decide.endings import Ended, ended_well, exit_code, recovered, said_done, unexplained, went_on
from ddplaunch.explain.decide.outside_logs import ended_later, order, out_of_memory, shared_memory_full, with_facts
from ddplaunch.explain.diagnosis import RunFacts
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.scan import Hit, Scanned
from ddplaunch.explain.read.trailer import RankExit
from ddplaunch.values.frozen import dataclass

_TELLING = ("segmentation-fault", "killed")
_ALIKE = 8  # weights this close are the same failure, told more or less exactly


def exit_rank(known: RankExit, scanned: Scanned) -> int | None:
    """Return the global rank of an exit; on one host the local rank is the global one."""
    if known.rank is not None or known.local is None:
        return known.rank
    hosts = {line.speaker.host for line in scanned.lines if line.speaker.host}
    return known.local if len(hosts) <= 1 else None


def rank_of(
    best: Candidate, found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned, waits: Stuck
) -> int | None:
    """Return the one rank that shows the cause, None where several do, or where nothing tells."""
    same = [each for each in found if each.code == best.code and each.weight <= best.weight + _ALIKE]
    ranks = {_own(each, scanned) for each in same} - {None}
    if ranks:
        return ranks.pop() if len(ranks) == 1 else None
    if len({each.speaker for each in same}) > 1:
        return None
    told = _by_exit(scanned)
    return told if told is not None else _left_over(found, echoes, waits)


def _own(each: Candidate, scanned: Scanned) -> int | None:
    speaker, groups = each.speaker, dict(each.groups)
    if groups.get("culprit", "").isdecimal():
        return int(groups["culprit"])
    if speaker.rank is not None:
        return speaker.rank
    if groups.get("rank", "").isdecimal():
        return int(groups["rank"])
    pid = groups.get("pid", "")
    if pid.isdecimal() and (rank := _of_pid(int(pid), scanned)) is not None:
        return rank
    for known in scanned.exits:
        rank = exit_rank(known, scanned)
        if rank is None:
            continue
        if speaker.pid is not None and known.pid == speaker.pid:
            return rank
        if speaker.local is not None and known.local == speaker.local and known.host in (speaker.host, None):
            return rank
    return speaker.local if speaker.host is None else None


def _of_pid(pid: int, scanned: Scanned) -> int | None:
    """Return the rank that is this process, or that has spoken of it: a DataLoader worker is named by its parent."""
    for known in scanned.exits:
        if known.pid == pid:
            return exit_rank(known, scanned)
    named = re.compile(rf"\bpids?\b\D{{0,5}}{pid}\b")
    for line in scanned.lines:
        if line.speaker.rank is not None and named.search(line.text):
            return line.speaker.rank
    return None


def _by_exit(scanned: Scanned) -> int | None:
    """Return the only rank that ended by itself, or the only one of them whose end says more than that."""
    own = [each for each in scanned.exits if not each.by_agent]
    telling = [each for each in own if exit_code(each.code) in _TELLING or each.code == -7]
    plain = [each for each in own if exit_code(each.code) != "aborted"]
    for kind in (telling, plain, own):
        ranks = {exit_rank(each, scanned) for each in kind}
        if len(ranks) == 1:
            return ranks.pop()
        if ranks:
            return None
    return None


def _left_over(found: Sequence[Candidate], echoes: Sequence[Hit], waits: Stuck) -> int | None:
    """Return the only rank that does not complain about the others, where all others do."""
    if waits.world_size is None or waits.world_size < 2:
        return None
    complaining = {hit.line.speaker.rank for hit in echoes if hit.signature.code not in NOISE}
    complaining |= {each.rank for each in waits.waited}
    quiet = [rank for rank in range(waits.world_size) if rank not in complaining]
    return quiet[0] if len(quiet) == 1 else None


#: What an end from outside may interrupt and what therefore does not count after it.
_OUTSIDE = frozenset(("terminated", "time-limit"))
_ASKED = (-15, -2, -1, 143, 130, 129)  # how ranks end that were asked to
#: What may be printed after an end from outside and still be its reason.
_REASONS = frozenset(("host-out-of-memory", "scheduler-error", "time-limit"))


@dataclass(frozen=True)
class Decision:
    """The chosen root: a ``candidate``, an exit, or neither. ``told``: the record says it; ``beside``: no log does.

    ``witness`` is a survivor's exception where nothing else is known.
    """

    code: str
    rank: int | None
    host: str | None
    candidate: Candidate | None = None
    ended: Ended | None = None
    mismatched: tuple[Waited, Waited] | None = None
    stuck: Stuck | None = None
    echoes: tuple[Hit, ...] = ()
    losers: tuple[Candidate, ...] = ()
    told: bool = False
    beside: Line | None = None
    witness: Candidate | None = None


def decide(scanned: Scanned, facts: RunFacts | None) -> Decision | None:
    """Return what was decided, None where nothing failed."""
    if facts is not None and facts.state == "succeeded":
        return None
    scanned = with_facts(scanned, facts)
    found, echoes = candidates(scanned)
    failed = _failed(scanned, facts)
    if not failed:
        found, echoes = _not_survived(found, echoes, scanned)
    waits = stuck(scanned)
    outside = _outside(facts)
    if outside is not None:
        return Decision(outside, None, None, stuck=waits, echoes=tuple(echoes), losers=tuple(found), told=True)
    late = ended_later(facts)
    found = [_heavier(each, 25) if each.speaker.rank in late else each for each in found]
    found = _after_the_end(_in_one_cause(found), scanned)
    ends = order(facts)
    found.sort(key=lambda each: (each.weight, ends.get(each.speaker.rank or 0, 0.0), each.line.at))
    ended = unexplained(scanned.exits) if failed else None
    if found and found[0].survivor and not _exit_first(found[0], ended):
        return Decision("unknown", None, None, stuck=waits, echoes=tuple(echoes), witness=found[0])
    if found and not _exit_first(found[0], ended):
        return _by_memory(_of_candidate(found, echoes, scanned, waits), facts)
    if ended is not None:
        return _by_memory(_of_exit(ended, found, echoes, scanned, waits), facts)
    if not failed and ended_well(scanned, any(hit.signature.code not in NOISE for hit in echoes), facts):
        return None
    return Decision("unknown", None, None, stuck=waits, echoes=tuple(echoes))


def _not_survived(
    found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned
) -> tuple[list[Candidate], list[Hit]]:
    """Leave out what the work went on after: errors that were handled, and attempts that a good one followed."""
    lines = scanned.lines
    begun = max((each.line.at for each in scanned.exits if not each.by_agent), default=-1)  # of the last attempt
    done = said_done(lines, 30)
    left = [
        each
        for each in found
        if each.line.at > begun
        and not went_on(lines, each.line, each.raised is not None and not each.logged)
        and not (done and each.side)
    ]
    last = max((hit.line for hit in echoes), key=lambda line: line.at, default=None)
    over = last is None or last.at < begun or went_on(lines, last, uncaught=True)
    return left, [] if over else list(echoes)


def _failed(scanned: Scanned, facts: RunFacts | None) -> bool:
    """Return whether anything but the words of ranks says that the run failed."""
    if facts is not None and facts.state is not None:
        return facts.state != "succeeded"
    own = [each for each in scanned.exits if not each.by_agent and not recovered(each, scanned)]
    return scanned.summary is not None or bool(own)


def _outside(facts: RunFacts | None) -> str | None:
    """Return the code of an end that came from outside of the ranks."""
    if facts is None:
        return None
    return {"terminated": "terminated", "killed": "killed"}.get(facts.state or "")


def _of_exit(
    ended: Ended, found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned, waits: Stuck
) -> Decision:
    alike = {exit_rank(each, scanned) for each in scanned.exits if each.code == ended.exit.code and not each.by_agent}
    rank = exit_rank(ended.exit, scanned) if len(alike) <= 1 else None
    return Decision(
        ended.code, rank, ended.exit.host, ended=ended, stuck=waits, echoes=tuple(echoes), losers=tuple(found)
    )


def _by_memory(decision: Decision, facts: RunFacts | None) -> Decision:
    """A process that was killed, while the kernel or the cgroup says that memory ran out, was killed for that."""
    beside = None
    if decision.code == "killed" and (beside := out_of_memory(facts)) is not None:
        return replace(decision, code="host-out-of-memory", beside=beside)
    if decision.ended is not None and decision.ended.exit.code == -7:
        beside = shared_memory_full(facts)
    return decision if beside is None else replace(decision, code="shm-too-small", beside=beside)


def _in_one_cause(found: list[Candidate]) -> list[Candidate]:
    """A generic exception of a speaker gives way to a specific cause that the same speaker names close to it.

    Not to ``aborted``: an interpreter that ends by an exception while native threads run is often aborted after it.
    """
    specific = {(each.speaker, each.code) for each in found if each.signature is not None}
    named = [each for each in found if each.signature is not None and not each.likely and each.code != "aborted"]
    result = []
    for each in found:
        near = each.code == "script-exception" and any(
            other.speaker == each.speaker and abs(other.line.at - each.line.at) <= 40 for other in named
        )
        if not near or not specific:
            result.append(each)
    return result


def _after_the_end(found: list[Candidate], scanned: Scanned) -> list[Candidate]:
    """Order an end from outside and what else went wrong: whatever came first is the cause.

    An agent that reports a failed rank saw it fail before anybody told the agent to end, wherever that is printed.
    """
    outside = [each.line.at for each in found if each.code in _OUTSIDE and not each.likely]
    if not outside:
        return found
    reported = any(not (each.by_agent or each.table) and each.code not in _ASKED for each in scanned.exits)
    end = max(each.line.at for each in found) + 1 if reported else min(outside)
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
    return replace(each, weight=each.weight + more)


def _exit_first(best: Candidate, ended: Ended | None) -> bool:
    """A rank that died of a signal explains time-outs and lost connections of the others."""
    if ended is None or ended.code == "unknown":
        return best.weight >= 60 and ended is not None
    if ended.code == "aborted":
        return best.weight >= 50
    return best.weight >= 30 or (best.weight >= 20 and ended.exit.line.at < best.line.at)


def _of_candidate(found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned, waits: Stuck) -> Decision:
    best = found[0]
    code, host, pair = best.code, best.speaker.host, None
    if code in ("collective-timeout", "gpu-p2p-broken"):
        pair = mismatch(waits)
        if pair is not None or uneven(waits) is not None or waits.left:
            code = "collective-mismatch"
        elif first_never_done(waits):
            code = "gpu-p2p-broken"
        named = dict(best.groups).get("culprit", "")
        gone = sorted(waits.left) or waits.absent
        alone = gone[0] if len(gone) == 1 and pair is None else None
        rank = int(named) if named.isdecimal() else alone
    elif code == "collective-mismatch" and "other" in dict(best.groups):
        rank = None  # two ranks that called different things: neither is known to be wrong
    else:
        rank = rank_of(best, found, echoes, scanned, waits)
    return Decision(code, rank, host, best, None, pair, waits, tuple(echoes), tuple(found[1:]))
