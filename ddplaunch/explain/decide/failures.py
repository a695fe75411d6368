"""What may have ended the run: the failure that each signature and each exception shows, and the echoes of failures."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal

from ddplaunch.explain.diagnosis import Raised, UserCall
from ddplaunch.explain.read.lines import Line, announced_in
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.explain.read.scan import Hit, Scanned
from ddplaunch.explain.read.traceback import ChainedException, Traceback
from ddplaunch.explain.signatures.signature import Signature, Tier, filled
from ddplaunch.values.frozen import dataclass

#: "fatal": it may have ended its rank. "doubtful": it counts where nothing fatal is known. "survived": the work went
#: on. "echo": it follows from another failure.
Fate = Literal["fatal", "doubtful", "survived", "echo"]

#: Exceptions that a launcher raises because ranks failed.
_LAUNCHERS = frozenset(("ChildFailedError", "SignalException", "TuneError"))
#: Exceptions that a launcher raises because ranks failed, and a rank because of a process that it had started itself.
_STARTED = frozenset(("CalledProcessError", "ProcessExitedException", "ProcessRaisedException"))
#: Exceptions that a rank raises because another process is gone, which need not be a rank.
_LOST = frozenset(f"Connection{how}Error" for how in ("Reset", "Aborted", "Refused")) | {"BrokenPipeError", "EOFError"}
#: Exceptions that a rank raises because another rank is gone.
_LOST_PEER = frozenset(["DistNetworkError", "DistBackendError", "DistStoreError", "HorovodInternalError"])
_LOST_PEER |= frozenset(["ActorDiedError", "ActorUnavailableError", "RayActorError", "WorkerCrashedError"])  # of Ray
#: Exceptions that end a process which was asked to end, or whose input ended.
_ASKED_TO_END = frozenset(("KeyboardInterrupt", "SystemExit", "CancelledError"))
#: Codes of echoes that may as well be of a process that the rank had started itself.
_STARTED_ECHOES = frozenset(("worker-lost", "launcher-summary"))
_WRAPPED = ("NCCL error in: ", "NCCL communicator was aborted", "NCCL Error ")  # only wrap what NCCL printed before
_NAMES_A_PROGRAM = re.compile(
    r"(?!nvcc|ninja|ld|[\w.]*(?:Error|Exception)\b)(?:[a-z][\w.+-]*|[A-Z]{3,}\w* (?:ERROR|WARNING|INFO)): "
)
_MESSAGE_LINES, _SAID = 12, 160
#: Of an exception that no rule of the families knows.
UNKNOWN = Signature("script-exception", Tier.GENERAL)


@dataclass(frozen=True)
class Failure:
    """One possible root cause: what a ``signature`` matched, or an exception that none knows (``UNKNOWN``).

    ``speaker`` is the rank that failed, which may be another one than printed ``line``. ``groups`` are those of the
    signature's pattern, ``raised`` is the exception, ``calls`` led to it; ``reason`` is that of the fate. ``quoted``:
    the line repeats what somebody else printed. ``side``: raised in a thread, or possibly because of other ranks.
    ``survivor``: raised because of other ranks, or of another process where it is ``maybe_own``. ``logged``: printed as
    a warning. ``bare``: its traceback is not in the log.
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
        """The code of the signature, ``script-exception`` for an exception that no signature knows."""
        return self.signature.code

    @property
    def is_known(self) -> bool:
        """Whether a signature knows it."""
        return self.signature is not UNKNOWN

    @property
    def words(self) -> str:
        """What its signature says of it, or its exception in at most 160 characters."""
        if self.raised is None or self.is_known:
            return filled(self.signature.what, self.groups)
        return f"{self.raised.type}: {self.raised.message}"[:_SAID]

    @property
    def is_hint(self) -> bool:
        """Whether the signature only supports a cause of its code."""
        return self.tier == Tier.HINT

    @property
    def standing(self) -> Tier:
        """How far it can be trusted: its tier, less where its fate is not "fatal"."""
        if self.fate == "fatal" or self.tier > Tier.SURVIVED:
            return self.tier if self.fate == "fatal" else Tier.ECHO
        if self.fate == "echo":
            return Tier.ECHO
        return Tier.UNCERTAIN if self.tier == Tier.CAUSE else Tier.SURVIVED


def of_peers(echoes: Sequence[Hit]) -> list[Hit]:
    """Return the echoes that speak of a lost or missing rank."""
    return [hit for hit in echoes if hit.signature.kind != "noise"]


