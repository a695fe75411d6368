"""Possible root causes in the scanned logs: every signature and exception, each with the tier that it is trusted at."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import replace

from ddplaunch.explain.decide.endings import StepReports
from ddplaunch.explain.diagnosis import Raised
from ddplaunch.explain.read.lines import Line, Speaker
from ddplaunch.explain.read.scan import Hit, Scanned, spoken_against
from ddplaunch.explain.read.traceback import ChainedException, Traceback
from ddplaunch.explain.signatures.signature import Signature, Tier
from ddplaunch.values.frozen import dataclass

#: Exceptions that a launcher raises because ranks failed.
_LAUNCHERS = frozenset(
    ("ChildFailedError", "CalledProcessError", "ProcessExitedException", "ProcessRaisedException", "SignalException")
)
#: Exceptions that a rank raises because another process is gone.
_LOST_PEER = frozenset(
    (
        "BrokenPipeError",
        "ConnectionResetError",
        "ConnectionAbortedError",
        "ConnectionRefusedError",
        "DistNetworkError",
        "DistBackendError",
        "DistStoreError",
        "ActorDiedError",
        "RayActorError",
        "WorkerCrashedError",
    )
)
#: Exceptions that end a process which was asked to end, or whose input ended.
_ASKED_TO_END = frozenset(("EOFError", "KeyboardInterrupt", "SystemExit", "CancelledError"))
#: Messages that only wrap what NCCL printed before.
_WRAPPED = ("NCCL error in: ", "NCCL communicator was aborted", "NCCL Error ")
#: Codes of echoes that do not speak of a lost peer: launchers' summaries, and what interpreters print as they end.
NOISE = frozenset(("launcher-summary", "stopped-by-launcher", "teardown-noise", "rendezvous-shutdown"))
_MESSAGE_LINES = 12  # an exception's message may go on for as many lines


@dataclass(frozen=True)
class Candidate:
    """One possible root cause: a ``hit`` of a signature, else the exception ``raised``.

    ``speaker`` is the rank that failed, which may be another one than printed ``line``. ``side``: raised in a thread,
    or possibly because of other ranks. ``survivor``: raised because of other ranks. ``logged``: printed as a warning.
    """

    tier: Tier
    line: Line
    speaker: Speaker
    hit: Hit | None = None
    raised: Raised | None = None
    side: bool = False
    survivor: bool = False
    logged: bool = False

    @property
    def code(self) -> str:
        """The code of the signature, ``script-exception`` for an exception that no signature knows."""
        return "script-exception" if self.hit is None else self.hit.signature.code

    @property
    def signature(self) -> Signature | None:
        """The signature that matched, None for an exception that none knows."""
        return None if self.hit is None else self.hit.signature

    @property
    def groups(self) -> dict[str, str]:
        """The named groups of the signature's pattern."""
        return {} if self.hit is None else self.hit.groups

    @property
    def is_hint(self) -> bool:
        """Whether the signature only supports a cause of its code, whatever tier the candidate has now."""
        return self.hit is not None and self.hit.signature.tier == Tier.HINT


def survived(each: Candidate) -> Candidate:
    """Return the candidate as an error that did not end its rank.

    A cause becomes uncertain; anything less only counts if no rank died of a signal; what ranks print of others is an
    echo.
    """
    if each.tier > Tier.SURVIVED:
        return replace(each, tier=Tier.ECHO)
    return replace(each, tier=Tier.UNCERTAIN if each.tier == Tier.CAUSE else Tier.SURVIVED)


def candidates(scanned: Scanned) -> tuple[list[Candidate], list[Hit]]:
    """Return the possible root causes, and the echoes."""
    by_line: dict[int, list[Hit]] = {}
    for hit in scanned.hits:
        by_line.setdefault(hit.line.at, []).append(hit)
    context = _Context(scanned)
    found: list[Candidate] = []
    echoes: list[Hit] = []
    for traceback in scanned.tracebacks:
        told = None if traceback.handled else _of_traceback(traceback, by_line, context)
        if isinstance(told, Candidate):
            found.append(told)
        elif told is not None:
            echoes.append(told)
    inside = {at for traceback in scanned.tracebacks for at in _lines_of(traceback, scanned)}
    for hit in scanned.hits:
        if hit.line.at in inside:
            continue
        if hit.signature.tier == Tier.ECHO:
            echoes.append(hit)
        elif hit is by_line[hit.line.at][0] and not context.contradicts(hit):
            found.append(_of_hit(hit, hit.line.speaker, context.raised_before(hit)))
    steps = StepReports(scanned.lines)
    return [survived(each) if steps.go_on_after(each.line) else each for each in found], echoes


