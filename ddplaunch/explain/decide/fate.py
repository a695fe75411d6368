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

from ddplaunch.explain.decide.collectives import Stuck, stuck
from ddplaunch.explain.decide.failures import Failure, Fate, failures, of_peers
from ddplaunch.explain.decide.recorded import ended_later, only_failed_rank
from ddplaunch.explain.decide.work import GOES_ON, Work, said_done, says_failed
from ddplaunch.explain.diagnosis import RunFacts
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.explain.read.scan import Hit, Scanned
from ddplaunch.explain.read.traceback import Traceback
from ddplaunch.explain.signatures.signature import Tier

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
    facts: RunFacts
    failed: bool
    failures: Sequence[Failure]
    echoes: Sequence[Hit]
    waits: Stuck

    @property
    def complaining(self) -> frozenset[int | None]:
        """The ranks that complain of others."""
        return frozenset(hit.line.speaker.rank for hit in of_peers(self.echoes))


Holds = Callable[[Failure], bool]


def _of_others(failure: Failure) -> bool:
    """Return whether a library, the kernel or a scheduler says it, and not the program itself."""
    return failure.signature.kind == "by-others" or _VOICES.search(failure.line.text) is not None


def _caught(failure: Failure) -> bool:
    """Return whether a program tells in its own words of an exception."""
    return failure.raised is None and not _of_others(failure) and _CAUGHT.match(failure.line.text) is not None


def announced_and_passed_over(case: Case) -> Holds:
    """The program said that it goes on, or named an exception, and printed more before anything else went wrong."""
    lines = [failure.line for failure in case.failures if not failure.logged] + [hit.line for hit in case.echoes]
    bad = sorted(line.at for line in (*lines, *(end.line for end in case.scanned.exits)))

    def holds(failure: Failure) -> bool:
        place = bisect.bisect_right(bad, failure.line.at)
        until = bad[place] if place < len(bad) else case.scanned.lines[-1].at + 1
        bare_words = failure.bare and not failure.is_known and failure.speaker.rank is None
        return (failure.logged or bare_words or _caught(failure)) and case.work.said_between(
            failure.line, until
        ) >= GOES_ON

    return holds


def of_an_earlier_attempt(case: Case) -> Holds:
    """The ranks were started again after it, and nothing says that the run failed."""
    begun = max((end.line.at for end in case.scanned.exits if not end.by_agent), default=-1)
    return lambda failure: not case.failed and failure.line.at <= begun


def work_went_on(case: Case) -> Holds:
    """Steps or the word that all is done follow it, and nothing says that the run failed."""

    def holds(failure: Failure) -> bool:
        resumed = failure.code in OUTSIDE and case.work.began_again(failure.line)
        ends = not failure.logged and (failure.raised is not None or failure.code not in _SKIPPED)
        return case.work.went_on(failure.line, ends, failure.logged or resumed)

    return (lambda failure: False) if case.failed else holds


def beside_work_that_is_done(case: Case) -> Holds:
    """A thread raised it, or Python warned of it, and the last lines say that the work is done."""
    is_done = not case.failed and said_done(case.scanned.lines, 30, once=True)

    def holds(failure: Failure) -> bool:
        beside_the_work = failure.side or _WARNED.search(failure.line.text) is not None
        return is_done and beside_the_work and failure.code not in OUTSIDE

    return holds


def quoted_in_work_that_did_not_fail(case: Case) -> Holds:
    """The line repeats what somebody else printed, and nothing says that the run failed."""
    return lambda failure: not case.failed and failure.raised is None and failure.quoted


def quoted(case: Case) -> Holds:
    """The line repeats what somebody else printed."""
    return lambda failure: failure.quoted


def caught_and_logged(case: Case) -> Holds:
    """The exception was printed by a logger, as a warning, or from within code that had caught it."""
    return lambda failure: (
        (failure.logged and failure.raised is not None) or _WARNED.search(failure.line.text) is not None
    )


def steps_followed(case: Case) -> Holds:
    """The same rank reported several more steps."""
    return lambda failure: case.work.steps_after(failure.line)


def at_start_and_started(case: Case) -> Holds:
    """It ends ranks before their first step, and a step follows it."""
    return lambda failure: failure.signature.kind == "at-start" and case.work.started_after(failure.line)


def stopped_by_the_launcher(case: Case) -> Holds:
    """By the record, the rank ended well, or the launcher ended it after another one had failed."""
    ranks = ended_later(case.facts, case.complaining - {failure.speaker.rank for failure in case.failures})
    return lambda failure: failure.speaker.rank in ranks


def older_than_the_exception_that_ended_its_rank(case: Case) -> Holds:
    """The same rank printed another exception later, and then no more; words of libraries come before theirs."""
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


def _unsigned(failure: Failure) -> bool:
    return failure.speaker.rank is None and failure.raised is None and not _of_others(failure)


