"""Decides what may have ended a run, and whether it did: one failure per signature or exception, judged by rules.

The rules are an ordered list; the first one that holds for a failure decides its fate. A rule gets the case, with the
fates decided by the rules before it, and returns a predicate for the failures that are still considered fatal. Its name
is the reason that ``ddplaunch explain --why`` prints.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal, NamedTuple

from ddplaunch.explain.decide.collectives import Stuck, stuck
from ddplaunch.explain.decide.recorded import ended_later
from ddplaunch.explain.decide.work import ENOUGH, GOES_ON, Work, said_done, says_failed
from ddplaunch.explain.diagnosis import Raised, RunFacts, UserCall
from ddplaunch.explain.read.lines import Line, announced_in
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.explain.read.scan import Hit, Scanned
from ddplaunch.explain.read.traceback import ChainedException, Traceback
from ddplaunch.explain.signatures import Signature, Tier, filled, patterns
from ddplaunch.values.frozen import dataclass

#: "fatal": it may have ended its rank. "doubtful": it only counts if nothing fatal is known. "survived": the work
#: continued. "echo": it follows from another failure.
Fate = Literal["fatal", "doubtful", "survived", "echo"]

#: Exceptions that something else caused, by groups: launcher, started, lost, peer and ended.
(_CAUSED,) = patterns("exceptions-caused")
#: Codes of echoes that may also be about a process that the rank started itself.
_STARTED_ECHOES = frozenset(("worker-lost", "launcher-summary"))
_WRAPPED = ("NCCL error in: ", "NCCL communicator was aborted", "NCCL Error ")  # only wrap what NCCL printed before
_SAID = 160
#: The signature of an exception that no rule of the families matches.
UNKNOWN = Signature("script-exception", Tier.GENERAL)


@dataclass(frozen=True)
class Failure:
    """One possible root cause: a match of a ``signature``, or an exception that no signature knows (``UNKNOWN``).

    ``speaker`` is the rank that failed, which may not be the rank that printed ``line``. ``groups`` are those of the
    signature's pattern; ``raised`` is the exception and ``calls`` led to it; ``reason`` explains the fate. ``quoted``:
    the line repeats another program's output. ``side``: raised in a thread, or possibly because of other ranks.
    ``survivor``: raised because of other ranks, or, if ``maybe_own``, because of another process. ``logged``: printed
    as a warning. ``bare``: its traceback is not in the log.
    """

    tier: Tier
    line: Line
    speaker: Speaker
    signature: Signature = UNKNOWN
    groups: Mapping[str, str] = field(default_factory=dict)
    raised: Raised | None = None
    quoted: bool = False
    side: bool = False
    survivor: bool = False
    logged: bool = False
    maybe_own: bool = False
    calls: tuple[UserCall, ...] = ()
    bare: bool = False
    fate: Fate = "fatal"
    reason: str = ""

    @property
    def code(self) -> str:
        """The code of the signature; ``script-exception`` for an exception that no signature knows."""
        return self.signature.code

    @property
    def is_known(self) -> bool:
        """Whether a signature matches the failure."""
        return self.signature is not UNKNOWN

    @property
    def words(self) -> str:
        """The signature's text for it, or the exception in at most 160 characters."""
        if self.raised is None or self.is_known:
            return filled(self.signature.what, self.groups)
        return f"{self.raised.type}: {self.raised.message}"[:_SAID]

    @property
    def is_hint(self) -> bool:
        """Whether the signature only supports a cause of its code."""
        return self.tier == Tier.HINT

    @property
    def standing(self) -> Tier:
        """How far the failure can be trusted: its tier, reduced if its fate is not "fatal"."""
        if self.fate == "fatal":
            return self.tier
        if self.fate == "echo" or self.tier > Tier.SURVIVED:
            return Tier.ECHO
        return Tier.UNCERTAIN if self.tier == Tier.CAUSE else Tier.SURVIVED


def of_peers(echoes: Sequence[Hit]) -> list[Hit]:
    """Return the echoes that are about a lost or missing rank."""
    return [hit for hit in echoes if hit.signature.kind != "noise"]


def failures(scanned: Scanned) -> tuple[list[Failure], list[Hit]]:
    """Return the failures that may have ended the run, and the echoes."""
    by_line: dict[int, list[Hit]] = {}
    for hit in scanned.hits:
        by_line.setdefault(hit.line.at, []).append(hit)
    found: list[Failure] = []
    echoes: list[Hit] = []
    for traceback in scanned.tracebacks:
        shown = None if traceback.handled else _of_traceback(traceback, by_line)
        if isinstance(shown, Failure):
            found.append(replace(shown, calls=traceback.calls))
        elif shown is not None:
            echoes.append(shown)
    inside = {at for traceback in scanned.tracebacks for at in _lines_of(traceback, scanned)}
    for hit in scanned.hits:
        if hit.line.at in inside:
            continue
        if hit.signature.tier == Tier.ECHO:
            echoes.append(hit)
        elif hit is by_line[hit.line.at][0]:
            failure = _of_hit(hit, hit.line.speaker)
            found.append(replace(failure, logged=announced_in(hit.line.text)))
    return found, echoes


