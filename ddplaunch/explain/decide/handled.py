"""Errors that ended nothing: caught, quoted, older than what ended their rank, followed by more work, or explained."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from ddplaunch.explain.decide.candidates import LOST_PEER, STARTED, Candidate, survived
from ddplaunch.explain.decide.collectives import Stuck
from ddplaunch.explain.decide.progress import GOES_ON, PROGRESS, Afterwards, said_done
from ddplaunch.explain.decide.recorded import exit_rank, only_failed_rank
from ddplaunch.explain.diagnosis import Raised
from ddplaunch.explain.read.lines import Line, announced
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.explain.read.scan import Hit, Scanned, matcher, signed_rank
from ddplaunch.explain.read.traceback import Traceback
from ddplaunch.explain.signatures.signature import AT_START, BY_OTHERS, Signature, Tier

#: Codes of ends that tell nothing of their reason.
BARE = frozenset(("killed", "aborted", "terminated"))
#: Codes of an end from outside. It may interrupt anything, and what is printed after it follows from it.
OUTSIDE = frozenset(("terminated", "time-limit"))
#: What an interpreter may print after its exception, where native threads still run.
_ABORTS = frozenset(("aborted", "aborted-at-exit"))
#: How processes end that a launcher, a scheduler or a shell stops, or that crash, once another one has failed.
_ENDS = frozenset(("killed", "terminated", "segmentation-fault"))
#: Codes of parts of the data that programs pass over, and print so.
_SKIPPED = frozenset(("data-corrupt", "dataset-missing", "download-failed"))
#: How libraries, compilers and the processes that a rank starts speak, before the exception that follows from it.
_VOICES = re.compile(
    r"NCCL (?:WARN|INFO)|^\[?[EWF]\d* |^\[.*\]\[?[EWF]|\.(?:c|cpp|cc|cu|h|hpp|cuh):\d+|^ERROR: "
    r"|terminate called|what\(\):"
)
_COMPLAINS = re.compile(r"^\S+: line \d+: (?!\d+ )")  # a shell; with a number it tells of a process that was killed
#: What a program says of an exception that it has caught; no level alone stands in front of it.
_CAUGHT = re.compile(r"(?!\W*(?:ERROR|FATAL|CRITICAL|Error|error)\b)\S+ .*\b[A-Z]\w*(?:Error|Exception)\b")
_TRIES_AGAIN = re.compile(r"(?i)\W*(?:\w+: )?(?:retry(?:ing)?|try(?:ing)? again)\b")
#: Exit statuses of crashes, by SIGILL, SIGBUS, SIGFPE and SIGSEGV: no exception of another rank leads to them.
_CRASHED = (-4, -7, -8, -11, 132, 135, 136, 139)
_NEAR = 40  # an exception and the line that names its cause are not further apart
#: What says of a machine without a usable GPU what it cannot do then.
_OF_A_GPU = re.compile(r"(?i)\b(?:bf16|fp16|gpus?|cuda|supported device)\b")
#: An exception that a line names, and its message.
_NAMED = re.compile(r"\b((?:\w+\.)*[A-Z]\w*(?:Error|Exception))(?:: |\((?=['\"]))(\S.*)")
_BESIDE = 4  # lines between the last of a program and the exception that tells of its end


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


def with_handled(found: Sequence[Candidate], scanned: Scanned, after: Afterwards) -> list[Candidate]:
    """Return what is quoted, or older than the exception that ended its rank, as something that the rank survived.

    A library's own words before that exception count, and so does what another process of the rank has printed: a
    worker that it started, a compiler. What nobody signed is older than the exception of the only rank that failed, and
    a shell goes on after its complaints. A step between it and an exception that nothing caught shows that it ended
    nothing. What a program says of an exception is older than any that nothing caught.
    """
    by_launcher = {each.line.at for each in scanned.exits if each.by_agent}
    found = [each for each in found if each.code != "killed" or each.line.at not in by_launcher]
    found = [replace(survived(each), logged=True) if _is_told(each, scanned) else each for each in found]
    found = [replace(each, logged=True) if _COMPLAINS.match(each.line.text) else each for each in found]
    only = only_failed_rank(scanned)
    if any(each.code in _CRASHED and exit_rank(each, scanned) == only is not None for each in scanned.exits):
        found = [survived(each) if each.raised and each.speaker.rank not in (None, only) else each for each in found]
    last: dict[Speaker, Traceback] = {}
    for traceback in scanned.tracebacks:
        if not (traceback.handled or traceback.logged or traceback.side or traceback.bare):
            last[traceback.speaker] = traceback
    ended = _ended(found, scanned, only)

    def settled(each: Candidate) -> Candidate:
        quoted = each.speaker.quoted or (each.hit is not None and each.hit.quoted)
        nobody = each.speaker.rank is None and not quoted
        if nobody and each.code not in BY_OTHERS and not _VOICES.search(each.line.text):
            old = each.raised is None and _is_of_others(each.line, ended)
            old |= each.line.at < ended.uncaught and _steps_between(each.line, ended.uncaught, after)
        else:
            old = quoted or _is_old(each, last.get(each.speaker))
        if not old:
            return each
        if each.raised is None and each.line.at > ended.explained and each.code not in AT_START:
            return replace(each, tier=Tier.ECHO, old=True)
        return replace(survived(each), old=True)

    return [settled(each) for each in found]


def _ended(found: Sequence[Candidate], scanned: Scanned, only: int | None) -> _Ended:
    own = [each for each in found if each.raised is not None and each.tier <= Tier.GENERAL]
    whole = [each for each in own if each.signature is not None or not each.bare]
    of_only = [each for each in whole if each.signature is None and each.speaker.rank == only is not None]
    waits = [each for each in found if each.tier == Tier.SYMPTOM]  # for a rank that had failed by then
    exits = [each.line.at for each in scanned.exits if not each.by_agent]
    known = [each.line.at for each in (*whole, *waits)]
    below = scanned.lines[-1].at + 1 if scanned.lines else 0
    signed = [
        each for each in found if each.signature and each.raised and each.tier == Tier.UNCERTAIN and not each.bare
    ]
    of_only_rank, raised, uncaught = (
        max((each.line.at for each in those), default=-1) for those in (of_only, own, (*whole, *signed))
    )
    return _Ended(of_only_rank, raised, uncaught, min((*known, *exits), default=below), min(known, default=below))


def _is_of_others(line: Line, ended: _Ended) -> bool:
    """Return whether a line that nobody signed is of something else than what ended a rank."""
    if ended.of_only_rank >= 0 or line.at > ended.over:
        return True
    return line.at < (
        ended.raised if _COMPLAINS.match(line.text) else ended.uncaught if _CAUGHT.match(line.text) else -1
    )


def _steps_between(line: Line, at: int, after: Afterwards) -> bool:
    step = after.reports_a_step(line)
    return step is not None and step.at < at


def _is_told(each: Candidate, scanned: Scanned) -> bool:
    """Return whether a line only tells of an error: a program's own words, or it says next that it tries again."""
    meant = each.code in BY_OTHERS or each.code == "script-exception"  # its signature is of just such lines
    if each.logged or each.raised is not None or meant or _VOICES.search(each.line.text):
        return False
    place = each.line.at - scanned.lines[0].at + 1
    below = scanned.lines[place].text if place < len(scanned.lines) else ""
    return bool(_CAUGHT.match(each.line.text)) or bool(_TRIES_AGAIN.match(below))


