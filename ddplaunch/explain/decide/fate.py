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
from ddplaunch.explain.decide.recorded import ended_later
from ddplaunch.explain.decide.work import GOES_ON, Work, says_failed
from ddplaunch.explain.diagnosis import RunFacts
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.explain.read.scan import Hit, Scanned
from ddplaunch.explain.read.traceback import Traceback
from ddplaunch.explain.signatures.signature import AT_START, Tier

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
#: How libraries, compilers and the processes that a rank starts speak, before the exception that follows from it.
_VOICES = re.compile(
    r"NCCL (?:WARN|INFO)|^\[?[EWF]\d* |^\[.*\]\[?[EWF]|\.(?:c|cpp|cc|cu|h|hpp|cuh):\d+|^ERROR: "
    r"|terminate called|what\(\):"
)
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


def announced_and_passed_over(case: Case) -> Holds:
    """The program said that it goes on, and printed more before anything else went wrong."""
    lines = [each.line for each in case.failures if not each.logged] + [hit.line for hit in case.echoes]
    bad = sorted(line.at for line in (*lines, *(end.line for end in case.scanned.exits)))

    def holds(each: Failure) -> bool:
        place = bisect.bisect_right(bad, each.line.at)
        until = bad[place] if place < len(bad) else case.scanned.lines[-1].at + 1
        return each.logged and case.work.said_between(each.line, until) >= GOES_ON

    return holds


def work_went_on(case: Case) -> Holds:
    """Steps, the word that all is done, or a start of the ranks follow it, and nothing says that the run failed."""
    begun = max((end.line.at for end in case.scanned.exits if not end.by_agent), default=-1)

    def holds(each: Failure) -> bool:
        if each.line.at <= begun:
            return True
        ends = not each.logged and (each.raised is not None or each.code not in _SKIPPED)
        return case.work.went_on(each.line, ends, each.logged)

    return (lambda each: False) if case.failed else holds


def steps_followed(case: Case) -> Holds:
    """The same rank reported several more steps."""
    return lambda each: case.work.steps_after(each.line)


def quoted(case: Case) -> Holds:
    """The line repeats what somebody else printed."""
    return lambda each: each.quoted


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


def explained_by_another(case: Case) -> Holds:
    """Another failure of the log leads to it."""
    codes = {each.code for each in case.failures if each.fate in ("fatal", "doubtful")}
    return lambda each: not codes.isdisjoint(_FOLLOWS.get(each.code, ()))


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
    ("survived", work_went_on),
    ("survived", steps_followed),
    ("doubtful", quoted),
    ("doubtful", at_start_and_started),
    ("doubtful", stopped_by_the_launcher),
    ("doubtful", older_than_the_exception_that_ended_its_rank),
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
    left = any(hit.signature.code == "rendezvous-shutdown" for hit in echoes)  # an agent whose ranks succeeded
    over = left or last is None or last.at < begun or work.went_on(last, uncaught=True)
    over = over or (last is not None and work.is_done(last.file, {hit.line.at for hit in echoes}))
    return case if case.failed or not over else case._replace(echoes=())
