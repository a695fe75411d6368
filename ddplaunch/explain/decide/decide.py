"""The root cause among all candidates and exits: the best tier, and within a tier whatever came first.

The other rules, each a function below, in their order: a signal to the launcher is the cause; an error is left out if
work went on after it; a rank that the launcher stopped counts less; an exception yields to a cause named beside it; an
end from outside and other failures are ordered by time; a rank that died of a signal explains what the others print.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ddplaunch.explain.decide.candidates import NOISE, Candidate, candidates, survived
from ddplaunch.explain.decide.collectives import Stuck, Waited, first_never_done, mismatch, stuck, uneven
from ddplaunch.explain.decide.endings import BareExit, ended_well, exit_code, recovered, said_done, unexplained, went_on
from ddplaunch.explain.decide.outside_logs import end_times, ended_later, out_of_memory, shared_memory_full, with_facts
from ddplaunch.explain.diagnosis import RunFacts
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.scan import Hit, Scanned
from ddplaunch.explain.read.trailer import RankExit
from ddplaunch.explain.signatures.signature import Tier
from ddplaunch.values.frozen import dataclass

#: Codes of an end from outside. It may interrupt anything, and what is printed after it follows from it.
_OUTSIDE = frozenset(("terminated", "time-limit"))
#: Codes that may be printed after an end from outside and still be its reason.
_REASONS = frozenset(("host-out-of-memory", "scheduler-error", "time-limit"))
#: Exit statuses of ranks that were asked to end.
_ASKED_TO_END = (-15, -2, -1, 143, 130, 129)
#: Codes of exits that tell more than an abort or an exit status of the script.
_CRASHES = ("segmentation-fault", "killed")
_BESIDE_LINES = 40  # an exception and the line that names its cause are not further apart


@dataclass(frozen=True)
class RootCause:
    """The chosen cause: a ``candidate``, an exit that nothing explains (``ended``), or neither.

    ``told``: the record of the run says it. ``outside``: what the kernel or the cgroup says, which is in no log.
    ``witness``: the exception of a survivor, where nothing else is known. ``losers`` are the other candidates.
    """

    code: str
    rank: int | None
    host: str | None
    candidate: Candidate | None = None
    ended: BareExit | None = None
    mismatched: tuple[Waited, Waited] | None = None
    stuck: Stuck | None = None
    echoes: tuple[Hit, ...] = ()
    losers: tuple[Candidate, ...] = ()
    told: bool = False
    outside: Line | None = None
    witness: Candidate | None = None


def decide(scanned: Scanned, facts: RunFacts | None) -> RootCause | None:
    """Return the root cause, None where nothing failed."""
    if facts is not None and facts.state == "succeeded":
        return None
    scanned = with_facts(scanned, facts)
    found, echoes = candidates(scanned)
    failed = _failed(scanned, facts)
    if not failed:
        found, echoes = _not_survived(found, echoes, scanned)
    waits = stuck(scanned)
    if facts is not None and facts.state in ("terminated", "killed"):  # the launcher was ended by a signal
        return RootCause(facts.state, None, None, stuck=waits, echoes=tuple(echoes), losers=tuple(found), told=True)
    stopped = ended_later(facts)
    found = [survived(each) if each.speaker.rank in stopped else each for each in found]
    found = _after_an_end_from_outside(_without_restated(found), scanned)
    ends = end_times(facts)
    first_end = min(ends.values(), default=0.0)  # what the launcher prints about a failure comes no earlier
    found.sort(key=lambda each: (each.tier, ends.get(each.speaker.rank, first_end), each.line.at))
    ended = unexplained(scanned.exits) if failed else None
    if found and not _exit_explains(ended, found[0]):
        if found[0].survivor:
            return RootCause("unknown", None, None, stuck=waits, echoes=tuple(echoes), witness=found[0])
        return _with_memory_facts(_of_candidate(found, echoes, scanned, waits), facts)
    if ended is not None:
        return _with_memory_facts(_of_exit(ended, found, echoes, scanned, waits), facts)
    if not failed and ended_well(scanned, any(hit.signature.code not in NOISE for hit in echoes), facts):
        return None
    return RootCause("unknown", None, None, stuck=waits, echoes=tuple(echoes))


def _failed(scanned: Scanned, facts: RunFacts | None) -> bool:
    """Return whether the record, or the launcher's output, says that the run failed."""
    if facts is not None and facts.state is not None:
        return facts.state != "succeeded"
    own = [each for each in scanned.exits if not each.by_agent and not recovered(each, scanned)]
    return scanned.summary is not None or bool(own)