def _lines_of(traceback: Traceback, scanned: Scanned) -> Iterator[int]:
    """Yield the positions of a traceback's lines, without lines of other speakers in between."""
    base = scanned.lines[0].at
    who = traceback.parts[0].line.speaker
    for part in traceback.parts:
        for at in range(part.first, part.line.at + 1):
            if scanned.lines[at - base].speaker == who:
                yield at


def _of_traceback(traceback: Traceback, by_line: dict[int, list[Hit]]) -> Failure | Hit | None:
    """Return the best signature in a chain of exceptions, else its echo, else the exception itself.

    None for exceptions that launchers raise because ranks failed.
    """
    roots: list[tuple[Hit, ChainedException]] = []
    echo: Hit | None = None
    root = traceback.root
    for part in traceback.parts:
        cleans_up = part.link == "during" and part is not root  # `finally: dist.barrier()` waits in vain
        for hit in _hits_in(part, by_line):
            if cleans_up and hit.signature.tier >= Tier.SYMPTOM:
                continue
            if hit.signature.tier != Tier.ECHO:
                roots.append((hit, part))
            else:
                echo = echo or hit
    if roots:
        hit, part = min(roots, key=lambda pair: (pair[0].signature.tier, pair[1] is not root))
        best = _of_hit(hit, traceback.speaker, part.raised)
        return replace(best, bare=traceback.bare, logged=traceback.logged)
    bare = traceback.bare and not traceback.lost_worker
    if echo is not None and (traceback.launcher or bare or echo.signature.code not in _STARTED_ECHOES):
        return echo
    return _of_exception(traceback)


def _hits_in(part: ChainedException, by_line: dict[int, list[Hit]]) -> Iterator[Hit]:
    """Yield the signatures that match an exception's message, then those that match the calls in its traceback.

    Lines of source do not count: they raise what the message says, or quote it.
    """
    who = part.line.speaker
    for at in range(part.line.at, part.first - 1, -1):
        for hit in by_line.get(at, ()):
            counts = not hit.quoted if at == part.line.at else hit.line.text.lstrip().startswith('File "')
            if hit.line.speaker == who and counts:
                yield hit


def _of_exception(traceback: Traceback) -> Failure | None:
    """Return the failure for an exception that no signature knows."""
    raised = traceback.raised
    name = raised.type.rpartition(".")[2]
    caused = _CAUSED.fullmatch(name)
    by = caused.lastgroup if caused else None
    if by == "launcher" or (traceback.launcher and by):
        return None
    lost_rank = by == "peer" or raised.message.startswith(_WRAPPED)
    lost = by in ("lost", "started")
    by_others = lost_rank or by is not None
    tier = Tier.UNCERTAIN if traceback.side or traceback.bare or traceback.launcher else Tier.GENERAL
    return Failure(
        Tier.SYMPTOM if by_others else tier,
        traceback.root.line,
        traceback.speaker,
        raised=raised,
        quoted=traceback.speaker.quoted,
        side=traceback.side or by_others,
        survivor=lost_rank or lost,
        logged=traceback.logged,
        bare=traceback.bare,
        maybe_own=lost and not (lost_rank or traceback.side or traceback.bare),
    )


def _of_hit(hit: Hit, speaker: Speaker, raised: Raised | None = None) -> Failure:
    quoted = speaker.quoted or hit.quoted
    return Failure(hit.signature.tier, hit.line, speaker, hit.signature, hit.groups, raised, quoted)


#: Codes of ends that do not tell their reason.
BARE = frozenset(("killed", "aborted", "terminated"))
#: Codes of an end from outside. It may interrupt anything, and what is printed after it follows from it.
OUTSIDE = frozenset(("terminated", "time-limit"))
#: Codes that may be printed after an end from outside and still be its reason.
_REASONS = frozenset(("host-out-of-memory", "scheduler-error", "time-limit"))
#: Codes of what an interpreter may print after its exception if native threads are still running.
ABORTS = frozenset(("aborted", "aborted-at-exit"))
#: Codes that follow from others: for example, a rank misses data that another rank tries to download.
_FOLLOWS = {
    "dataset-missing": ("dataset-race", "download-failed"),
    "cuda-unavailable": ("driver-too-old", "fabric-manager-down"),
    "rendezvous-failed": ("host-name-unresolvable",),
    "aborted": ("aborted-at-exit",),
}
_VOICES, _COMPLAINS, _CAUGHT, _OF_A_GPU, _WARNED = patterns("voices")
#: Exit statuses of ranks that were told to end.
_ASKED_TO_END = (-15, -2, -1, 143, 130, 129)
_NEAR = 40  # most lines between an exception and the line that names its cause


