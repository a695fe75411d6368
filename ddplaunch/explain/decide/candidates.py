"""Possible root causes: every signature and exception, the tier that each is trusted at, and the rank it accuses."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddplaunch.explain.decide.collectives import Stuck
from ddplaunch.explain.decide.progress import StepReports
from ddplaunch.explain.decide.recorded import exit_rank, only_failed_rank, rank_of_pid
from ddplaunch.explain.diagnosis import Raised, UserCall
from ddplaunch.explain.read.lines import Line, announced
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.explain.read.scan import Hit, Scanned, spoken_against
from ddplaunch.explain.read.traceback import ChainedException, Traceback
from ddplaunch.explain.signatures import named
from ddplaunch.explain.signatures.signature import AT_START, NOISE, OF_MACHINES, Signature, Tier, filled
from ddplaunch.values.frozen import dataclass

#: Exceptions that a launcher raises because ranks failed.
_LAUNCHERS = frozenset(("ChildFailedError", "SignalException", "TuneError"))
#: Exceptions that a launcher raises because ranks failed, and a rank because of a process that it had started itself.
STARTED = frozenset(("CalledProcessError", "ProcessExitedException", "ProcessRaisedException"))
#: Exceptions that a rank raises because another process is gone, which need not be a rank.
_LOST = frozenset(f"Connection{how}Error" for how in ("Reset", "Aborted", "Refused")) | {"BrokenPipeError", "EOFError"}
#: Exceptions that a rank raises because another rank is gone.
LOST_PEER = frozenset(["DistNetworkError", "DistBackendError", "DistStoreError", "HorovodInternalError"])
LOST_PEER |= frozenset(["ActorDiedError", "ActorUnavailableError", "RayActorError", "WorkerCrashedError"])  # of Ray
#: Exceptions that end a process which was asked to end, or whose input ended.
_ASKED_TO_END = frozenset(("KeyboardInterrupt", "SystemExit", "CancelledError"))
#: Codes of echoes that may as well be of a process that the rank had started itself.
_STARTED_ECHOES = frozenset(("worker-lost", "launcher-summary"))
#: Exceptions of the program's own logic: they show a signature only if it has an example of that type.
_LOOKUPS = ("KeyError", "IndexError", "LookupError", "AttributeError", "NameError")
_OF_LOGIC = frozenset(("ValueError", "TypeError", "AssertionError", *_LOOKUPS))
_WRAPPED = ("NCCL error in: ", "NCCL communicator was aborted", "NCCL Error ")  # only wrap what NCCL printed before
#: What ends the workers of DataLoaders.
_OF_WORKERS = ("segmentation-fault", "killed", "aborted", "shm-too-small", "host-out-of-memory")
_WARNED = re.compile(r"\.py:\d+: \w*Warning: ")  # by Python's warnings
_RAISES = re.compile(r"(?:^|[:;] *)raise [\w.]+\(")
_WAITS_FOR_KEYS = re.compile(r"\.(?:wait|get|multi_get|wait_for_workers)\(")
_NAMES_A_PROGRAM = re.compile(
    r"(?!nvcc|ninja|ld|[\w.]*(?:Error|Exception)\b)(?:[a-z][\w.+-]*|[A-Z]{3,}\w* (?:ERROR|WARNING|INFO)): "
)
_MESSAGE_LINES, _SAID = 12, 160


@dataclass(frozen=True)
class Candidate:
    """One possible root cause: a ``hit`` of a signature, else the exception ``raised``.

    ``speaker`` is the rank that failed, which may be another one than printed ``line``. ``side``: raised in a thread,
    or possibly because of other ranks. ``survivor``: raised because of other ranks, or of another process where it is
    ``maybe_own``. ``logged``: printed as a warning. ``old``: quoted, or older than the exception that ended the rank.
    ``calls`` led to the exception; ``bare``: its traceback is not in the log. ``in_loader``: a DataLoader raised it as
    it took a batch from one of its workers.
    """

    tier: Tier
    line: Line
    speaker: Speaker
    hit: Hit | None = None
    raised: Raised | None = None
    side: bool = False
    survivor: bool = False
    logged: bool = False
    maybe_own: bool = False
    old: bool = False
    calls: tuple[UserCall, ...] = ()
    bare: bool = False
    in_loader: bool = False

    @property
    def code(self) -> str:
        """The code of the signature, ``script-exception`` for an exception that no signature knows.

        A DataLoader worker that crashes or raises says so; one that is gone without a word was killed.
        """
        if self.hit is not None:
            return self.hit.signature.code
        return "killed" if self.in_loader and self.maybe_own else "script-exception"

    @property
    def signature(self) -> Signature | None:
        """The signature that matched, None for an exception that none knows."""
        return None if self.hit is None else self.hit.signature

    @property
    def groups(self) -> dict[str, str]:
        """The named groups of the signature's pattern."""
        return {} if self.hit is None else self.hit.groups

    @property
    def words(self) -> str:
        """What its signature says of it, or its exception in at most 160 characters."""
        if self.signature is not None:
            return filled(self.signature.what, self.groups)
        return f"{self.raised.type}: {self.raised.message}"[:_SAID] if self.raised is not None else self.code

    @property
    def of_worker(self) -> bool:
        """Whether it may be the last words of a DataLoader's worker, which prints into its rank's file."""
        return self.hit is not None and self.code in _OF_WORKERS

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
        traceback = _without_waits(traceback, by_line)
        told = None if traceback.handled else _of_traceback(traceback, by_line, context)
        if isinstance(told, Candidate):
            found.append(replace(told, calls=traceback.calls))
        elif told is not None:
            echoes.append(told)
    inside = {at for traceback in scanned.tracebacks for at in _lines_of(traceback, scanned)}
    for hit in scanned.hits:
        if hit.line.at in inside:
            continue
        if hit.signature.tier == Tier.ECHO:
            echoes.append(hit)
        elif hit is by_line[hit.line.at][0] and not context.contradicts(hit):
            told = _of_hit(hit, hit.line.speaker, context.raised_before(hit))
            told = replace(told, logged=announced(hit.line.text))
            found.append(replace(survived(told), side=True) if _WARNED.search(hit.line.text) else told)
    steps = StepReports(scanned.lines)
    found = [_gone_on(each) if steps.go_on_after(each.line) else each for each in found]
    begun = [each.code in AT_START and steps.made_after(each.line) for each in found]
    found = [replace(survived(each), old=True) if old else each for each, old in zip(found, begun, strict=True)]
    return found, echoes