def _places_of_failures(case: Case) -> tuple[list[int], list[int]]:
    """Return where exceptions are printed that ended ranks, and what waited for a rank that had failed by then."""
    fatal = [failure for failure in case.failures if failure.fate == "fatal"]
    raised = [failure for failure in fatal if failure.raised is not None and failure.tier <= Tier.UNCERTAIN]
    whole = [failure.line.at for failure in raised if not failure.bare or failure.tier <= Tier.GENERAL]
    return whole, [failure.line.at for failure in fatal if failure.tier == Tier.SYMPTOM]


def after_the_failure(case: Case) -> Holds:
    """Nobody signs it, and it stands below a failure that tells more."""
    raised, waits = _places_of_failures(case)
    first = min((*raised, *waits), default=math.inf)
    return lambda failure: _unsigned(failure) and failure.line.at > first and failure.signature.kind != "at-start"


def of_something_else(case: Case) -> Holds:
    """Nobody signs it, and it stands below an exit, or above an exception that it tells of or that steps came before.

    So does all that nobody signs where the only rank that failed has raised an exception of its own.
    """
    raised, waits = _places_of_failures(case)
    exits = [end.line.at for end in case.scanned.exits if not end.by_agent]
    over, last = min((*raised, *waits, *exits), default=math.inf), max(raised, default=-1)
    only = only_failed_rank(case.scanned)
    alone = any(failure.speaker.rank == only is not None and _is_own(failure) for failure in case.failures)

    def holds(failure: Failure) -> bool:
        if not _unsigned(failure) or alone or failure.line.at > over:
            return _unsigned(failure)
        step = case.work.reports_a_step(failure.line)
        told = _COMPLAINS.match(failure.line.text) or _CAUGHT.match(failure.line.text)
        return failure.line.at < last and (bool(told) or (step is not None and step.at < last))

    return holds


def _is_own(failure: Failure) -> bool:
    """Return whether it is an exception of the script that ended its rank."""
    return failure.fate == "fatal" and failure.tier == Tier.GENERAL and not (failure.is_known or failure.bare)


def explained_by_another(case: Case) -> Holds:
    """Another failure of the log leads to it."""
    codes = {failure.code for failure in case.failures if failure.fate in ("fatal", "doubtful")}

    def holds(failure: Failure) -> bool:
        of_gpu = not failure.is_known and failure.raised is not None and _OF_A_GPU.search(failure.raised.message)
        return not codes.isdisjoint(_FOLLOWS["cuda-unavailable"] if of_gpu else _FOLLOWS.get(failure.code, ()))

    return holds


def named_beside(case: Case) -> Holds:
    """The same rank names its specific cause close by.

    An abort is no such cause, nor is an end that is reported after it: an interpreter that ends by an exception while
    native threads run often aborts, and launchers end what is left.
    """
    named: dict[Speaker, list[tuple[int, bool]]] = {}
    for failure in case.failures:
        if failure.is_known and failure.fate == "fatal" and not (failure.is_hint or failure.code in ABORTS):
            named.setdefault(failure.speaker, []).append((failure.line.at, failure.code in _ENDS))
    return lambda failure: (
        not failure.is_known
        and any(
            abs(at - failure.line.at) <= _NEAR and not (ends and at > failure.line.at)
            for at, ends in named.get(failure.speaker, ())
        )
    )


def after_an_end_from_outside(case: Case) -> Holds:
    """The run was asked to end before, or it was asked because this had failed.

    A launcher that reports a failed rank saw it fail before its own end, wherever printed. A time limit warns by
    signals.
    """
    fatal = [failure for failure in case.failures if failure.fate == "fatal"]
    outside = [failure.line.at for failure in fatal if failure.code in OUTSIDE and not failure.is_hint]
    own_exits = [end for end in case.scanned.exits if not end.by_agent and end.code not in _ASKED_TO_END]
    cancelled = min((failure.line.at for failure in fatal if " CANCELLED AT " in failure.line.text), default=math.inf)
    reported = any(not (end.table or ("srun: " in end.line.text and cancelled < end.line.at)) for end in own_exits)
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


#: In this order: the first rule that holds for a failure decides what became of it.
RULES: tuple[tuple[Fate, Callable[[Case], Holds]], ...] = (
    ("survived", announced_and_passed_over),
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
    ("echo", explained_by_another),
    ("echo", named_beside),
    ("echo", after_an_end_from_outside),
)
#: Rules whose failures are told as what followed.
FOLLOWED = frozenset(("explained_by_another", "after_an_end_from_outside"))


def with_fates(scanned: Scanned, facts: RunFacts) -> Case:
    """Return the case with the fate of each failure, and without the echoes of attempts that the work survived."""
    work, (found, echoes) = Work(scanned.lines), failures(scanned)
    case = Case(scanned, work, facts, says_failed(scanned, work, facts), found, echoes, stuck(scanned))
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
    last = max((hit.line for hit in echoes), key=lambda line: line.at, default=None)
    begun = max((end.line.at for end in scanned.exits if not end.by_agent), default=-1)
    is_over = last is None or last.at < begun or work.went_on(last, uncaught=True)
    return case if case.failed or not is_over else case._replace(echoes=())