class Case(NamedTuple):
    """What the rules look at; ``failures`` have the fates decided so far; ``last_exit`` is the position of its line."""

    scanned: Scanned
    work: Work
    facts: RunFacts
    failed: bool
    failures: Sequence[Failure]
    echoes: Sequence[Hit]
    waits: Stuck
    last_exit: int

    @property
    def complaining(self) -> frozenset[int | None]:
        """The ranks that complain about other ranks."""
        return frozenset(hit.line.speaker.rank for hit in of_peers(self.echoes))

    def survived(self, line: Line, uncaught: bool = True, announced: bool = False) -> bool:
        """Return whether ranks were started again after ``line``, or the work went on, in a run that did not fail."""
        return line.at <= self.last_exit or self.work.went_on(line, uncaught, announced)


Holds = Callable[[Failure], bool]


def _of_others(failure: Failure) -> bool:
    """Return whether a library, the kernel or a scheduler printed it, not the program itself."""
    return failure.signature.kind == "by-others" or _VOICES.search(failure.line.text) is not None


def announced_and_passed_over(case: Case) -> Holds:
    """The program said that it continues, or named an exception, and printed more before anything else failed."""
    lines = [failure.line for failure in case.failures if not failure.logged] + [hit.line for hit in case.echoes]
    bad = sorted(line.at for line in (*lines, *(end.line for end in case.scanned.exits)))

    def holds(failure: Failure) -> bool:
        place = bisect.bisect_right(bad, failure.line.at)
        until = bad[place] if place < len(bad) else case.scanned.lines[-1].at + 1
        bare_words = failure.bare and not failure.is_known and failure.speaker.rank is None
        # a program that reports an exception in its own words has caught it
        caught = failure.raised is None and not _of_others(failure) and _CAUGHT.match(failure.line.text)
        return bool(failure.logged or bare_words or caught) and case.work.said_between(failure.line, until) >= GOES_ON

    return holds


def work_went_on(case: Case) -> Holds:
    """Steps, or a report that the work is done, follow it, or it is quoted; and nothing says that the run failed."""
    is_done = not case.failed and said_done(case.scanned.lines, 30, once=True)

    def holds(failure: Failure) -> bool:
        beside_the_work = failure.side or _WARNED.search(failure.line.text) is not None
        return (
            (is_done and beside_the_work and failure.code not in OUTSIDE)
            or (failure.quoted and failure.raised is None and len(case.scanned.lines) > 1)
            or case.survived(failure.line, not failure.logged, failure.logged)
        )

    return (lambda failure: False) if case.failed else holds


def quoted(case: Case) -> Holds:
    """The line repeats another program's output."""
    return lambda failure: failure.quoted


def caught_and_logged(case: Case) -> Holds:
    """The exception was printed by a logger, as a warning, or by code that had caught it."""
    return lambda failure: (
        (failure.logged and failure.raised is not None) or _WARNED.search(failure.line.text) is not None
    )


def steps_followed(case: Case) -> Holds:
    """Several more steps were reported; two reports, where only a rank that has not begun ends so."""

    def holds(failure: Failure) -> bool:
        progress, steps = case.work.reported_after(failure.line)
        return steps >= ENOUGH or progress >= (2 if failure.signature.kind == "at-start" else 4 * ENOUGH)

    return holds


def stopped_by_the_launcher(case: Case) -> Holds:
    """By the record, the rank ended well, or the launcher ended it after another one had failed by something else."""
    ranks = ended_later(case.facts, case.complaining - {failure.speaker.rank for failure in case.failures})
    # ranks that meet the same exception print it before the launcher, which saw one of them end, ends the others
    first = {each.raised.kernel for each in case.failures if each.raised and each.speaker.rank not in ranks}
    return lambda failure: failure.speaker.rank in ranks and (failure.raised and failure.raised.kernel) not in first


def older_than_the_exception_that_ended_its_rank(case: Case) -> Holds:
    """The same rank raised another exception later and then ended; messages of libraries, which precede it, stay."""
    last: dict[Speaker, Traceback] = {}
    for traceback in case.scanned.tracebacks:
        if not (traceback.handled or traceback.logged or traceback.side or traceback.bare):
            last[traceback.speaker] = traceback

    def holds(failure: Failure) -> bool:
        final = last.get(failure.speaker)
        if final is None or failure.speaker.rank is None or _VOICES.search(failure.line.text):
            return False
        return final.parts[0].first > failure.line.at

    return holds