def _not_survived(
    found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned
) -> tuple[list[Candidate], list[Hit]]:
    """Leave out errors after which the work went on: handled ones, and those of attempts that were restarted."""
    lines = scanned.lines
    begun = max((each.line.at for each in scanned.exits if not each.by_agent), default=-1)  # the last attempt
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


def _without_restated(found: list[Candidate]) -> list[Candidate]:
    """Leave out an exception where the same speaker names its specific cause close by.

    An abort is no such cause: an interpreter that ends by an exception while native threads run often aborts after it.
    """
    named = [each for each in found if each.signature and not each.is_hint and each.code != "aborted"]
    return [
        each
        for each in found
        if each.signature is not None
        or not any(
            other.speaker == each.speaker and abs(other.line.at - each.line.at) <= _BESIDE_LINES for other in named
        )
    ]


def _after_an_end_from_outside(found: list[Candidate], scanned: Scanned) -> list[Candidate]:
    """Order an end from outside and other failures by time, because each makes ranks print the other.

    An agent that reports a failed rank saw it fail before the agent itself was asked to end, wherever that is printed.
    """
    outside = [each.line.at for each in found if each.code in _OUTSIDE and not each.is_hint]
    if not outside:
        return found
    reported = any(not (each.by_agent or each.table) and each.code not in _ASKED_TO_END for each in scanned.exits)
    end = max(each.line.at for each in found) + 1 if reported else min(outside)
    failed_before = any(
        each.code not in _OUTSIDE and each.tier <= Tier.GENERAL and each.line.at < end for each in found
    )
    result = []
    for each in found:
        if each.code == "terminated" and failed_before:
            each = replace(each, tier=Tier.SYMPTOM)
        elif each.code not in _OUTSIDE | _REASONS and each.line.at > end:
            each = replace(each, tier=Tier.ECHO)
        result.append(each)
    return result


def _exit_explains(ended: BareExit | None, best: Candidate) -> bool:
    """Return whether an exit is the cause and not ``best``.

    A rank that died of a signal explains timeouts and lost connections of the others, and an uncertain cause that was
    printed after it. An abort or a plain exit status says less than any line that is more than a hint.
    """
    if ended is None:
        return False
    if ended.code in ("unknown", "aborted"):
        return best.tier >= Tier.HINT
    return best.tier >= Tier.SURVIVED or (best.tier == Tier.UNCERTAIN and ended.exit.line.at < best.line.at)


def _of_candidate(found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned, waits: Stuck) -> RootCause:
    best = found[0]
    code, pair = best.code, None
    if code in ("collective-timeout", "gpu-p2p-broken"):
        pair = mismatch(waits)
        if pair is not None or uneven(waits) is not None or waits.left:
            code = "collective-mismatch"
        elif first_never_done(waits):
            code = "gpu-p2p-broken"
        named = best.groups.get("culprit", "")
        absent = sorted(waits.left) or waits.absent
        only = absent[0] if len(absent) == 1 and pair is None else None
        rank = int(named) if named.isdecimal() else only
    elif code == "collective-mismatch" and "other" in best.groups:
        rank = None  # two ranks called different things, and either may be wrong
    else:
        rank = _rank_of(best, found, echoes, scanned, waits)
    return RootCause(code, rank, best.speaker.host, best, None, pair, waits, tuple(echoes), tuple(found[1:]))


def _of_exit(
    ended: BareExit, found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned, waits: Stuck
) -> RootCause:
    alike = {_exit_rank(each, scanned) for each in scanned.exits if each.code == ended.exit.code and not each.by_agent}
    rank = _exit_rank(ended.exit, scanned) if len(alike) <= 1 else None
    return RootCause(
        ended.code, rank, ended.exit.host, ended=ended, stuck=waits, echoes=tuple(echoes), losers=tuple(found)
    )


