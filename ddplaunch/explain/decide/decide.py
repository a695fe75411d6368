"""The root cause among all candidates and exits: the best tier, and within a tier whatever came first.

The other rules, each a function below, in their order: a signal to the launcher is the cause; an error is left out if
work went on after it; a rank that the launcher stopped counts less; an exception yields to a cause named beside it; an
end from outside and other failures are ordered by time; a rank that died of a signal explains what the others print.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ddplaunch.explain.decide import recorded
from ddplaunch.explain.decide.candidates import Candidate, candidates, rank_of, survived
from ddplaunch.explain.decide.collectives import (
    Left,
    Stuck,
    Waited,
    first_never_done,
    mismatch,
    stuck,
    uneven,
    waited_in,
)
from ddplaunch.explain.decide.endings import BareExit, code_with_words, unexplained, with_last_words
from ddplaunch.explain.decide.handled import (
    BARE,
    OUTSIDE,
    not_survived,
    passed_over,
    rival,
    said_by_absent,
    with_handled,
    without_followers,
    without_restated,
)
from ddplaunch.explain.decide.progress import (
    Afterwards,
    ended_well,
    says_failed,
    unfinished_report,
)
from ddplaunch.explain.diagnosis import Certainty, RunFacts, UserCall
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.scan import Hit, Scanned
from ddplaunch.explain.signatures.signature import NOISE, Tier
from ddplaunch.explain.stacks.parse import dumped_calls
from ddplaunch.values.frozen import dataclass

#: Codes that may be printed after an end from outside and still be its reason.
_REASONS = frozenset(("host-out-of-memory", "scheduler-error", "time-limit"))
#: Codes of what ranks print that wait for one that does not come.
_WAITING = frozenset(("collective-timeout", "collective-mismatch", "gpu-p2p-broken", "rendezvous-failed"))
#: Codes that a run on the CPU cannot have, whatever its ranks quote.
_NEEDS_A_GPU = frozenset(("cuda-out-of-memory", "gpu-fault", "device-side-assert", "cudnn-error", "duplicate-gpu"))
#: Codes of crashes and time-outs that faulthandler prints the stacks for.
_DUMPS = frozenset(("segmentation-fault", "aborted", "hang", "shm-too-small", "gpu-fault"))
#: Exit statuses of ranks that were asked to end.
_ASKED_TO_END = (-15, -2, -1, 143, 130, 129)
#: Codes that ranks have in common with others, which a failure elsewhere leads to as well.
_SHARED = BARE | {"collective-timeout", "collective-mismatch"}


@dataclass(frozen=True)
class RootCause:
    """The chosen cause: a ``candidate``, an exit that nothing explains (``ended``), or neither.

    ``told``: the record of the run says it. ``outside``: what the kernel or the cgroup says, which is in no log.
    ``witness``: the exception of a survivor, where nothing else is known. ``losers`` are the other candidates.
    ``dumped``: the user's calls that the rank was in, by the stack that faulthandler printed below the cause.
    ``left``: the ranks that left early. ``cut``: an uncaught exception is reported there, and the report is cut off.
    ``only_failure``: torchrun's summary lists no other rank than ``ended``. ``doubtful``: the log does not decide,
    maybe because of a ``rival``: another cause, or a line that shows that the work went on.
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
    dumped: tuple[UserCall, ...] = ()
    left: Left | None = None
    cut: Line | None = None
    only_failure: bool = False
    rival: Candidate | Line | None = None
    doubtful: bool = False

    @property
    def certainty(self) -> Certainty:
        """How sure it is."""
        if self.code == "unknown":
            return "unknown"
        if self.candidate is not None:
            guessed = self.candidate.is_hint or (self.code == "killed" and self.candidate.signature is None)
            return "likely" if guessed or self.doubtful else "observed"
        bare_exit = not self.told and self.outside is None
        return "likely" if bare_exit and self.code in BARE else "observed"

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines that show the cause, the most telling first."""
        found = [] if self.candidate is None else [self.candidate.line]
        found += [] if self.own_echo is None else [self.own_echo.line]
        found += [] if self.ended is None else [self.ended.exit.line]
        found += [each.line for each in self.mismatched or ()]
        found += [] if self.left is None else self.left.lines
        found += [] if self.witness is None else [self.witness.line]
        found += [each for each in (self.outside, self.cut) if each is not None]
        found = [*self.ended.said, *found] if self.ended is not None and self.outside is None else found
        return tuple(found or [hit.line for hit in self.echoes[:1]])

    @property
    def own_echo(self) -> Hit | None:
        """How a rank whose end nothing explains reported that it had lost another one."""
        if self.code != "unknown" or self.ended is None:
            return None
        whose = () if self.rank is None else (self.rank, None) if self.ended.exit.code == 1 else (self.rank,)
        told = (hit for hit in self.echoes if hit.signature.code not in NOISE and hit.line.speaker.rank in whose)
        return own_abort_echo(self.ended, self.rank, self.echoes) or next(told, None)

    @property
    def lost_one_that_left(self) -> bool:
        """Whether the rank that it lost was on the same node, and neither failed nor was stopped: it left with 0."""
        if not self.only_failure or self.own_echo is None or "127.0.0.1" not in self.own_echo.line.text:
            return False
        stopped = any(hit.signature.code == "stopped-by-launcher" for hit in self.echoes)
        return _complaining(self.echoes) == {self.rank} and not stopped

    @property
    def frame(self) -> str | None:
        """Where in the user's code the rank was, where a stack was dumped."""
        return self.dumped[-1].place if self.dumped else None

    @property
    def calls(self) -> tuple[UserCall, ...]:
        """The user's calls that led to the cause, by its traceback or the dumped stack."""
        return self.dumped or (self.candidate.calls if self.candidate is not None and self.speaks else ())

    @property
    def speaks(self) -> bool:
        """Whether the candidate's line is of the rank that is to blame, and not of one that waited for it."""
        ranks = {self.rank, None if self.candidate is None else self.candidate.speaker.rank}
        return len(ranks - {None}) < 2