def told_beside_the_failure(case: Case) -> Holds:
    """No rank signs it, and it follows a failure or an exit, or only reports an exception or a shell's error."""
    fatal = [failure for failure in case.failures if failure.fate == "fatal"]
    raised = [failure for failure in fatal if failure.raised is not None and failure.tier <= Tier.UNCERTAIN]
    places = [failure.line.at for failure in raised if not failure.bare or failure.tier <= Tier.GENERAL]
    waits = [failure.line.at for failure in fatal if failure.tier == Tier.SYMPTOM]
    exits = [end.line.at for end in case.scanned.exits if not end.by_agent]
    first = min((*places, *waits, *exits), default=math.inf)

    def holds(failure: Failure) -> bool:
        unsigned = failure.speaker.rank is None and failure.raised is None and not _of_others(failure)
        told = _COMPLAINS.match(failure.line.text) or _CAUGHT.match(failure.line.text)
        return unsigned and (failure.line.at > first or (bool(places) and told is not None))

    return holds


def explained_by_another(case: Case) -> Holds:
    """Another failure in the log leads to it."""
    codes = {failure.code for failure in case.failures if failure.fate in ("fatal", "doubtful")}

    def holds(failure: Failure) -> bool:
        of_gpu = not failure.is_known and failure.raised is not None and _OF_A_GPU.search(failure.raised.message)
        return not codes.isdisjoint(_FOLLOWS["cuda-unavailable"] if of_gpu else _FOLLOWS.get(failure.code, ()))

    return holds


def named_beside(case: Case) -> Holds:
    """The same rank names its specific cause nearby.

    An abort is not such a cause: an interpreter that ends by an exception often aborts if native threads are running.
    """
    named: dict[Speaker, list[int]] = {}
    for failure in case.failures:
        if failure.is_known and failure.fate == "fatal" and not (failure.is_hint or failure.code in ABORTS):
            named.setdefault(failure.speaker, []).append(failure.line.at)
    return lambda failure: (
        not failure.is_known and any(abs(at - failure.line.at) <= _NEAR for at in named.get(failure.speaker, ()))
    )


def after_an_end_from_outside(case: Case) -> Holds:
    """The run had already been told to end; or it was told to end because this had failed.

    A launcher that reports a failed rank saw it fail before its own end, wherever that is printed. A time limit
    announces itself by signals.
    """
    fatal = [failure for failure in case.failures if failure.fate == "fatal"]
    outside = [failure.line.at for failure in fatal if failure.code in OUTSIDE and not failure.is_hint]
    own_exits = [end for end in case.scanned.exits if not end.by_agent and end.code not in _ASKED_TO_END]
    reported = any(not end.table for end in own_exits)
    end = math.inf if reported else min(outside, default=math.inf)
    causes = (failure for failure in fatal if failure.code not in OUTSIDE and failure.line.at < end)
    failed_before = any(failure.tier <= Tier.GENERAL for failure in causes)
    limited = any(failure.code == "time-limit" and failure.tier == Tier.CAUSE for failure in fatal)
    first_exit = min((end.line.at for end in own_exits), default=math.inf)

    def holds(failure: Failure) -> bool:
        if failure.code == "terminated":
            return failed_before or limited or failure.line.at > first_exit
        return failure.code not in OUTSIDE | _REASONS and failure.line.at > end

    return holds if outside else (lambda failure: False)


#: Order matters: the first rule that holds for a failure decides its fate.
RULES: tuple[tuple[Fate, Callable[[Case], Holds]], ...] = (
    ("survived", announced_and_passed_over),
    ("survived", work_went_on),
    ("survived", steps_followed),
    ("doubtful", quoted),
    ("doubtful", caught_and_logged),
    ("doubtful", stopped_by_the_launcher),
    ("doubtful", older_than_the_exception_that_ended_its_rank),
    ("doubtful", told_beside_the_failure),
    ("echo", explained_by_another),
    ("echo", named_beside),
    ("echo", after_an_end_from_outside),
)
#: Rules whose failures are reported as consequences.
FOLLOWED = frozenset(("explained_by_another", "after_an_end_from_outside"))


def with_fates(scanned: Scanned, facts: RunFacts) -> Case:
    """Return the case with the fate of each failure; without echoes if the work survived them."""
    work, (found, echoes) = Work(scanned.lines), failures(scanned)
    last_exit = max((end.line.at for end in scanned.exits if not end.by_agent), default=-1)
    case = Case(scanned, work, facts, says_failed(scanned, work, facts), found, echoes, stuck(scanned), last_exit)
    for fate, rule in RULES:
        holds = rule(case)
        case = case._replace(
            failures=[
                replace(failure, fate=fate, reason=rule.__name__)
                if failure.fate == "fatal" and holds(failure)
                else failure
                for failure in case.failures
            ]
        )
    if case.failed or (echoes and not case.survived(max((hit.line for hit in echoes), key=lambda line: line.at))):
        return case
    return case._replace(echoes=())