def _with_memory_facts(cause: RootCause, facts: RunFacts | None) -> RootCause:
    """Name memory as the cause of SIGKILL and SIGBUS where the kernel, the cgroup or /dev/shm says that it ran out."""
    if cause.code == "killed" and (line := out_of_memory(facts)) is not None:
        return replace(cause, code="host-out-of-memory", outside=line)
    if cause.ended is not None and cause.ended.exit.code == -7 and (line := shared_memory_full(facts)) is not None:
        return replace(cause, code="shm-too-small", outside=line)
    return cause


def _rank_of(
    best: Candidate, found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned, waits: Stuck
) -> int | None:
    """Return the one rank that shows the cause, None where several do, or where nothing tells."""
    same = [each for each in found if (each.code, each.tier) == (best.code, best.tier)]
    ranks = {_own_rank(each, scanned) for each in same} - {None}
    if ranks:
        return ranks.pop() if len(ranks) == 1 else None
    if len({each.speaker for each in same}) > 1:
        return None
    by_exit = _only_failed_rank(scanned)
    return by_exit if by_exit is not None else _only_silent_rank(found, echoes, waits)


def _own_rank(each: Candidate, scanned: Scanned) -> int | None:
    """Return the rank that a candidate names, or that printed it."""
    speaker, groups = each.speaker, each.groups
    if groups.get("culprit", "").isdecimal():
        return int(groups["culprit"])
    if speaker.rank is not None:
        return speaker.rank
    if groups.get("rank", "").isdecimal():
        return int(groups["rank"])
    pid = groups.get("pid", "")
    if pid.isdecimal() and (rank := _rank_of_pid(int(pid), scanned)) is not None:
        return rank
    for known in scanned.exits:
        rank = _exit_rank(known, scanned)
        if rank is None:
            continue
        if speaker.pid is not None and known.pid == speaker.pid:
            return rank
        if speaker.local is not None and known.local == speaker.local and known.host in (speaker.host, None):
            return rank
    return speaker.local if speaker.host is None else None


def _rank_of_pid(pid: int, scanned: Scanned) -> int | None:
    """Return the rank that is this process, or that printed its pid, as ranks do with their DataLoader workers'."""
    for known in scanned.exits:
        if known.pid == pid:
            return _exit_rank(known, scanned)
    named = re.compile(rf"\bpids?\b\D{{0,5}}{pid}\b")
    for line in scanned.lines:
        if line.speaker.rank is not None and named.search(line.text):
            return line.speaker.rank
    return None


def _exit_rank(known: RankExit, scanned: Scanned) -> int | None:
    """Return the global rank of an exit; on one host the local rank is the global one."""
    if known.rank is not None or known.local is None:
        return known.rank
    hosts = {line.speaker.host for line in scanned.lines if line.speaker.host}
    return known.local if len(hosts) <= 1 else None


def _only_failed_rank(scanned: Scanned) -> int | None:
    """Return the only rank that crashed, else the only one that failed without an abort, else the only one at all."""
    own = [each for each in scanned.exits if not each.by_agent]
    crashed = [each for each in own if exit_code(each.code) in _CRASHES or each.code == -7]
    not_aborted = [each for each in own if exit_code(each.code) != "aborted"]
    for kind in (crashed, not_aborted, own):
        ranks = {_exit_rank(each, scanned) for each in kind}
        if ranks:
            return ranks.pop() if len(ranks) == 1 else None
    return None


def _only_silent_rank(found: Sequence[Candidate], echoes: Sequence[Hit], waits: Stuck) -> int | None:
    """Return the only rank that does not complain about others, where all others do."""
    if waits.world_size is None or waits.world_size < 2:
        return None
    complaining = {hit.line.speaker.rank for hit in echoes if hit.signature.code not in NOISE}
    complaining |= {each.rank for each in waits.waited}
    silent = [rank for rank in range(waits.world_size) if rank not in complaining]
    return silent[0] if len(silent) == 1 else None