def _gone_on(each: Candidate) -> Candidate:
    """Return what a rank printed that went on: of an exception without a traceback it only told."""
    return replace(each, tier=Tier.ECHO) if each.bare and each.signature is None else survived(each)


def _lines_of(traceback: Traceback, scanned: Scanned) -> Iterator[int]:
    """Yield the places of a traceback's lines, without the lines of other speakers between them."""
    base = scanned.lines[0].at
    who = traceback.parts[0].line.speaker
    for part in traceback.parts:
        for at in range(part.first, part.line.at + 1):
            if scanned.lines[at - base].speaker == who:
                yield at


def _without_waits(traceback: Traceback, by_line: dict[int, list[Hit]]) -> Traceback:
    """Return a chain without the waits for other ranks that an exception of the rank's own led to.

    A rank that cleans up in a collective, as in `finally: dist.barrier()`, waits there until it times out.
    """
    parts = list(traceback.parts)
    while len(parts) > 1 and parts[-1].link == "during" and _waits(parts[-1], by_line) and _is_own(parts[-2], by_line):
        parts.pop()
    return traceback if len(parts) == len(traceback.parts) else replace(traceback, parts=tuple(parts))


def _waits(part: ChainedException, by_line: dict[int, list[Hit]]) -> bool:
    hits = list(_hits_in(part, by_line))
    return bool(hits) and all(hit.signature.tier >= Tier.SYMPTOM for hit in hits)


