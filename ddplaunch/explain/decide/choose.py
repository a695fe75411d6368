"""The root cause among all failures and exits: the best tier, within a tier what came first, the record before text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddplaunch.explain.decide import recorded
from ddplaunch.explain.decide.collectives import Left, Waited, first_never_done, mismatch, waited_in
from ddplaunch.explain.decide.failures import Failure, of_peers
from ddplaunch.explain.decide.fate import ABORTS, BARE, OUTSIDE, Case, with_fates
from ddplaunch.explain.decide.last_words import BareExit, code_with_words, unexplained, with_last_words
from ddplaunch.explain.decide.work import Work, ended_well, unfinished_report
from ddplaunch.explain.diagnosis import NOTHING_KNOWN, Certainty, RunFacts, UserCall
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.scan import Hit, Scanned
from ddplaunch.explain.signatures.signature import Tier
from ddplaunch.explain.stacks.parse import dumped_calls
from ddplaunch.values.frozen import dataclass

#: Codes of what ranks print that wait for one that does not come.
_WAITING = frozenset(("collective-timeout", "collective-mismatch", "gpu-p2p-broken", "rendezvous-failed"))
#: Codes of crashes and time-outs that faulthandler prints the stacks for.
_DUMPS = frozenset(("segmentation-fault", "aborted", "hang", "shm-too-small", "gpu-fault"))
#: Codes that ranks have in common with others, which a failure elsewhere leads to as well.
_SHARED = BARE | {"collective-timeout", "collective-mismatch"}


@dataclass(frozen=True)
class RootCause:
    """The chosen cause: a ``candidate``, an exit that nothing explains (``ended``), or neither.

    ``case`` has the echoes, and all failures in the order in which they count. ``told``: the record of the run says it.
    ``outside``: what the kernel or the cgroup says, which is in no log. ``witness``: the exception of a survivor, where
    nothing else is known. ``dumped``: the user's calls that the rank was in, by the stack that faulthandler printed
    below the cause. ``left``: the ranks that left early. ``cut``: an uncaught exception is reported there, and the
    report is cut off. ``doubtful``: the log does not decide, maybe because of a ``rival``: another cause, or a line
    that shows that the work went on.
    """

    code: str
    case: Case
    rank: int | None = None
    host: str | None = None
    candidate: Failure | None = None
    ended: BareExit | None = None
    mismatched: tuple[Waited, Waited] | None = None
    told: bool = False
    outside: Line | None = None
    witness: Failure | None = None
    dumped: tuple[UserCall, ...] = ()
    left: Left | None = None
    cut: Line | None = None
    rival: Failure | Line | None = None
    doubtful: bool = False

    @property
    def losers(self) -> list[Failure]:
        """The failures that are not the cause."""
        return [failure for failure in self.case.failures if failure not in (self.candidate, self.witness)]

    @property
    def certainty(self) -> Certainty:
        """How sure it is."""
        if self.code == "unknown":
            return "unknown"
        if self.candidate is not None:
            guessed = self.candidate.is_hint
            return "likely" if guessed or self.doubtful else "observed"
        bare_exit = not self.told and self.outside is None
        return "likely" if bare_exit and self.code in BARE else "observed"

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines that show the cause, the most telling first."""
        lines = [item.line for item in (self.candidate, self.own_echo) if item is not None]
        lines += [] if self.ended is None else [self.ended.exit.line]
        lines += [item.line for item in self.mismatched or ()]
        lines += [] if self.witness is None else [self.witness.line]
        waited = None if self.left is None else self.left.line
        lines += [item for item in (waited, self.outside, self.cut) if item is not None]
        lines = [*self.ended.said, *lines] if self.ended is not None and self.outside is None else lines
        return tuple(lines or [hit.line for hit in self.case.echoes[:1]])

    @property
    def own_echo(self) -> Hit | None:
        """How a rank whose end nothing explains reported that it had lost another one."""
        if self.code != "unknown" or self.ended is None:
            return None
        whose = () if self.rank is None else (self.rank, None) if self.ended.exit.code == 1 else (self.rank,)
        return next((hit for hit in of_peers(self.case.echoes) if hit.line.speaker.rank in whose), None)

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


def choose(scanned: Scanned, facts: RunFacts = NOTHING_KNOWN) -> tuple[RootCause | None, Case]:
    """Return the root cause, None where nothing failed, and the case that it was chosen in."""
    case = with_fates(recorded.with_facts(scanned, facts), facts)
    if facts.state == "succeeded":
        return None, case
    candidates = _own_where_nobody_else_failed(case)
    if facts.state in ("terminated", "killed"):  # the launcher was ended by a signal
        return RootCause(facts.state, case._replace(failures=candidates), told=True), case
    ends = recorded.end_times(facts)
    first_end = min(ends.values(), default=0.0)  # what the launcher prints about a failure comes no earlier
    candidates.sort(
        key=lambda failure: (
            failure.standing,
            failure.survivor,
            ends.get(failure.speaker.rank, first_end),
            failure.line.at,
        )
    )
    return _chosen(case._replace(failures=candidates)), case


