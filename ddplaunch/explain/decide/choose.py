"""Chooses the root cause: the best tier, then the earliest, facts before text; else an exit and its last words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ddplaunch.explain.decide import recorded
from ddplaunch.explain.decide.collectives import Left, Waited, first_never_done, mismatch, waited_in
from ddplaunch.explain.decide.fate import BARE, OUTSIDE, Case, Failure, of_peers, with_fates
from ddplaunch.explain.decide.work import CHATTER, COUNT, PROGRESS, ended_well, unfinished_report
from ddplaunch.explain.diagnosis import NOTHING_KNOWN, Certainty, RunFacts, UserCall
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.scan import Hit, Scanned
from ddplaunch.explain.read.trailer import RankExit, exit_code
from ddplaunch.explain.signatures import Tier, patterns
from ddplaunch.explain.stacks.parse import dumped_calls
from ddplaunch.values.frozen import dataclass

_ORDER = ("segmentation-fault", "killed", "time-limit", "terminated", "unknown", "aborted")
_REASON, _LEVEL, _REPORTS, _WORD, _RECORD = patterns("last-words")
#: Exit statuses of a shell and `env` with their code.
_OF_SHELL = {126: "permission-denied", 127: "script-not-found"}
_LAST, _QUOTED = 8, 4  # last lines to search for a reason; lines to quote from there on


@dataclass(frozen=True)
class BareExit:
    """An exit that no line explains, with the code for its status and the rank's last lines.

    ``gives_reason``: the first of the ``said`` lines reads like the reason for the end.
    """

    code: str
    exit: RankExit
    said: tuple[Line, ...] = ()
    gives_reason: bool = False


def unexplained(
    exits: Sequence[RankExit], ends: Mapping[int | None, float], complaining: frozenset[int | None]
) -> BareExit | None:
    """Return the most telling exit, or None if the agent itself ended all ranks.

    Signals come first. Among other exits, ranks that do not complain about others come first; then, by the times in the
    record (``ends``), the earliest.
    """

    def order(ended: BareExit) -> tuple[int, bool, float, int]:
        rank = ended.exit.rank
        kind = _ORDER.index(ended.code)
        return (kind, rank in complaining, ends.get(rank, math.inf), ended.exit.line.at)

    own_exits = (end for end in exits if not end.by_agent)
    kinds = (BareExit("unknown" if end.seen and end.code > 0 else exit_code(end.code), end) for end in own_exits)
    return min(kinds, key=order, default=None)


def with_last_words(ended: BareExit, lines: Sequence[Line], complains: bool) -> BareExit:
    """Return the exit with the last lines of its rank; only of stderr, if it has its own file and is not empty.

    In a log of all ranks, that is the rank's last line before the launcher's report, or else a line without a rank that
    reads like a reason. ``complains``: the rank reports that it lost another one.
    """
    rank_exit = ended.exit
    earlier = [line for line in lines if rank_exit.seen or line.at < rank_exit.line.at]
    own_lines = _spoken(
        line for line in earlier if line.speaker.rank == rank_exit.rank and not line.file.endswith("launcher.err")
    )
    if not own_lines:
        unsigned = _spoken(line for line in earlier if line.speaker.rank is None)[-_LAST:]
        return replace(ended, said=tuple(line for line in unsigned if _gives_reason(line.text))[-1:])
    last = [line for line in own_lines if ".err" in line.file] or own_lines
    last = last[-_LAST:] if rank_exit.seen else last[-1:]  # without a record, lines above it may be another rank's
    reason = _reason(last)
    by_sys_exit = not reason and rank_exit.seen and rank_exit.code == 1 and not complains
    gives_reason = bool(reason) or (by_sys_exit and any(map(_is_message, last[-1:])))
    return replace(ended, said=reason or tuple(last[-1:]), gives_reason=gives_reason)


def _spoken(lines: Iterable[Line]) -> list[Line]:
    """Return the lines that may be a program's last words: without chatter and reports."""
    return [
        line
        for line in lines
        if line.text[:1].strip() and not (CHATTER.search(line.text) or _REPORTS.search(line.text))
    ]