def _is_old(each: Candidate, final: Traceback | None) -> bool:
    if final is None or each.speaker.rank is None or _VOICES.search(each.line.text):
        return False
    if each.of_worker and (final.in_loader or final.lost_worker):
        return False
    started = final.raised.type.rpartition(".")[2] in STARTED
    if started and each.raised is not None and final.parts[0].first - each.line.at <= _BESIDE:
        return False  # what the program said that the rank had started
    return final.parts[0].first > each.line.at


def not_survived(
    found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned, after: Afterwards, failed: bool
) -> tuple[list[Candidate], list[Hit]]:
    """Leave out errors after which the work went on: handled ones, and those of attempts that were restarted.

    Of work that ``failed`` only those of which the program said that it goes on, and that other lines followed than
    those of the failure.
    """
    lines = [each.line for each in found if not each.logged] + [hit.line for hit in echoes]
    bad = sorted(line.at for line in (*lines, *(each.line for each in scanned.exits)))

    def passed(each: Candidate) -> bool:
        place = bisect.bisect_right(bad, each.line.at)
        until = bad[place] if place < len(bad) else scanned.lines[-1].at + 1
        told = each.logged or (each.bare and each.signature is None and each.speaker.rank is None)
        return told and after.said_between(each.line, until) >= GOES_ON

    found = [each for each in found if not passed(each)]
    if failed:
        return [each for each in found if not (each.logged and after.went_on(each.line, announced=True))], list(echoes)
    begun = max((each.line.at for each in scanned.exits if not each.by_agent), default=-1)  # the last attempt
    done = said_done(scanned.lines, 30, once=True)

    def went_on(each: Candidate) -> bool:
        asked = each.code in OUTSIDE
        if asked and after.was_over(each.line):
            return True
        requeued = asked and after.began_again(each.line)
        return after.went_on(each.line, _ends_its_rank(each), each.logged or requeued, asked and not requeued)

    told = [each for each in found if each.raised is not None or each.hit is None or not each.hit.quoted]
    left = [
        each
        for each in told
        if each.line.at > begun and not went_on(each) and not (done and each.side and each.code not in OUTSIDE)
    ]
    last = max((hit.line for hit in echoes), key=lambda line: line.at, default=None)
    over = last is None or last.at < begun or after.went_on(last, uncaught=True)
    return left, [] if over else list(echoes)