def _chosen(case: Case) -> RootCause | None:
    """Return what comes first of: a rank that left early, the best failure, an exit, a report of one."""
    scanned, facts, candidates = case.scanned, case.facts, case.failures
    if (early := _left_early(case)) is not None:
        return early
    ended = unexplained(scanned.exits, recorded.end_times(facts), case.complaining) if case.failed else None
    if candidates and not _exit_explains(ended, candidates[0]):
        if candidates[0].survivor:
            return RootCause("unknown", case._replace(failures=()), witness=candidates[0])
        cause = _with_memory_facts(_of_failure(case))
        return cause if facts.ranks else _weighed(cause, candidates, case.work)
    if ended is not None:
        echo_places = {hit.line.at for hit in case.echoes}
        own_words = [line for line in scanned.lines if line.at not in echo_places]
        spoken = with_last_words(ended, own_words, ended.exit.rank in case.complaining)
        return _with_memory_facts(_of_exit(spoken, case))
    cut = unfinished_report(scanned, case.work)
    spoken_of = {hit.line.at for hit in scanned.hits if not hit.signature.is_root}  # others, which may be "finished"
    own_lines = [line for line in scanned.lines[-400:] if line.at not in spoken_of]
    codes = {hit.signature.code for hit in scanned.hits}  # an agent whose ranks succeeded; an interpreter that ends
    left = "rendezvous-shutdown" in codes or ("teardown-noise" in codes and not case.complaining)
    if not (case.failed or cut) and (left or ended_well(own_lines, bool(case.complaining))):
        return None
    return RootCause("unknown", case._replace(failures=()), cut=cut)


def passed_over(case: Case) -> Failure | None:
    """Return the last error that would have ended a run, had its work not gone on; for logs in which nothing failed."""
    survived = (failure for failure in case.failures if failure.fate == "survived" and failure.tier <= Tier.GENERAL)
    ends = (failure for failure in survived if not (failure.logged or failure.survivor or failure.quoted))
    return max(ends, key=lambda failure: failure.line.at, default=None)


def _weighed(cause: RootCause, candidates: Sequence[Failure], work: Work) -> RootCause:
    """Return a cause that no record tells with what speaks against it: another failure, or a step made after it.

    Ranks that wait for another one print the same, and make steps until then.
    """
    best, shared = candidates[0], cause.code in _SHARED
    others = (failure for failure in candidates[1:] if failure.code != cause.code and _is_rival(failure))
    rival = next(others, None) or (None if shared else work.reports_a_step(best.line))
    if cause.code in BARE:
        is_sure = best.standing == Tier.CAUSE
    else:
        is_sure = best.standing < Tier.SYMPTOM or cause.rank is not None or cause.mismatched is not None
    return replace(cause, rival=rival, doubtful=rival is not None or (shared and not is_sure))


def _is_rival(failure: Failure) -> bool:
    """Return whether it may be the cause as well; an end without a reason is only how the cause ended a rank."""
    least = Tier.UNCERTAIN if failure.is_known else Tier.GENERAL
    says_less = failure.code in BARE | ABORTS or failure.logged or failure.survivor or failure.is_hint
    return failure.fate == "fatal" and failure.tier <= least and not says_less


def _left_early(case: Case) -> RootCause | None:
    """Return the rank that by the record left with status 0, where the first to fail only lost or awaited another."""
    first, candidates = recorded.first_by_itself(case.facts), case.failures
    ranks_that_left = recorded.left_before(case.facts, first) if first is not None else ()
    if first is None or not ranks_that_left or (first.signal and first.signal != "SIGABRT"):
        return None
    if candidates and candidates[0].standing <= Tier.UNCERTAIN and candidates[0].code not in _WAITING:
        return None
    waiting = {hit.line.speaker.rank for hit in of_peers(case.echoes) if hit.line.text[:2] != "[W"}
    waiting |= {item.speaker.rank for item in candidates if item.survivor or item.code in _WAITING}
    own_wait = next((item for item in case.waits.waited if item.rank == first.rank), None)
    if own_wait is None and first.rank not in waiting:
        return None
    call, frame, line = waited_in(case.scanned, first.rank)
    before_s = max(0.0, (first.ended_s or 0.0) - (ranks_that_left[-1].ended_s or 0.0))
    departure = Left(
        tuple(end.rank for end in ranks_that_left),
        first.rank,
        before_s,
        call,
        frame,
        own_wait.line if own_wait else line,
    )
    rank, host = (ranks_that_left[0].rank, ranks_that_left[0].host) if len(ranks_that_left) == 1 else (None, None)
    return RootCause("rank-left-early", case, rank, host, left=departure)


def _exit_explains(ended: BareExit | None, best: Failure) -> bool:
    """Return whether an exit is the cause and not ``best``.

    A rank that died of a signal explains timeouts and lost connections of the others, and an uncertain cause that was
    printed after it. An abort or a plain exit status says less than any line that is more than a hint.
    """
    if ended is None:
        return False
    if ended.code in ("unknown", "aborted"):
        return best.standing >= Tier.HINT
    later = best.standing == Tier.UNCERTAIN and ended.exit.line.at < best.line.at
    return best.standing >= Tier.SURVIVED or later