def _reason(last: Sequence[Line]) -> tuple[Line, ...]:
    """Return the first line that reads like a reason and the lines that follow it; none if there is no such line."""
    first = next((at for at, line in enumerate(last) if _gives_reason(line.text)), len(last))
    return tuple(last[first : first + _QUOTED])


def _gives_reason(text: str) -> bool:
    return bool(_LEVEL.search(text) or (_REASON.search(text) and not PROGRESS.search(text)))


def _is_message(line: Line) -> bool:
    """Return whether a last line reads like the output of `sys.exit("…")`: a sentence, or some words on stderr."""
    words = len(_WORD.findall(line.text))
    sentence = words >= 4 and len(COUNT.findall(line.text)) <= 1  # "the loss diverged at epoch 3"
    on_stderr = words >= 2 and ".err" in line.file and not PROGRESS.search(line.text)
    return (sentence or on_stderr) and not _RECORD.search(line.text)


def code_with_words(ended: BareExit) -> str:
    """Return the code of an exit: that of its signal, else what the last words and the status say together.

    126 and 127 are the statuses of a shell and `env` for a command that cannot be executed or does not exist. Without a
    record, last words decide nothing.
    """
    of_shell = _OF_SHELL.get(ended.exit.code, "script-exception")
    return of_shell if ended.exit.seen and ended.gives_reason and ended.exit.code > 0 else ended.code


#: Codes of what ranks print while they wait in vain for another rank.
_WAITING = frozenset(("collective-timeout", "collective-mismatch", "gpu-p2p-broken", "rendezvous-failed"))
#: Codes that several ranks may show at once, and that a failure elsewhere causes as well.
_SHARED = BARE | {"collective-timeout", "collective-mismatch", "rank-left-early"}


@dataclass(frozen=True)
class RootCause:
    """The chosen cause: a ``candidate``, an exit that nothing explains (``ended``), or neither.

    ``case`` has the echoes, and all failures in the order in which they count. ``told``: it is known from the run's
    record. ``outside``: a message of the kernel or the cgroup, which is in no log. ``witness``: the exception of a
    survivor, if nothing else is known. ``dumped``: the user's calls that the rank was in, from the stack that
    faulthandler printed below the cause. ``left``: the ranks that left early. ``cut``: the line where the report of an
    uncaught exception is cut off."""

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

    @property
    def losers(self) -> list[Failure]:
        """The failures that are not the cause."""
        return [failure for failure in self.case.failures if failure not in (self.candidate, self.witness)]

    @property
    def certainty(self) -> Certainty:
        """How certain the cause is."""
        if self.code == "unknown":
            return "unknown"
        if self.candidate is not None:
            return "likely" if self.candidate.is_hint or self._may_follow else "observed"
        bare_exit = not self.told and self.outside is None
        return "likely" if bare_exit and self.code in BARE else "observed"

    @property
    def _may_follow(self) -> bool:
        """Whether the candidate may be a consequence: by a log alone, waiting ranks print the same."""
        if self.candidate is None or self.case.facts.ranks or self.code not in _SHARED:
            return False
        standing = self.candidate.standing
        if self.code in BARE:
            return standing != Tier.CAUSE
        return standing >= Tier.SYMPTOM and self.rank is None and self.mismatched is None

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines that show the cause, most telling first."""
        own_exit = None if self.ended is None else self.ended.exit
        parts = (self.candidate, self.own_echo, own_exit, *(self.mismatched or ()), self.witness, self.left)
        lines = [part.line for part in parts if part is not None] + [self.outside, self.cut]
        said = self.ended.said if self.ended is not None and self.outside is None else ()
        lines = [*said, *(line for line in lines if line is not None)]
        return tuple(lines or [hit.line for hit in self.case.echoes[:1]])

    @property
    def own_echo(self) -> Hit | None:
        """The line in which a rank whose end nothing explains reported that it had lost another one."""
        if self.code != "unknown" or self.ended is None:
            return None
        whose = () if self.rank is None else (self.rank, None) if self.ended.exit.code == 1 else (self.rank,)
        return next((hit for hit in of_peers(self.case.echoes) if hit.line.speaker.rank in whose), None)

    @property
    def frame(self) -> str | None:
        """Where in the user's code the rank was, if a stack was dumped."""
        return self.dumped[-1].place if self.dumped else None

    @property
    def calls(self) -> tuple[UserCall, ...]:
        """The user's calls that led to the cause, from its traceback or the dumped stack."""
        return self.dumped or (self.candidate.calls if self.candidate is not None and self.speaks else ())

    @property
    def speaks(self) -> bool:
        """Whether the candidate's line is from the rank to blame, not from one that waited for it."""
        ranks = {self.rank, None if self.candidate is None else self.candidate.speaker.rank}
        return len(ranks - {None}) < 2