def decide(scanned: Scanned, facts: RunFacts | None) -> RootCause | Candidate | None:
    """Return the root cause; where nothing failed in a log, the last error that its work went on after, if any."""
    if facts is not None and facts.state == "succeeded":
        return None
    scanned = recorded.with_facts(scanned, facts)
    found, echoes = candidates(scanned)
    after = Afterwards(scanned.lines)
    found = seen = with_handled(found, scanned, after)
    failed = says_failed(scanned, after, facts)
    found, echoes = not_survived(found, echoes, scanned, after, failed)
    waits = stuck(scanned)
    if facts is None and all(each.tier > Tier.GENERAL for each in found):
        found += said_by_absent(scanned, waits)
    if facts is not None and facts.state in ("terminated", "killed"):  # the launcher was ended by a signal
        return RootCause(facts.state, None, None, stuck=waits, echoes=tuple(echoes), losers=tuple(found), told=True)
    stopped = recorded.ended_later(facts, _complaining(echoes) - {each.speaker.rank for each in found})
    found = [survived(each) if each.speaker.rank in stopped else each for each in found]
    if recorded.on_cpu(facts):
        found = [replace(each, tier=Tier.ECHO, old=True) if each.code in _NEEDS_A_GPU else each for each in found]
    found = _after_an_end_from_outside(without_restated(without_followers(found)), scanned)
    found = _own_where_nobody_else_failed(found, echoes, facts)
    ends = recorded.end_times(facts)
    first_end = min(ends.values(), default=0.0)  # what the launcher prints about a failure comes no earlier
    found.sort(key=lambda each: (each.tier, each.survivor, ends.get(each.speaker.rank, first_end), each.line.at))
    ended = unexplained(scanned.exits, ends, _complaining(echoes)) if failed else None
    if (early := _left_early(found, echoes, scanned, waits, facts)) is not None:
        return early
    found, echoes = _with_lost_while_joining(found, echoes, scanned, facts)
    if found and not _exit_explains(ended, found[0]):
        if found[0].survivor:
            return RootCause("unknown", None, None, stuck=waits, echoes=tuple(echoes), witness=found[0])
        cause = _with_memory_facts(_of_candidate(found, echoes, scanned, waits), facts)
        return cause if facts is not None and facts.ranks else _weighed(cause, found, after)
    if ended is not None and (said := _last_words(ended, scanned, echoes)) is not None:
        return _with_memory_facts(_of_exit(said, found, echoes, scanned, waits), facts)
    cut = unfinished_report(scanned, after)
    if not (failed or cut) and ended_well(scanned, after, bool(_complaining(echoes)), facts):
        return passed_over(seen) if facts is None else None
    return RootCause("unknown", None, None, stuck=waits, echoes=tuple(echoes), cut=cut)


def _weighed(cause: RootCause, found: Sequence[Candidate], after: Afterwards) -> RootCause:
    """Return a cause that no record tells with what speaks against it."""
    best, shared = found[0], cause.code in _SHARED
    other = rival(best, [each for each in found[1:] if each.code != cause.code], after, shared)
    if cause.code in BARE:
        told = best.tier == Tier.CAUSE
    else:
        told = best.tier < Tier.SYMPTOM or cause.rank is not None or cause.mismatched is not None
    return replace(cause, rival=other, doubtful=other is not None or (shared and not told))