def _of_failure(case: Case) -> RootCause:
    scanned, waits, best = case.scanned, case.waits, case.failures[0]
    code, pair = best.code, None
    if code in ("collective-timeout", "gpu-p2p-broken"):
        pair = mismatch(waits)
        if pair is not None:
            code = "collective-mismatch"
        elif first_never_done(waits):
            code = "gpu-p2p-broken"
        named = best.groups.get("culprit", "")
        only = waits.absent[0] if len(waits.absent) == 1 and pair is None else None
        rank = int(named) if named.isdecimal() else only
    elif (code == "collective-mismatch" and "other" in best.groups) or code in OUTSIDE | {"nccl-version-mismatch"}:
        rank = None  # either, or it is from outside
    else:
        rank = _rank_of(best, case)
    dumps = code in _DUMPS or (not best.calls and recorded.was_aborted(best.speaker.rank, scanned))
    dumped = dumped_calls(scanned.lines[best.line.at - scanned.lines[0].at :], scanned.just_ended) if dumps else ()
    return RootCause(code, case, rank, best.speaker.host, best, mismatched=pair, dumped=dumped)


def _of_exit(ended: BareExit, case: Case) -> RootCause:
    scanned = case.scanned
    same = (end for end in scanned.exits if end.code == ended.exit.code and not end.by_agent)
    alike = {recorded.exit_rank(end, scanned) for end in same}
    if ended.exit.seen and ended.exit.rank not in case.complaining:
        alike -= case.complaining  # those ended because of this one
    rank = recorded.exit_rank(ended.exit, scanned) if len(alike) <= 1 else None
    first = scanned.lines[0].at if scanned.lines else 0
    own_calls = (dumped_calls(scanned.lines[line.at - first :], scanned.just_ended) for line in ended.said)
    dumped = next(filter(None, own_calls), ())
    return RootCause(code_with_words(ended), case, rank, ended.exit.host, ended=ended, dumped=dumped)


def _with_memory_facts(cause: RootCause) -> RootCause:
    """Name memory as the cause of SIGKILL and SIGBUS where the kernel, the cgroup or /dev/shm says that it ran out."""
    exit_code = None if cause.ended is None else cause.ended.exit.code
    memory_words = recorded.memory_says(cause.code, exit_code, cause.case.facts)
    return cause if memory_words is None else replace(cause, code=memory_words[0], outside=memory_words[1])


def _own_where_nobody_else_failed(case: Case) -> list[Failure]:
    """Return the failures that the work did not survive.

    A lost connection or process is the rank's own failure where no other rank can be the reason: by the record, of the
    rank that failed first; by a log alone, of the only one that complains.
    """
    candidates = [failure for failure in case.failures if failure.fate != "survived"]
    first = recorded.first_by_itself(case.facts)
    if first is not None:
        own_places = {
            failure.line.at for failure in candidates if failure.maybe_own and failure.speaker.rank == first.rank
        }
    else:
        speakers = {failure.speaker for failure in candidates if failure.standing < Tier.HINT}
        speakers |= {hit.line.speaker for hit in of_peers(case.echoes)}
        has_others = len(speakers) > 1 or any(not failure.maybe_own for failure in candidates if failure.survivor)
        own_places = set() if has_others else {failure.line.at for failure in candidates if failure.maybe_own}
    own_places -= {failure.line.at for failure in candidates if failure.fate != "fatal" or failure.logged}
    return [
        replace(failure, tier=Tier.GENERAL, side=False, survivor=False) if failure.line.at in own_places else failure
        for failure in candidates
    ]


def _rank_of(best: Failure, case: Case) -> int | None:
    """Return the one rank that shows the cause, None where several do, or where nothing tells."""
    same = [failure for failure in case.failures if (failure.code, failure.standing) == (best.code, best.standing)]
    ranks = {_own_rank(failure, case.scanned) for failure in same} - {None}
    if ranks:
        return ranks.pop() if len(ranks) == 1 else None
    if len({failure.speaker for failure in same}) > 1:
        return None
    by_exit = recorded.only_failed_rank(case.scanned)
    return by_exit if by_exit is not None else case.waits.only_silent(case.complaining)


def _own_rank(failure: Failure, scanned: Scanned) -> int | None:
    """Return the rank that a failure names, or that printed it."""
    speaker, groups = failure.speaker, failure.groups
    if groups.get("culprit", "").isdecimal():
        return int(groups["culprit"])
    if speaker.rank is not None:
        return speaker.rank
    named = int(groups["pid"]) if groups.get("pid", "").isdecimal() else None
    ranks = (recorded.rank_of_pid(pid, scanned) for pid in (named, speaker.pid) if pid is not None)
    by_pid = next((rank for rank in ranks if rank is not None), None)
    return speaker.local if by_pid is None and speaker.host is None else by_pid
