"""What could be the root cause, each with a weight: signatures, exceptions and exits; refuses to choose.

What stands near a line of the same speaker, and what its other lines say against it; refuses to weigh either.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import replace

from ddplaunch.explain.decide.endings import Progress
from ddplaunch.explain.diagnosis import Raised
from ddplaunch.explain.read.lines import Line, Speaker
from ddplaunch.explain.read.scan import Hit, Scanned, spoken_against
from ddplaunch.explain.read.traceback import Part, Traceback
from ddplaunch.explain.signatures.signature import Signature
from ddplaunch.values.frozen import dataclass

_NEAR = 12  # lines that an exception's message may go on for


class Context:
    """Looks things up by speaker, so that asking for every hit of a long log stays cheap."""

    def __init__(self, scanned: Scanned) -> None:
        echoes = {hit.line.at for hit in scanned.hits if hit.signature.role == "cascade"}  # they say nothing
        self._texts: dict[Speaker, list[str]] = {
            hit.line.speaker: [] for hit in scanned.hits if hit.signature.log_unless
        }
        for line in scanned.lines:
            if line.speaker in self._texts and line.at not in echoes:
                self._texts[line.speaker].append(line.text)
        self._against: dict[tuple[int, Speaker], bool] = {}
        self._raised: dict[Speaker, list[tuple[int, Traceback]]] = {}
        for traceback in scanned.tracebacks:
            last = traceback.parts[-1].line
            self._raised.setdefault(last.speaker, []).append((last.at, traceback))
        for entries in self._raised.values():
            entries.sort(key=lambda entry: entry[0])

    def against(self, hit: Hit) -> bool:
        """Return whether another line of the same speaker speaks against what ``hit`` shows."""
        if not hit.signature.log_unless:
            return False
        key = (id(hit.signature), hit.line.speaker)
        if key not in self._against:
            self._against[key] = spoken_against(hit.signature, self._texts[hit.line.speaker])
        return self._against[key]

    def raised_before(self, hit: Hit) -> Raised | None:
        """Return the exception whose message ``hit`` belongs to: the telling line may be a later one of it."""
        entries = self._raised.get(hit.line.speaker, [])
        place = bisect.bisect_left(entries, hit.line.at, key=lambda entry: entry[0]) - 1
        if place < 0 or hit.line.at - entries[place][0] > _NEAR:
            return None
        traceback = entries[place][1]
        return None if traceback.handled else traceback.parts[-1].raised


#: How much less a code counts than a rank's own failure, because victims print its lines as well as culprits (40), or
#: because it says how a rank ended and not why, or another failure may imitate it (20).
DISCOUNT = {
    "killed": 20,
    "segmentation-fault": 20,
    "collective-mismatch": 20,
    "wrong-network-interface": 20,
    "infiniband-error": 30,
    "host-name-unresolvable": 34,
    "collective-timeout": 40,
    "gpu-p2p-broken": 40,
    "rendezvous-failed": 40,
    "aborted": 40,
}
#: What a launcher raises because ranks failed.
LAUNCHERS = frozenset(
    ("ChildFailedError", "CalledProcessError", "ProcessExitedException", "ProcessRaisedException", "SignalException")
)
#: Exceptions with which a survivor notices that somebody else is gone.
ECHOES = frozenset(
    (
        "BrokenPipeError",
        "ConnectionResetError",
        "ConnectionAbortedError",
        "ConnectionRefusedError",
        "EOFError",
        "DistNetworkError",
        "DistBackendError",
        "DistStoreError",
        "KeyboardInterrupt",
        "SystemExit",
        "CancelledError",
        "ActorDiedError",
        "RayActorError",
        "WorkerCrashedError",
    )
)
#: Cascade signatures that say nothing of a lost peer: launchers' summaries, and what interpreters print as they leave.
NOISE = frozenset(("launcher-summary", "stopped-by-launcher", "teardown-noise", "rendezvous-shutdown"))
#: Those of them that never are a cause by themselves, and messages that only wrap what NCCL said elsewhere.
SURVIVORS = ECHOES - {"EOFError", "KeyboardInterrupt", "SystemExit", "CancelledError"}
_WRAPPED = ("NCCL error in: ", "NCCL communicator was aborted", "NCCL Error ")
_SPECIFIC = ((60, 0), (50, 2), (40, 6))  # a signature's priority, and what it weighs
_LIVED = 25  # weight of having been survived, or of being logged as a warning


@dataclass(frozen=True)
class Candidate:
    """One possible root. The smaller ``weight``, the better; ties go to the earlier line.

    ``side``: an exception of a thread, or one that may tell of others. ``survivor``: one that only tells of others.
    ``logged``: reported by the program as something that it copes with.
    """

    code: str
    weight: int
    line: Line
    speaker: Speaker
    signature: Signature | None = None
    groups: tuple[tuple[str, str], ...] = ()
    raised: Raised | None = None
    likely: bool = False
    side: bool = False
    survivor: bool = False
    logged: bool = False


def candidates(scanned: Scanned) -> tuple[list[Candidate], list[Hit]]:
    """Return the possible roots and the echoes."""
    by_line: dict[int, list[Hit]] = {}
    for hit in scanned.hits:
        by_line.setdefault(hit.line.at, []).append(hit)
    context = Context(scanned)
    found: list[Candidate] = []
    echoes: list[Hit] = []
    for traceback in scanned.tracebacks:
        if not traceback.handled:
            found += _of_traceback(traceback, by_line, context, echoes)
    covered = {at for traceback in scanned.tracebacks for at in _covered(traceback, scanned)}
    for hit in scanned.hits:
        if hit.line.at in covered:
            continue
        if hit.signature.role == "cascade":
            echoes.append(hit)
        elif hit is by_line[hit.line.at][0] and not context.against(hit):
            found.append(_of_hit(hit, hit.line.speaker, context.raised_before(hit)))
    progress = Progress(scanned.lines)
    found = [replace(each, weight=each.weight + _LIVED) if progress.survived(each.line) else each for each in found]
    return found, echoes


def _covered(traceback: Traceback, scanned: Scanned) -> Iterator[int]:
    """Yield the lines of a traceback, those of others that stand between them aside."""
    base = scanned.lines[0].at
    who = traceback.parts[0].line.speaker
    for part in traceback.parts:
        for index in range(part.first, part.line.at + 1):
            if scanned.lines[index - base].speaker == who:
                yield index


def _of_traceback(
    traceback: Traceback, by_line: dict[int, list[Hit]], context: Context, echoes: list[Hit]
) -> list[Candidate]:
    """Return what a chain of exceptions says: the most specific root in it, else its own exception."""
    roots: list[tuple[Hit, Part]] = []
    cascade: list[Hit] = []
    chosen = traceback.root
    for part in traceback.parts:
        for hit in _within(part, by_line):
            if hit.signature.role == "cascade":
                if hit.line.at == part.line.at:
                    cascade.append(hit)
            elif not context.against(hit):
                roots.append((hit, part))
    if traceback.store_lost:
        roots = []
    roots.sort(key=lambda pair: (-pair[0].signature.priority, pair[1] is not chosen))
    if roots and (not cascade or roots[0][0].signature.priority >= max(hit.signature.priority for hit in cascade)):
        hit, part = roots[0]
        best = _of_hit(hit, traceback.speaker, part.raised, 6 * traceback.side + _LIVED * traceback.logged)
        return [replace(best, logged=traceback.logged)]
    name = chosen.raised.type.rpartition(".")[2]
    if cascade:
        echoes.extend(cascade[:1])
        return []
    if name in LAUNCHERS or (traceback.launcher and name in ECHOES):
        return []
    survivor = name in SURVIVORS or traceback.store_lost or chosen.raised.message.startswith(_WRAPPED)
    weight = 8 + 6 * traceback.side + 4 * traceback.bare + 4 * traceback.launcher
    weight += 24 * (survivor or name in ECHOES)
    weight += _LIVED * traceback.logged
    side = traceback.side or survivor or name in ECHOES
    where = (chosen.line, traceback.speaker)
    raised, logged = chosen.raised, traceback.logged
    return [Candidate("script-exception", weight, *where, None, (), raised, False, side, survivor, logged)]


def _within(part: Part, by_line: dict[int, list[Hit]]) -> Iterator[Hit]:
    """Yield what a part of a traceback shows: in its message, or by the calls that it went through."""
    who = part.line.speaker
    for at in range(part.line.at, part.first - 1, -1):
        for hit in by_line.get(at, ()):
            if hit.line.speaker == who and not hit.line.text.lstrip().startswith(("raise ", "#")):
                yield hit


def _of_hit(hit: Hit, speaker: Speaker, raised: Raised | None, penalty: int = 0) -> Candidate:
    signature = hit.signature
    weight = DISCOUNT.get(signature.code, 0)
    weight += next((more for least, more in _SPECIFIC if signature.priority >= least), 9)
    confirmation = signature.role == "confirmation"
    return Candidate(
        signature.code,
        weight + penalty + (60 if confirmation else 0),
        hit.line,
        speaker,
        signature,
        tuple(hit.groups.items()),
        raised,
        confirmation,
    )
