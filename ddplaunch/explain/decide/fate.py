"""Did this failure end its run? One ordered list of named rules, of which the first that holds decides.

A rule is given the case, with the fates that the rules above it have decided, and returns the question that it asks of
each failure that is still taken for fatal. Its name is the reason that ``ddplaunch explain --why`` prints.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ddplaunch.explain.decide.failures import Failure, Fate, of_peers
from ddplaunch.explain.decide.recorded import ended_later, only_failed_rank
from ddplaunch.explain.decide.work import GOES_ON, Work, said_done, says_failed
from ddplaunch.explain.diagnosis import RunFacts
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.explain.read.scan import Hit, Scanned
from ddplaunch.explain.read.traceback import Traceback
from ddplaunch.explain.signatures.signature import AT_START, BY_OTHERS, Tier

#: Codes of ends that tell nothing of their reason.
BARE = frozenset(("killed", "aborted", "terminated"))
#: Codes of an end from outside. It may interrupt anything, and what is printed after it follows from it.
OUTSIDE = frozenset(("terminated", "time-limit"))
#: Codes that may be printed after an end from outside and still be its reason.
_REASONS = frozenset(("host-out-of-memory", "scheduler-error", "time-limit"))
#: What an interpreter may print after its exception, where native threads still run.
ABORTS = frozenset(("aborted", "aborted-at-exit"))
#: How processes end that a launcher, a scheduler or a shell stops, or that crash, once another one has failed.
_ENDS = frozenset(("killed", "terminated", "segmentation-fault"))
#: Codes of parts of the data that programs pass over, and print so.
_SKIPPED = frozenset(("data-corrupt", "dataset-missing", "download-failed"))
#: Codes that follow from another one: a rank misses data that another one tries to fetch, and so on.
_FOLLOWS = {
    "dataset-missing": ("dataset-race", "download-failed"),
    "cuda-unavailable": ("driver-too-old", "fabric-manager-down"),
    "rendezvous-failed": ("host-name-unresolvable",),
    "aborted": ("aborted-at-exit",),
}
#: What says of a machine without a usable GPU what it cannot do then.
_OF_A_GPU = re.compile(r"(?i)\b(?:bf16|fp16|gpus?|cuda|supported device)\b")
#: How libraries, compilers and the processes that a rank starts speak, before the exception that follows from it.
_VOICES = re.compile(
    r"NCCL (?:WARN|INFO)|^\[?[EWF]\d* |^\[.*\]\[?[EWF]|\.(?:c|cpp|cc|cu|h|hpp|cuh):\d+|^ERROR: "
    r"|terminate called|what\(\):"
)
_COMPLAINS = re.compile(r"^\S+: line \d+: (?!\d+ )")  # a shell; with a number it tells of a process that was killed
#: What a program says of an exception that it has caught; no level alone stands in front of it.
_CAUGHT = re.compile(r"(?!\W*(?:ERROR|FATAL|CRITICAL|Error|error)\b)\S+ .*\b[A-Z]\w*(?:Error|Exception)\b")
_WARNED = re.compile(r"\.py:\d+: \w*Warning: ")  # by Python's warnings
#: Exit statuses of ranks that were asked to end.
_ASKED_TO_END = (-15, -2, -1, 143, 130, 129)
_NEAR = 40  # an exception and the line that names its cause are not further apart


class Case(NamedTuple):
    """What the rules look at; ``failures`` have the fates that are decided so far."""

    scanned: Scanned
    work: Work
    facts: RunFacts | None
    failed: bool
    failures: Sequence[Failure]
    echoes: Sequence[Hit]


Holds = Callable[[Failure], bool]


def _caught(each: Failure) -> bool:
    """Return whether a program tells in its own words of an exception."""
    own = each.raised is None and each.code not in BY_OTHERS and not _VOICES.search(each.line.text)
    return own and _CAUGHT.match(each.line.text) is not None


def announced_and_passed_over(case: Case) -> Holds:
    """The program said that it goes on, or named an exception, and printed more before anything else went wrong."""
    lines = [each.line for each in case.failures if not each.logged] + [hit.line for hit in case.echoes]
    bad = sorted(line.at for line in (*lines, *(end.line for end in case.scanned.exits)))

    def holds(each: Failure) -> bool:
        place = bisect.bisect_right(bad, each.line.at)
        until = bad[place] if place < len(bad) else case.scanned.lines[-1].at + 1
        told = each.bare and each.signature is None and each.speaker.rank is None
        return (each.logged or told or _caught(each)) and case.work.said_between(each.line, until) >= GOES_ON

    return holds


def announced_and_a_step_followed(case: Case) -> Holds:
    """The program said that it goes on, and reported a step, before it failed."""
    return lambda each: case.failed and each.logged and case.work.went_on(each.line, announced=True)


def of_an_earlier_attempt(case: Case) -> Holds:
    """The ranks were started again after it, and nothing says that the run failed."""
    begun = max((end.line.at for end in case.scanned.exits if not end.by_agent), default=-1)
    return lambda each: not case.failed and each.line.at <= begun


def work_went_on(case: Case) -> Holds:
    """Steps or the word that all is done follow it, and nothing says that the run failed."""

    def holds(each: Failure) -> bool:
        resumed = each.code in OUTSIDE and case.work.began_again(each.line)
        ends = not each.logged and (each.raised is not None or each.code not in _SKIPPED)
        return case.work.went_on(each.line, ends, each.logged or resumed)

    return (lambda each: False) if case.failed else holds


def beside_work_that_is_done(case: Case) -> Holds:
    """A thread raised it, or Python warned of it, and the last lines say that the work is done."""
    done = not case.failed and said_done(case.scanned.lines, 30, once=True)

    def holds(each: Failure) -> bool:
        beside = each.side or _WARNED.search(each.line.text) is not None
        return done and beside and each.code not in OUTSIDE

    return holds


def quoted_in_work_that_did_not_fail(case: Case) -> Holds:
    """The line repeats what somebody else printed, and nothing says that the run failed."""
    return lambda each: not case.failed and each.raised is None and each.hit is not None and each.hit.quoted


def quoted(case: Case) -> Holds:
    """The line repeats what somebody else printed."""
    return lambda each: each.quoted


def caught_and_logged(case: Case) -> Holds:
    """The exception was printed by a logger, as a warning, or from within code that had caught it."""
    return lambda each: (each.logged and each.raised is not None) or _WARNED.search(each.line.text) is not None


def steps_followed(case: Case) -> Holds:
    """The same rank reported several more steps."""
    return lambda each: case.work.steps_after(each.line)


def at_start_and_started(case: Case) -> Holds:
    """It ends ranks before their first step, and a step follows it."""
    return lambda each: each.code in AT_START and case.work.started_after(each.line)


def stopped_by_the_launcher(case: Case) -> Holds:
    """By the record, the rank ended well, or the launcher ended it after another one had failed."""
    complaining = frozenset(hit.line.speaker.rank for hit in of_peers(case.echoes))
    ranks = ended_later(case.facts, complaining - {each.speaker.rank for each in case.failures})
    return lambda each: each.speaker.rank in ranks


def older_than_the_exception_that_ended_its_rank(case: Case) -> Holds:
    """The same rank printed another exception later, and then no more; words of libraries come before theirs."""
    last: dict[Speaker, Traceback] = {}
    for traceback in case.scanned.tracebacks:
        if not (traceback.handled or traceback.logged or traceback.side or traceback.bare):
            last[traceback.speaker] = traceback

    def holds(each: Failure) -> bool:
        final = last.get(each.speaker)
        if final is None or each.speaker.rank is None or _VOICES.search(each.line.text):
            return False
        if each.of_worker and (final.in_loader or final.lost_worker):
            return False
        return final.parts[0].first > each.line.at

    return holds


class _Ended(NamedTuple):
    """Where the last exception is printed of the only rank that failed, of any, of any with its traceback; -1 for none.

    Of what nobody signs nothing counts below ``over``, the first exit or other failure; below ``explained``, a failure
    that tells more than an exit, it is not even kept as a possible cause.
    """

    of_only_rank: int
    raised: int
    uncaught: int
    over: int
    explained: int


def _ended(case: Case) -> _Ended:
    only = only_failed_rank(case.scanned)
    fatal = [each for each in case.failures if each.fate == "fatal"]
    own = [each for each in fatal if each.raised is not None and each.tier <= Tier.GENERAL]
    whole = [each for each in own if each.signature is not None or not each.bare]
    of_only = [each for each in whole if each.signature is None and each.speaker.rank == only is not None]
    waits = [each for each in fatal if each.tier == Tier.SYMPTOM]  # for a rank that had failed by then
    known = [each.line.at for each in (*whole, *waits)]
    exits = [end.line.at for end in case.scanned.exits if not end.by_agent]
    below = case.scanned.lines[-1].at + 1 if case.scanned.lines else 0
    signed = [
        each for each in fatal if each.signature and each.raised and each.tier == Tier.UNCERTAIN and not each.bare
    ]
    of_only_rank, raised, uncaught = (
        max((each.line.at for each in kind), default=-1) for kind in (of_only, own, (*whole, *signed))
    )
    return _Ended(of_only_rank, raised, uncaught, min((*known, *exits), default=below), min(known, default=below))


def _unsigned(each: Failure) -> bool:
    by_others = each.code in BY_OTHERS or _VOICES.search(each.line.text) is not None
    return each.speaker.rank is None and each.raised is None and not by_others


def after_the_failure(case: Case) -> Holds:
    """Nobody signs it, and it stands below a failure that tells more."""
    ended = _ended(case)
    return lambda each: _unsigned(each) and each.line.at > ended.explained and each.code not in AT_START


def of_something_else(case: Case) -> Holds:
    """Nobody signs it, and an exception that ended a rank is printed below it, or an exit stands above it."""
    ended = _ended(case)

    def holds(each: Failure) -> bool:
        if not _unsigned(each):
            return False
        caught = (
            ended.raised
            if _COMPLAINS.match(each.line.text)
            else ended.uncaught
            if _CAUGHT.match(each.line.text)
            else -1
        )
        return ended.of_only_rank >= 0 or each.line.at > ended.over or each.line.at < caught

    return holds


def a_step_before_the_exception(case: Case) -> Holds:
    """Nobody signs it, and a step stands between it and the exception that ended a rank."""
    uncaught = _ended(case).uncaught

    def holds(each: Failure) -> bool:
        if each.speaker.rank is not None or each.code in BY_OTHERS or _VOICES.search(each.line.text):
            return False
        step = case.work.reports_a_step(each.line) if each.line.at < uncaught else None
        return step is not None and step.at < uncaught

    return holds


def explained_by_another(case: Case) -> Holds:
    """Another failure of the log leads to it."""
    codes = {each.code for each in case.failures if each.fate in ("fatal", "doubtful")}

    def holds(each: Failure) -> bool:
        of_gpu = each.signature is None and each.raised is not None and _OF_A_GPU.search(each.raised.message)
        return not codes.isdisjoint(_FOLLOWS["cuda-unavailable"] if of_gpu else _FOLLOWS.get(each.code, ()))

    return holds


def ended_by_its_launcher(case: Case) -> Holds:
    """The launcher reports there that it ended a rank."""
    reports = {end.line.at for end in case.scanned.exits if end.by_agent}
    return lambda each: each.code == "killed" and each.line.at in reports


def named_beside(case: Case) -> Holds:
    """The same rank names its specific cause close by.

    An abort is no such cause, nor is an end that is reported after it: an interpreter that ends by an exception while
    native threads run often aborts, and launchers end what is left.
    """
    named: dict[Speaker, list[tuple[int, bool]]] = {}
    for each in case.failures:
        if each.signature and each.fate == "fatal" and not (each.is_hint or each.code in ABORTS):
            named.setdefault(each.speaker, []).append((each.line.at, each.code in _ENDS))
    return lambda each: (
        each.signature is None
        and any(
            abs(at - each.line.at) <= _NEAR and not (ends and at > each.line.at)
            for at, ends in named.get(each.speaker, ())
        )
    )


def after_an_end_from_outside(case: Case) -> Holds:
    """The run was asked to end before, or it was asked because this had failed.

    A launcher that reports a failed rank saw it fail before its own end, wherever printed. A time limit warns by
    signals.
    """
    found = [each for each in case.failures if each.fate == "fatal"]
    outside = [each.line.at for each in found if each.code in OUTSIDE and not each.is_hint]
    own = [end for end in case.scanned.exits if not end.by_agent and end.code not in _ASKED_TO_END]
    cancelled = min((each.line.at for each in found if " CANCELLED AT " in each.line.text), default=math.inf)
    reported = any(not (end.table or ("srun: " in end.line.text and cancelled < end.line.at)) for end in own)
    end = math.inf if reported else min(outside, default=math.inf)
    causes = (each for each in found if each.code not in OUTSIDE and each.line.at < end)
    failed_before = any(each.tier <= Tier.GENERAL for each in causes)
    limited = any(each.code == "time-limit" and each.tier == Tier.CAUSE for each in found)
    first_exit = min((end.line.at for end in own), default=math.inf)

    def holds(each: Failure) -> bool:
        if each.code == "terminated":
            return failed_before or limited or each.line.at > first_exit
        return each.code not in OUTSIDE | _REASONS and each.line.at > end

    return holds if outside else (lambda each: False)


#: In this order: the first rule that holds for a failure decides what became of it.
RULES: tuple[tuple[Fate, Callable[[Case], Holds]], ...] = (
    ("survived", announced_and_passed_over),
    ("survived", announced_and_a_step_followed),
    ("survived", of_an_earlier_attempt),
    ("survived", work_went_on),
    ("survived", beside_work_that_is_done),
    ("survived", quoted_in_work_that_did_not_fail),
    ("survived", steps_followed),
    ("doubtful", quoted),
    ("doubtful", caught_and_logged),
    ("doubtful", at_start_and_started),
    ("doubtful", stopped_by_the_launcher),
    ("doubtful", older_than_the_exception_that_ended_its_rank),
    ("echo", after_the_failure),
    ("doubtful", of_something_else),
    ("doubtful", a_step_before_the_exception),
    ("echo", ended_by_its_launcher),
    ("echo", explained_by_another),
    ("echo", named_beside),
    ("echo", after_an_end_from_outside),
)
#: Rules whose failures are told as what followed.
FOLLOWED = frozenset(("explained_by_another", "after_an_end_from_outside"))


def with_fates(
    scanned: Scanned, work: Work, facts: RunFacts | None, found: Sequence[Failure], echoes: Sequence[Hit]
) -> Case:
    """Return the case with the fate of each failure, and without the echoes of attempts that the work survived."""
    case = Case(scanned, work, facts, says_failed(scanned, work, facts), found, echoes)
    for fate, rule in RULES:
        holds = rule(case)
        case = case._replace(
            failures=[
                replace(each, fate=fate, reason=rule.__name__) if each.fate == "fatal" and holds(each) else each
                for each in case.failures
            ]
        )
    last = max((hit.line for hit in echoes), key=lambda line: line.at, default=None)
    begun = max((end.line.at for end in scanned.exits if not end.by_agent), default=-1)
    over = last is None or last.at < begun or work.went_on(last, uncaught=True)
    return case if case.failed or not over else case._replace(echoes=())