def choose(scanned: Scanned, facts: RunFacts = NOTHING_KNOWN) -> tuple[RootCause | None, Case]:
    """Return the root cause, or None if nothing failed; and the case in which it was chosen."""
    case = with_fates(recorded.with_facts(scanned, facts), facts)
    if facts.state == "succeeded":
        return None, case
    candidates = _own_where_nobody_else_failed(case)
    if facts.state in ("terminated", "killed"):  # a signal ended the launcher
        return RootCause(facts.state, case._replace(failures=candidates), told=True), case
    ends = recorded.end_times(facts)
    first_end = min(ends.values(), default=0.0)  # the launcher reports a failure after it happened
    candidates.sort(
        key=lambda failure: (
            failure.standing,
            failure.survivor,
            ends.get(failure.speaker.rank, first_end),
            failure.line.at,
        )
    )
    cause = _chosen(case._replace(failures=candidates))
    return cause and _with_memory_facts(cause), case


def _chosen(case: Case) -> RootCause | None:
    """Return the first that applies: a rank that left early, the best failure, an exit, a report of an exit."""
    scanned, candidates = case.scanned, case.failures
    if (early := _left_early(case)) is not None:
        return early
    ended = unexplained(scanned.exits, recorded.end_times(case.facts), case.complaining) if case.failed else None
    if candidates and not _exit_explains(ended, candidates[0]):
        if candidates[0].survivor:
            return RootCause("unknown", case._replace(failures=()), witness=candidates[0])
        return _of_failure(case)
    if ended is not None:
        echo_places = {hit.line.at for hit in case.echoes}
        own_words = [line for line in scanned.lines if line.at not in echo_places]
        spoken = with_last_words(ended, own_words, ended.exit.rank in case.complaining)
        return _of_exit(spoken, case)
    cut = unfinished_report(scanned, case.work)
    spoken_of = {hit.line.at for hit in scanned.hits if not hit.signature.is_root}  # of others, maybe "finished"
    uncaught = {each.root.line.at for each in scanned.tracebacks if not (each.launcher or each.handled or each.logged)}
    # what was said before a rank ended, because it had lost another one, does not tell of a good end
    since = max((hit.line.at for hit in case.echoes if hit.line.at in uncaught), default=-1)
    own_lines = [line for line in scanned.lines[-400:] if line.at not in spoken_of and line.at > since]
    codes = {hit.signature.code for hit in scanned.hits}  # an agent whose ranks succeeded; an interpreter shutting down
    left = "rendezvous-shutdown" in codes or ("teardown-noise" in codes and not case.complaining)
    if not (case.failed or cut) and (left or ended_well(own_lines, bool(case.complaining))):
        return None
    return RootCause("unknown", case._replace(failures=()), cut=cut)


def passed_over(case: Case) -> Failure | None:
    """Return the last error that would have ended the run if its work had not continued; for logs without a failure."""
    survived = (failure for failure in case.failures if failure.fate == "survived" and failure.tier <= Tier.GENERAL)
    ends = (failure for failure in survived if not (failure.logged or failure.survivor or failure.quoted))
    return max(ends, key=lambda failure: failure.line.at, default=None)


def _left_early(case: Case) -> RootCause | None:
    """Return the cause "rank-left-early", or None.

    By the record, a rank ended with status 0 before the first one failed, and that one only lost or awaited another.
    """
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
    line = own_wait.line if own_wait else line
    departure = Left(tuple(end.rank for end in ranks_that_left), first.rank, call, frame, line)
    rank, host = (ranks_that_left[0].rank, ranks_that_left[0].host) if len(ranks_that_left) == 1 else (None, None)
    return RootCause("rank-left-early", case, rank, host, left=departure)