def _is_own(part: ChainedException, by_line: dict[int, list[Hit]]) -> bool:
    """Return whether a chain's exception was raised by the rank itself, outside of what libraries only try."""
    name = part.raised.type.rpartition(".")[2]
    by_others = LOST_PEER | _LOST | STARTED | _LAUNCHERS
    return bool(part.calls) and name not in by_others and not _waits(part, by_line)


def _of_traceback(traceback: Traceback, by_line: dict[int, list[Hit]], context: _Context) -> Candidate | Hit | None:
    """Return the best signature in a chain of exceptions, else its echo, else the exception itself.

    None for what launchers raise because ranks failed.
    """
    roots: list[tuple[Hit, ChainedException]] = []
    echo: Hit | None = None
    for part in traceback.parts:
        for hit in _hits_in(part, by_line):
            if hit.signature.tier != Tier.ECHO:
                if not (context.contradicts(hit) or traceback.store_lost or _is_own_wait(hit.signature, part)):
                    no_program = part.starts_program and hit.signature.code == "dataset-missing"
                    roots.append((hit._replace(signature=named("program-missing")) if no_program else hit, part))
            elif hit.line.at == part.line.at:
                echo = echo or hit
    if roots:
        hit, part = min(roots, key=lambda pair: (pair[0].signature.tier, pair[1] is not traceback.root))
        best = replace(_of_hit(hit, traceback.speaker, part.raised), bare=traceback.bare)
        return survived(replace(best, logged=True)) if traceback.logged else best
    bare = traceback.bare and not traceback.lost_worker
    if echo is not None and (traceback.launcher or bare or echo.signature.code not in _STARTED_ECHOES):
        return echo
    return _of_exception(traceback)


def _is_own_wait(signature: Signature | None, part: ChainedException) -> bool:
    """Return whether the script itself waited for a key of a store; ``signature`` is what the message looks like."""
    if signature is not None and signature.code != "rendezvous-failed":
        return False
    source = part.sources[-1] if part.sources else ""
    own = part.raised.frame is not None and part.calls[-1].folded == 0
    return own and "keys: " in part.raised.message and bool(_WAITS_FOR_KEYS.search(source))


def _hits_in(part: ChainedException, by_line: dict[int, list[Hit]]) -> Iterator[Hit]:
    """Yield what signatures see in an exception's message, then in the calls that it went through."""
    who = part.line.speaker
    for at in range(part.line.at, part.first - 1, -1):
        for hit in by_line.get(at, ()):
            if hit.line.speaker != who or (at != part.line.at and _in_source(hit)):
                continue
            if at == part.line.at and (hit.quoted or _is_said_of_another(hit.signature, part)):
                continue
            yield hit


def _in_source(hit: Hit) -> bool:
    """Return whether a line of source inside a traceback only quotes what the signature describes, or raises it."""
    text = hit.line.text.lstrip()
    before = text[: max(0, text.find(hit.groups["line"]))]
    quotes = not text.startswith('File "') and (before.count('"') % 2 or before.count("'") % 2)
    return text.startswith(("raise ", "#")) or bool(quotes)


def _is_said_of_another(signature: Signature, part: ChainedException) -> bool:
    """Return whether an exception that the program's own logic raises only mentions what ``signature`` describes.

    So does one that the user's own line raises, unless it has the number of an error of the system.
    """
    name = part.raised.type.rpartition(".")[2]
    if signature.code not in OF_MACHINES and signature.tier != Tier.ECHO:
        return False
    last = part.calls[-1] if part.calls else None
    raises = last is not None and not last.folded and bool(_RAISES.search(last.source))
    own = raises and "[Errno" not in part.raised.message
    return own or (signature.code in OF_MACHINES and name in _OF_LOGIC and name not in signature.raises)