def without_followers(found: list[Candidate]) -> list[Candidate]:
    """Return what another cause explains as a symptom of it.

    A rank misses data that another one tried to fetch, or fetches at the same time, and goes on as soon as that one
    gives up; there is no usable GPU where torch has said that the driver is too old, or that the switches between the
    GPUs are not ready; ranks wait in vain for one that finds no address of their host; and an abort that is known for
    one at the end of a program says more than the other lines about it.
    """
    raced = any(each.code == "dataset-race" and not each.old for each in found)
    fetched = {each.speaker for each in found if each.code == "download-failed"}
    said_why = any(each.code in ("driver-too-old", "fabric-manager-down") and not each.old for each in found)
    unknown = any(each.code == "host-name-unresolvable" and not each.old for each in found)

    def follows(each: Candidate) -> bool:
        if each.code == "dataset-missing":
            return raced or bool(fetched - {each.speaker})
        if each.signature is None and each.raised is not None:
            return said_why and bool(_OF_A_GPU.search(each.raised.message))
        return each.code == "cuda-unavailable" and said_why

    found = [replace(each, tier=Tier.SYMPTOM) if follows(each) else each for each in found]
    told = {"rendezvous-failed"} if unknown else set()
    told |= {"aborted"} if any(each.code == "aborted-at-exit" and not each.old for each in found) else set()
    return [replace(each, tier=Tier.HINT) if each.code in told else each for each in found]


def without_restated(found: list[Candidate]) -> list[Candidate]:
    """Leave out an exception where the same speaker names its specific cause close by.

    An abort is no such cause, nor is an end that is reported after it: an interpreter that ends by an exception while
    native threads run often aborts, and launchers end what is left.
    """
    named: dict[Speaker, list[tuple[int, bool]]] = {}
    for each in found:
        if each.signature and not (each.is_hint or each.old or each.code in _ABORTS or each.tier == Tier.ECHO):
            named.setdefault(each.speaker, []).append((each.line.at, each.code in _ENDS))
    return [
        each
        for each in found
        if each.signature is not None
        or not any(
            abs(at - each.line.at) <= _NEAR and not (ends and at > each.line.at)
            for at, ends in named.get(each.speaker, ())
        )
    ]


def rival(best: Candidate, others: Sequence[Candidate], after: Afterwards, shared: bool) -> Candidate | Line | None:
    """Return the first of ``others`` that may be the cause instead of ``best``, or the step that was made after that.

    An end that tells nothing of its reason is how ``best`` ended a rank. ``shared``: ranks that wait for another one
    print the same, and make steps until then.
    """
    for each in others:
        bare = each.code in BARE | _ABORTS
        least = Tier.GENERAL if each.signature is None else Tier.UNCERTAIN
        if each.tier <= least and not (bare or each.old or each.logged or each.survivor or each.is_hint):
            return each
    return None if shared else after.reports_a_step(best.line)


def said_by_absent(scanned: Scanned, waits: Stuck) -> list[Candidate]:
    """Return the last exception that a rank named which then neither made a step nor timed out, as the others did.

    A program that catches it and stops its rank tells of it in a line of its own. None of several ranks.
    """
    heard = {each.rank for each in waits.waited}
    first = min((each.line.at for each in waits.waited), default=-1)
    told: dict[int, tuple[Line, Raised]] = {}
    for line in takewhile(lambda line: line.at < first, scanned.lines):
        rank = signed_rank(line)
        if rank is None or rank in heard:
            continue
        if (match := _NAMED.search(line.text)) and not announced(line.text):
            told[rank] = (line, Raised(match[1], match[2].strip(" \"')")))
        elif PROGRESS.search(line.text):
            told.pop(rank, None)
    if len(told) != 1:
        return []
    rank, (line, raised) = told.popitem()
    if raised.type.rpartition(".")[2] in LOST_PEER:
        return []
    hits = list(matcher().hits(line._replace(text=f"{raised.type}: {raised.message}")))
    if any(hit.signature.tier >= Tier.SURVIVED for hit in hits):
        return []  # it only lost another rank
    known = next((hit._replace(line=line) for hit in hits if not _asks_more(hit.signature)), None)
    return [Candidate(Tier.GENERAL, line, line.speaker._replace(rank=rank), known, raised, bare=True)]


def _asks_more(signature: Signature) -> bool:
    """Return whether other lines of the log have to match as well, or must not."""
    return bool(signature.log_with or signature.log_by_several or signature.log_unless)


def passed_over(found: Sequence[Candidate]) -> Candidate | None:
    """Return the last error that would have ended a run, had its work not gone on; for logs in which nothing failed."""
    ends = (each for each in found if each.tier <= Tier.GENERAL and not (each.old or each.logged or each.survivor))
    return max(ends, key=lambda each: each.line.at, default=None)


def _ends_its_rank(each: Candidate) -> bool:
    """Return whether it may end a rank: an uncaught exception, or no matter of data that programs pass over."""
    return not each.logged and (each.raised is not None or each.code not in _SKIPPED)