def _last_words(ended: BareExit, scanned: Scanned, echoes: Sequence[Hit]) -> BareExit | None:
    """Return the exit with its rank's own last words; None where a record shows that it only lost another rank."""
    complaints = {hit.line.at: hit.line.speaker.rank for hit in echoes if hit.signature.code not in NOISE}
    complains = ended.exit.rank in complaints.values()
    said = with_last_words(ended, scanned.lines, complains)
    if recorded.only_complains(said.exit, said.said, list(complaints)):
        return None
    of_others = {hit.line.at for hit in echoes}
    return with_last_words(ended, [line for line in scanned.lines if line.at not in of_others], complains)


def _with_lost_while_joining(
    found: list[Candidate], echoes: list[Hit], scanned: Scanned, facts: RunFacts | None
) -> tuple[list[Candidate], list[Hit]]:
    """Return what a rank noticed as it joined as its own failure, where nothing else failed."""
    noticed = [hit.line for hit in echoes if hit.signature.code not in NOISE]
    joining = None if found else recorded.lost_while_joining(scanned, noticed, facts)
    if joining is None:
        return found, echoes
    hit, lost = joining
    own = Candidate(Tier.SYMPTOM, hit.line, lost.speaker, hit, lost.root.raised, calls=lost.calls)
    return [own], [each for each in echoes if each.signature.code in NOISE]


def _complaining(echoes: Sequence[Hit]) -> frozenset[int | None]:
    """Return the ranks that complain of others."""
    return frozenset(hit.line.speaker.rank for hit in echoes if hit.signature.code not in NOISE)


def _left_early(
    found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned, waits: Stuck, facts: RunFacts | None
) -> RootCause | None:
    """Return the rank that left with status 0, where the first one to fail only says that it lost or awaited one."""
    first = recorded.first_by_itself(facts)
    left = recorded.left_before(facts, first) if first is not None else ()
    heard = (hit for hit in echoes if hit.signature.code not in NOISE and hit.line.text[:2] != "[W")
    complaints = [(hit.line.speaker.rank, hit.line) for hit in heard]
    complaints += [(each.speaker.rank, each.line) for each in found if each.survivor or each.code in _WAITING]
    said: tuple[Line, ...] = ()
    if facts is None and (table := recorded.not_in_table(scanned, echoes)) is not None:
        first, left = table
    elif facts is None and (leaving := recorded.said_to_leave(scanned, complaints)) is not None:
        first, left, said = leaving
    if first is None or not left or (first.signal and first.signal != "SIGABRT"):
        return None
    if found and found[0].tier <= Tier.UNCERTAIN and found[0].code not in _WAITING:
        return None
    if not said and first.rank not in {each.rank for each in waits.waited} | {rank for rank, _ in complaints}:
        return None
    call, frame, line = waited_in(scanned, first.rank)
    own = next((each for each in waits.waited if each.rank == first.rank), None)
    before_s = max(0.0, (first.ended_s or 0.0) - (left[-1].ended_s or 0.0))
    line = own.line if own else line
    lines = said or (() if line is None else (line,))
    told = Left(tuple(end.rank for end in left), first.rank, before_s, call, frame, lines, bool(said))
    rank, host = (left[0].rank, left[0].host) if len(left) == 1 else (None, None)
    return RootCause("rank-left-early", rank, host, stuck=waits, echoes=tuple(echoes), losers=tuple(found), left=told)


def _after_an_end_from_outside(found: list[Candidate], scanned: Scanned) -> list[Candidate]:
    """Order an end from outside and other failures by time, because each makes ranks print the other.

    An agent that reports a failed rank saw it fail before its own end, wherever printed. A time limit warns by signals.
    """
    outside = [each.line.at for each in found if each.code in OUTSIDE and not each.is_hint]
    if not outside:
        return found
    own = [each for each in scanned.exits if not each.by_agent and each.code not in _ASKED_TO_END]
    cancelled = min((each.line.at for each in found if " CANCELLED AT " in each.line.text), default=math.inf)
    reported = any(not (each.table or ("srun: " in each.line.text and cancelled < each.line.at)) for each in own)
    end = max(each.line.at for each in found) + 1 if reported else min(outside)
    causes = (each for each in found if each.code not in OUTSIDE and each.line.at < end)
    failed_before = any(each.tier <= Tier.GENERAL for each in causes)
    limited = any(each.code == "time-limit" and each.tier == Tier.CAUSE for each in found)
    first_exit = min((each.line.at for each in own), default=end)  # srun ends a step in which a task has failed
    result = []
    for each in found:
        of_step = each.line.at > first_exit and " STEP " in each.line.text
        if each.code == "terminated" and (failed_before or limited or of_step):
            each = replace(each, tier=Tier.SYMPTOM)
        elif each.code not in OUTSIDE | _REASONS and each.line.at > end and "low on resource" not in each.line.text:
            each = replace(each, tier=Tier.ECHO)
        result.append(each)
    return result