def _of_exception(traceback: Traceback) -> Candidate | None:
    """Return the candidate for an exception that no signature knows."""
    raised = traceback.raised
    name = raised.type.rpartition(".")[2]
    if name == "FileNotFoundError" and (program := traceback.program):
        return _of_hit(Hit(named("program-missing"), traceback.root.line, {"path": program}), traceback.speaker, raised)
    if name in _LAUNCHERS or (traceback.launcher and name in LOST_PEER | _LOST | STARTED | _ASKED_TO_END):
        return None
    own_wait = _is_own_wait(None, traceback.root)
    lost_rank = (name in LOST_PEER and not own_wait) or traceback.store_lost or raised.message.startswith(_WRAPPED)
    lost = name in _LOST | STARTED or traceback.worker_stopped
    by_others = lost_rank or lost or name in _ASKED_TO_END
    tier = Tier.UNCERTAIN if traceback.side or traceback.bare or traceback.launcher else Tier.GENERAL
    found = Candidate(
        Tier.SYMPTOM if by_others else tier,
        traceback.root.line,
        traceback.speaker,
        raised=raised,
        side=traceback.side or by_others,
        survivor=lost_rank or lost,
        logged=traceback.logged,
        bare=traceback.bare,
        in_loader=traceback.in_loader,
        maybe_own=lost and not (lost_rank or traceback.side or traceback.bare),
    )
    return survived(found) if traceback.logged else found


def _of_hit(hit: Hit, speaker: Speaker, raised: Raised | None) -> Candidate:
    return Candidate(hit.signature.tier, hit.line, speaker, hit, raised)


class _Context:
    """Looks up what else a speaker printed; built once, because a long log has many hits."""

    def __init__(self, scanned: Scanned) -> None:
        silent = (hit for hit in scanned.hits if hit.signature.tier == Tier.ECHO)  # they contradict nothing
        echoes = {hit.line.at for hit in silent if hit.signature.code != "step-ended"}  # but srun says who ended a step
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
        """Return the exception whose message ``hit`` is a later line of; another program begins with its name."""
        if _NAMES_A_PROGRAM.match(hit.line.text):
            return None
        entries = self._raised.get(hit.line.speaker, [])
        index = bisect.bisect_left(entries, hit.line.at, key=lambda entry: entry[0]) - 1
        if index < 0 or hit.line.at - entries[index][0] > _MESSAGE_LINES:
            return None
        traceback = entries[index][1]
        return None if traceback.handled else traceback.parts[-1].raised


def rank_of(
    best: Candidate, found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned, waits: Stuck
) -> int | None:
    """Return the one rank that shows the cause, None where several do, or where nothing tells."""
    same = [each for each in found if (each.code, each.tier) == (best.code, best.tier)]
    ranks = {_own_rank(each, scanned) for each in same} - {None}
    if ranks:
        return ranks.pop() if len(ranks) == 1 else None
    if len({each.speaker for each in same}) > 1:
        return None
    by_exit = only_failed_rank(scanned)
    told = {hit.line.speaker.rank for hit in echoes if hit.signature.code not in NOISE}
    return by_exit if by_exit is not None else waits.only_silent(told)


def _own_rank(each: Candidate, scanned: Scanned) -> int | None:
    """Return the rank that a candidate names, or that printed it."""
    speaker, groups = each.speaker, each.groups
    if groups.get("culprit", "").isdecimal():
        return int(groups["culprit"])
    if speaker.rank is not None:
        return speaker.rank
    if groups.get("rank", "").isdecimal():
        return int(groups["rank"])
    pid = groups.get("pid", "")
    if pid.isdecimal() and (rank := rank_of_pid(int(pid), scanned)) is not None:
        return rank
    for known in scanned.exits:
        rank = exit_rank(known, scanned)
        if rank is None:
            continue
        if speaker.pid is not None and known.pid == speaker.pid:
            return rank
        if speaker.local is not None and known.local == speaker.local and known.host in (speaker.host, None):
            return rank
    return speaker.local if speaker.host is None else None