def failures(scanned: Scanned) -> tuple[list[Failure], list[Hit]]:
    """Return what may have ended the run, and the echoes."""
    by_line: dict[int, list[Hit]] = {}
    for hit in scanned.hits:
        by_line.setdefault(hit.line.at, []).append(hit)
    raised_before = _RaisedBefore(scanned)
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
            failure = _of_hit(hit, hit.line.speaker, raised_before.of(hit))
            found.append(replace(failure, logged=announced_in(hit.line.text)))
    return found, echoes


def _lines_of(traceback: Traceback, scanned: Scanned) -> Iterator[int]:
    """Yield the places of a traceback's lines, without the lines of other speakers between them."""
    base = scanned.lines[0].at
    who = traceback.parts[0].line.speaker
    for part in traceback.parts:
        for at in range(part.first, part.line.at + 1):
            if scanned.lines[at - base].speaker == who:
                yield at


def _of_traceback(traceback: Traceback, by_line: dict[int, list[Hit]]) -> Failure | Hit | None:
    """Return the best signature in a chain of exceptions, else its echo, else the exception itself.

    None for what launchers raise because ranks failed.
    """
    roots: list[tuple[Hit, ChainedException]] = []
    echo: Hit | None = None
    for part in traceback.parts:
        cleans_up = part.link == "during" and part is not traceback.root  # as `finally: dist.barrier()` waits in vain
        for hit in _hits_in(part, by_line):
            if cleans_up and hit.signature.tier >= Tier.SYMPTOM:
                continue
            if hit.signature.tier != Tier.ECHO:
                roots.append((hit, part))
            else:
                echo = echo or hit
    if roots:
        hit, part = min(roots, key=lambda pair: (pair[0].signature.tier, pair[1] is not traceback.root))
        best = _of_hit(hit, traceback.speaker, part.raised)
        return replace(best, bare=traceback.bare, logged=traceback.logged)
    bare = traceback.bare and not traceback.lost_worker
    if echo is not None and (traceback.launcher or bare or echo.signature.code not in _STARTED_ECHOES):
        return echo
    return _of_exception(traceback)


def _hits_in(part: ChainedException, by_line: dict[int, list[Hit]]) -> Iterator[Hit]:
    """Yield what signatures see in an exception's message, then in the calls that it went through."""
    who = part.line.speaker
    for at in range(part.line.at, part.first - 1, -1):
        for hit in by_line.get(at, ()):
            if hit.line.speaker == who and not (hit.quoted if at == part.line.at else _in_source(hit)):
                yield hit


def _in_source(hit: Hit) -> bool:
    """Return whether a line of source inside a traceback only quotes what the signature describes, or raises it."""
    text = hit.line.text.lstrip()
    text_before = text[: max(0, text.find(hit.groups["line"]))]
    quotes = not text.startswith('File "') and (text_before.count('"') % 2 or text_before.count("'") % 2)
    return text.startswith(("raise ", "#")) or bool(quotes)


def _of_exception(traceback: Traceback) -> Failure | None:
    """Return the failure that an exception shows which no signature knows."""
    raised = traceback.raised
    name = raised.type.rpartition(".")[2]
    if name in _LAUNCHERS or (traceback.launcher and name in _LOST_PEER | _LOST | _STARTED | _ASKED_TO_END):
        return None
    lost_rank = name in _LOST_PEER or raised.message.startswith(_WRAPPED)
    lost = name in _LOST | _STARTED or traceback.worker_stopped
    by_others = lost_rank or lost or name in _ASKED_TO_END
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


def _of_hit(hit: Hit, speaker: Speaker, raised: Raised | None) -> Failure:
    quoted = speaker.quoted or hit.quoted
    return Failure(hit.signature.tier, hit.line, speaker, hit.signature, hit.groups, raised, quoted)


class _RaisedBefore:
    """Looks up what else a speaker raised; built once, because a long log has many hits."""

    def __init__(self, scanned: Scanned) -> None:
        self._raised: dict[Speaker, list[tuple[int, Traceback]]] = {}
        for traceback in scanned.tracebacks:
            last = traceback.parts[-1].line
            self._raised.setdefault(last.speaker, []).append((last.at, traceback))
        for entries in self._raised.values():
            entries.sort(key=lambda entry: entry[0])

    def of(self, hit: Hit) -> Raised | None:
        """Return the exception whose message ``hit`` is a later line of; another program begins with its name."""
        if _NAMES_A_PROGRAM.match(hit.line.text):
            return None
        entries = self._raised.get(hit.line.speaker, [])
        index = bisect.bisect_left(entries, hit.line.at, key=lambda entry: entry[0]) - 1
        if index < 0 or hit.line.at - entries[index][0] > _MESSAGE_LINES:
            return None
        traceback = entries[index][1]
        return None if traceback.handled else traceback.parts[-1].raised