def _lines_of(traceback: Traceback, scanned: Scanned) -> Iterator[int]:
    """Yield the places of a traceback's lines, without the lines of other speakers between them."""
    base = scanned.lines[0].at
    who = traceback.parts[0].line.speaker
    for part in traceback.parts:
        for at in range(part.first, part.line.at + 1):
            if scanned.lines[at - base].speaker == who:
                yield at


def _of_traceback(traceback: Traceback, by_line: dict[int, list[Hit]], context: _Context) -> Candidate | Hit | None:
    """Return the best signature in a chain of exceptions, else its echo, else the exception itself.

    None for what launchers raise because ranks failed.
    """
    roots: list[tuple[Hit, ChainedException]] = []
    echo: Hit | None = None
    for part in traceback.parts:
        for hit in _hits_in(part, by_line):
            if hit.signature.tier != Tier.ECHO:
                if not context.contradicts(hit) and not traceback.store_lost:
                    roots.append((hit, part))
            elif hit.line.at == part.line.at:
                echo = echo or hit
    if roots:
        hit, part = min(roots, key=lambda pair: (pair[0].signature.tier, pair[1] is not traceback.root))
        best = _of_hit(hit, traceback.speaker, part.raised)
        return survived(replace(best, logged=True)) if traceback.logged else best
    return echo or _of_exception(traceback)


def _hits_in(part: ChainedException, by_line: dict[int, list[Hit]]) -> Iterator[Hit]:
    """Yield what signatures see in an exception's message, then in the calls that it went through."""
    who = part.line.speaker
    for at in range(part.line.at, part.first - 1, -1):
        for hit in by_line.get(at, ()):
            if hit.line.speaker == who and not hit.line.text.lstrip().startswith(("raise ", "#")):
                yield hit


def _of_exception(traceback: Traceback) -> Candidate | None:
    """Return the candidate for an exception that no signature knows."""
    raised = traceback.root.raised
    name = raised.type.rpartition(".")[2]
    survivor = name in _LOST_PEER or traceback.store_lost or raised.message.startswith(_WRAPPED)
    by_others = survivor or name in _ASKED_TO_END
    if name in _LAUNCHERS or (traceback.launcher and (name in _LOST_PEER or name in _ASKED_TO_END)):
        return None
    tier = Tier.UNCERTAIN if traceback.side or traceback.bare or traceback.launcher else Tier.GENERAL
    found = Candidate(
        Tier.SYMPTOM if by_others else tier,
        traceback.root.line,
        traceback.speaker,
        raised=raised,
        side=traceback.side or by_others,
        survivor=survivor,
        logged=traceback.logged,
    )
    return survived(found) if traceback.logged else found


def _of_hit(hit: Hit, speaker: Speaker, raised: Raised | None) -> Candidate:
    return Candidate(hit.signature.tier, hit.line, speaker, hit, raised)


class _Context:
    """Looks up what else a speaker printed; built once, because a long log has many hits."""

    def __init__(self, scanned: Scanned) -> None:
        echoes = {hit.line.at for hit in scanned.hits if hit.signature.tier == Tier.ECHO}  # they contradict nothing
        self._texts: dict[Speaker, list[str]] = {
            hit.line.speaker: [] for hit in scanned.hits if hit.signature.log_unless
        }
        for line in scanned.lines:
            if line.speaker in self._texts and line.at not in echoes:
                self._texts[line.speaker].append(line.text)
        self._contradicted: dict[tuple[int, Speaker], bool] = {}
        self._raised: dict[Speaker, list[tuple[int, Traceback]]] = {}
        for traceback in scanned.tracebacks:
            last = traceback.parts[-1].line
            self._raised.setdefault(last.speaker, []).append((last.at, traceback))
        for entries in self._raised.values():
            entries.sort(key=lambda entry: entry[0])

    def contradicts(self, hit: Hit) -> bool:
        """Return whether another line of the same speaker matches the signature's ``log_unless``."""
        if not hit.signature.log_unless:
            return False
        key = (id(hit.signature), hit.line.speaker)
        if key not in self._contradicted:
            self._contradicted[key] = spoken_against(hit.signature, self._texts[hit.line.speaker])
        return self._contradicted[key]

    def raised_before(self, hit: Hit) -> Raised | None:
        """Return the exception whose message ``hit`` is a later line of."""
        entries = self._raised.get(hit.line.speaker, [])
        index = bisect.bisect_left(entries, hit.line.at, key=lambda entry: entry[0]) - 1
        if index < 0 or hit.line.at - entries[index][0] > _MESSAGE_LINES:
            return None
        traceback = entries[index][1]
        return None if traceback.handled else traceback.parts[-1].raised