def _exit_explains(ended: BareExit | None, best: Candidate) -> bool:
    """Return whether an exit is the cause and not ``best``.

    A rank that died of a signal explains timeouts and lost connections of the others, and an uncertain cause that was
    printed after it. A port that is taken sends none. An abort or a plain exit status says less than any line that is
    more than a hint.
    """
    if ended is None:
        return False
    if ended.code in ("unknown", "aborted"):
        return best.tier >= Tier.HINT
    if best.code == "port-taken" and best.raised is None and ended.code in ("killed", "segmentation-fault"):
        return True
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
    elif (code == "collective-mismatch" and "other" in best.groups) or code in OUTSIDE | {"nccl-version-mismatch"}:
        rank = recorded.interrupted_alone(scanned) if code == "terminated" else None  # either, or it is from outside
        best = replace(best, hit=None) if rank is not None and best.raised else best  # its own exception says it
    else:
        rank = rank_of(best, found, echoes, scanned, waits)
    dumps = code in _DUMPS or (not best.calls and recorded.was_aborted(best.speaker.rank, scanned))
    dumped = dumped_calls(scanned.lines[best.line.at - scanned.lines[0].at :], scanned.just_ended) if dumps else ()
    return RootCause(
        code, rank, best.speaker.host, best, None, pair, waits, tuple(echoes), tuple(found[1:]), dumped=dumped
    )


def _of_exit(
    ended: BareExit, found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned, waits: Stuck
) -> RootCause:
    same = (each for each in scanned.exits if each.code == ended.exit.code and not each.by_agent)
    alike = {recorded.exit_rank(each, scanned) for each in same}
    complaining = _complaining(echoes)
    if ended.exit.seen and ended.exit.rank not in complaining:
        alike -= complaining  # those ended because of this one
    alone = len(alike) <= 1 or recorded.says_alone(ended.exit, ended.said, scanned)
    rank = recorded.exit_rank(ended.exit, scanned) if alone else None
    first = scanned.lines[0].at if scanned.lines else 0
    own = (dumped_calls(scanned.lines[line.at - first :], scanned.just_ended) for line in ended.said)
    listed = [each for each in scanned.exits if each.table]
    code = "unknown" if own_abort_echo(ended, rank, echoes) is not None else code_with_words(ended)
    return RootCause(
        code,
        rank,
        ended.exit.host,
        ended=ended,
        stuck=waits,
        echoes=tuple(echoes),
        losers=tuple(found),
        dumped=next(filter(None, own), ()),
        only_failure=scanned.summary is not None and len(listed) == 1,
    )


def own_abort_echo(ended: BareExit, rank: int | None, echoes: Sequence[Hit]) -> Hit | None:
    """Return what native code said of a broken communication before it aborted the rank; then that is the reason."""
    if ended.code != "aborted":
        return None
    before = [hit for hit in echoes if hit.line.at < ended.exit.line.at and hit.line.speaker.rank in (rank, None)]
    return max((hit for hit in before if hit.signature.code not in NOISE), key=lambda hit: hit.line.at, default=None)


def _with_memory_facts(cause: RootCause, facts: RunFacts | None) -> RootCause:
    """Name memory as the cause of SIGKILL and SIGBUS where the kernel, the cgroup or /dev/shm says that it ran out."""
    told = recorded.memory_says(cause.code, None if cause.ended is None else cause.ended.exit.code, facts)
    return cause if told is None else replace(cause, code=told[0], outside=told[1])


def _own_where_nobody_else_failed(
    found: list[Candidate], echoes: Sequence[Hit], facts: RunFacts | None
) -> list[Candidate]:
    """Return a lost connection or process as the rank's own failure, where no other rank can be the reason: by the
    record, of the rank that failed first; by a log alone, of the only one that complains.
    """
    first = recorded.first_by_itself(facts)
    if first is not None:
        told = {each.speaker for each in found if each.of_worker and not each.old}  # how a worker of a DataLoader ended
        mine = (each for each in found if each.maybe_own and each.speaker.rank == first.rank)
        own = {each.line.at for each in mine if not (each.in_loader and each.speaker in told)}
    else:
        speakers = {each.speaker for each in found if each.tier < Tier.HINT}
        speakers |= {hit.line.speaker for hit in echoes if hit.signature.code not in NOISE}
        others = len(speakers) > 1 or any(not each.maybe_own for each in found if each.survivor)
        own = set() if others else {each.line.at for each in found if each.maybe_own}
    own -= {each.line.at for each in found if each.old or each.logged}
    return [
        replace(each, tier=Tier.GENERAL, side=False, survivor=False) if each.line.at in own else each for each in found
    ]