def _exit_explains(ended: BareExit | None, best: Failure) -> bool:
    """Return whether the exit, not the failure ``best``, is the cause.

    A rank that died of a signal explains timeouts and lost connections of the others. An abort or a plain exit status
    says less than any line that is more than a hint.
    """
    if ended is None:
        return False
    if ended.code in ("unknown", "aborted"):
        return best.standing >= Tier.HINT
    return best.standing >= Tier.SURVIVED


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
        rank = None  # it is either rank's fault, or comes from outside
    else:
        rank = _rank_of(best, case)
    dumped = (
        () if best.calls else dumped_calls(scanned.lines[best.line.at - scanned.lines[0].at :], case.facts.just_ended)
    )
    return RootCause(code, case, rank, best.speaker.host, best, mismatched=pair, dumped=dumped)


def _of_exit(ended: BareExit, case: Case) -> RootCause:
    scanned = case.scanned
    same = (end for end in scanned.exits if end.code == ended.exit.code and not end.by_agent)
    alike = {recorded.exit_rank(end, scanned) for end in same}
    if ended.exit.seen and ended.exit.rank not in case.complaining:
        alike -= case.complaining  # those ended because of this rank
    rank = recorded.exit_rank(ended.exit, scanned) if len(alike) <= 1 else None
    first = scanned.lines[0].at if scanned.lines else 0
    own_calls = (dumped_calls(scanned.lines[line.at - first :], case.facts.just_ended) for line in ended.said)
    dumped = next(filter(None, own_calls), ())
    return RootCause(code_with_words(ended), case, rank, ended.exit.host, ended=ended, dumped=dumped)


def _with_memory_facts(cause: RootCause) -> RootCause:
    """Return memory as the cause of SIGKILL or SIGBUS if the kernel, the cgroup or /dev/shm says that it ran out."""
    exit_code = None if cause.ended is None else cause.ended.exit.code
    memory_words = recorded.memory_says(cause.code, exit_code, cause.case.facts)
    return cause if memory_words is None else replace(cause, code=memory_words[0], outside=memory_words[1])


def _own_where_nobody_else_failed(case: Case) -> list[Failure]:
    """Return the failures that the work did not survive.

    A lost connection or process is the rank's own failure if no other rank can be the reason: by the record, if this
    rank failed first; by a log alone, if only this rank complains.
    """
    candidates = [failure for failure in case.failures if failure.fate != "survived"]
    first = recorded.first_by_itself(case.facts)
    speakers = {failure.speaker for failure in candidates if failure.standing < Tier.HINT}
    speakers |= {hit.line.speaker for hit in of_peers(case.echoes)}
    alone = len(speakers) <= 1 and all(failure.maybe_own for failure in candidates if failure.survivor)

    def is_own(failure: Failure) -> bool:
        came_first = alone if first is None else failure.speaker.rank == first.rank
        return failure.maybe_own and came_first and failure.fate == "fatal" and not failure.logged

    return [
        replace(failure, tier=Tier.GENERAL, side=False, survivor=False) if is_own(failure) else failure
        for failure in candidates
    ]


def _rank_of(best: Failure, case: Case) -> int | None:
    """Return the only rank that shows the cause; None if several do, or none is known."""
    same = [failure for failure in case.failures if (failure.code, failure.standing) == (best.code, best.standing)]
    ranks = {_own_rank(failure, case.scanned) for failure in same} - {None}
    if ranks:
        return ranks.pop() if len(ranks) == 1 else None
    if len({failure.speaker for failure in same}) > 1:
        return None
    by_exit = recorded.only_failed_rank(case.scanned)
    return by_exit if by_exit is not None else case.waits.only_silent(case.complaining)


def _own_rank(failure: Failure, scanned: Scanned) -> int | None:
    """Return the rank that a failure names, or else that printed it."""
    speaker, groups = failure.speaker, failure.groups
    if groups.get("culprit", "").isdecimal():
        return int(groups["culprit"])
    if speaker.rank is not None:
        return speaker.rank
    named = int(groups["pid"]) if groups.get("pid", "").isdecimal() else None
    ranks = (recorded.rank_of_pid(pid, scanned) for pid in (named, speaker.pid) if pid is not None)
    by_pid = next((rank for rank in ranks if rank is not None), None)
    return speaker.local if by_pid is None and speaker.host is None else by_pid
