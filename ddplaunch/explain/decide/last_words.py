"""How ranks end whose exit no line explains: what their status and their last words say."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddplaunch.explain.decide.work import CHATTER, COUNT, PROGRESS
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.prefixes import NOBODY
from ddplaunch.explain.read.scan import Scanned
from ddplaunch.explain.read.trailer import RankExit, exit_code
from ddplaunch.values.frozen import dataclass

_ORDER = ("segmentation-fault", "killed", "time-limit", "terminated", "unknown", "aborted")
_WORD = re.compile(r"[^\W\d]{2,}")
#: What a last line has that gives a reason.
_REASON = re.compile(
    r"(?i)\b(?:error|fatal|fail(?:s|ed|ure)?|cannot|can't|could not|unable|unknown|invalid|unsupported|missing|must"
    r"|below|not (?:found|a)|no \w+|nothing|denied|refus\w+|abort\w*|panick?ed|exception|expect\w*"
    r"|wrong|bad|corrupt(?:ed)?|illegal|broken|too (?:small|large|big|few|many|long|short)|do(?:es)?(?: not|n't)"
    r"|giv(?:e|es|ing) up|gave up|exceed\w*|mismatch|stop(?:ped)?)\b|^panic: |^[EF]\d{4} "
)
#: A level, or the place of an error in a shell script.
_LEVEL = re.compile(r"\b(?:ERROR|FATAL|CRITICAL)\b|\b(?:[Ee]rror|fatal):|^\S+: line \d+: ")
#: What loggers put in front of lines that are no error.
_RECORD = re.compile(r"\b(?:DEBUG|INFO|NOTICE)\b")
#: Lines of launchers that nobody signs, and that give no reason.
_REPORTS = re.compile(r"^Traceback |NCCL INFO |^Failures:|^Root Cause|^Killing subprocess| FAILED$")
#: What a shell and `env` mean by an exit status, and their words for it.
_OF_SHELL = {126: ("permission-denied", "ermission denied"), 127: ("script-not-found", "No such file or directory")}
_SIGNALLED = 129  # where a status may be that of a signal
_PROGRAM = 100  # lines between the exception of a program and the end of what its launcher prints
_LAST = 8  # lines among which a reason is looked for; as many as 4 from there on are quoted


@dataclass(frozen=True)
class BareExit:
    """An exit that no line explains, the code that its status alone gives, and the rank's last lines.

    ``gives_reason``: the first of ``said`` reads like the reason for the end.
    """

    code: str
    exit: RankExit
    said: tuple[Line, ...] = ()
    gives_reason: bool = False


def unexplained(
    exits: Sequence[RankExit], ends: Mapping[int | None, float], complaining: frozenset[int | None]
) -> BareExit | None:
    """Return the exit that says most, None if the agent itself ended all ranks.

    Signals come first. Of other exits, those of ranks that do not complain of others; then, by the times of a record
    (``ends``), the earliest.
    """
    kinds = [BareExit(_exit_code(each), each) for each in exits if not each.by_agent]

    def order(ended: BareExit) -> tuple[int, bool, float, bool, int]:
        rank = ended.exit.rank
        kind = _ORDER.index(ended.code)
        return (kind, rank in complaining, ends.get(rank, math.inf), ended.exit.code == 1, ended.exit.line.at)

    return min(kinds, key=order, default=None)


def _exit_code(known: RankExit) -> str:
    return "unknown" if known.seen and known.code > 0 else exit_code(known.code)


def with_last_words(ended: BareExit, lines: Sequence[Line], complains: bool) -> BareExit:
    """Return the exit with the last lines of its rank: of stderr, where both streams have a file and it has any.

    In a log of all ranks these are the last lines before the launcher's report. ``complains``: the rank says that it
    lost another one.
    """
    rank, until = ended.exit.rank, math.inf if ended.exit.seen else ended.exit.line.at
    own: dict[str, list[Line]] = {}
    for line in lines:
        if line.at >= until or line.speaker.rank != rank or not line.text or line.text[0] in " \t":
            continue
        noise = CHATTER.search(line.text) or _REPORTS.search(line.text)
        if not (noise or line.file.endswith("launcher.err")):
            own.setdefault(line.file, []).append(line)
    if not (own or ended.exit.seen):
        return replace(ended, said=_unsigned(lines, until))
    files = sorted(own, key=lambda name: (not name.endswith(".err"), name))
    last = own[files[0]][-_LAST:] if files else []
    if not ended.exit.seen:
        last = last[-1:]  # what stands above it may be another rank's
    reason = next((at for at, line in enumerate(last) if _gives_reason(line.text)), None)
    alone = reason is None and ended.exit.seen and ended.exit.code == 1 and not complains
    if alone and _is_message(last, ended.exit.one_file):
        return replace(ended, said=tuple(last[-1:]), gives_reason=True)
    said = last[-1:] if reason is None else last[reason : reason + 4]
    return replace(ended, said=tuple(said), gives_reason=reason is not None)


def _is_message(last: Sequence[Line], one_file: bool) -> bool:
    """Return whether the last line on stderr reads like what `sys.exit("…")` leaves there; in ``one_file`` with stdout
    it has to be a sentence unlike those above it.
    """
    text = last[-1].text if last and (one_file or last[-1].file.endswith(".err")) else ""
    sentence = len(_WORD.findall(text)) >= 4 and len(COUNT.findall(text)) <= 1  # "the loss diverged at epoch 3"
    repeated = COUNT.sub("", text) in {COUNT.sub("", each.text) for each in last[:-1]}
    told = sentence and not repeated if one_file else sentence or not PROGRESS.search(text)
    return told and " " in text.strip() and not _RECORD.search(text)


def other_end(line: Line, scanned: Scanned) -> tuple[Line, ...]:
    """Return the first exception of the chain with the one at ``line``, the last one if that is the first itself."""
    chains = (each.parts for each in scanned.tracebacks if any(part.line.at == line.at for part in each.parts))
    ends = next(((parts[0].line, parts[-1].line) for parts in chains), ())
    return tuple(each for each in ends if each.at != line.at)[:1]


def words_above(line: Line, scanned: Scanned) -> tuple[Line, ...]:
    """Return what stands above the traceback that ends at ``line`` and reads like a reason: a program's own words.

    Programs that a rank starts print into the rank's files. Without any in the same file, the rank's other one counts.
    An exception that ended a program in Python says more than what its launcher printed below.
    """
    told = next((each for each in scanned.tracebacks if any(part.line.at == line.at for part in each.parts)), None)
    first = line.at if told is None else told.parts[0].first
    inner = [each for each in scanned.tracebacks if not (each.handled or each.side or each.launcher or each.bare)]
    own = {frame[0] for part in (told.parts if told else ()) for frame in part.frames[:1]}  # the rank's own script
    others = [each.root for each in inner if each.speaker == line.speaker and each.root.line.file == line.file]
    raised = [each.line for each in others if not own & {frame[0] for frame in each.frames[:1]}]
    if above := [each for each in raised if first - _PROGRAM <= each.at < first]:
        return (above[-1],)
    said: dict[bool, list[Line]] = {True: [], False: []}
    speakers = {line.speaker} if told is not None else {line.speaker, NOBODY}
    for each in scanned.lines:
        same = each.file == line.file
        if each.speaker not in speakers or (same and each.at >= first) or (line.speaker.rank is None and not same):
            continue
        if each.text and not CHATTER.search(each.text):
            said[same].append(each)
    for lines in said.values():
        last = lines[-_LAST:]
        reason = next((at for at, each in enumerate(last) if _gives_reason(each.text)), None)
        if reason is not None:
            return tuple(last[reason : reason + 3])
    return ()


def _unsigned(lines: Sequence[Line], until: float) -> tuple[Line, ...]:
    """Return the last line before the launcher's report that reads like a reason, and that no rank has signed."""
    found = [line for line in lines if line.at < until and line.speaker.rank is None and line.text[:1] not in ("", " ")]
    told = [line for line in found if not (CHATTER.search(line.text) or _REPORTS.search(line.text))][-_LAST:]
    return tuple(line for line in told if _gives_reason(line.text))[-1:]


def code_with_words(ended: BareExit) -> str:
    """Return the code of an exit: that of its signal, else what a rank's last words and its status say together.

    126 and 127 are what a shell and `env` give a command that may not be executed, or is not there. In a log without a
    record last words count that call themselves an error, or that fit to such a status.
    """
    said = ended.said[0].text if ended.said else ""
    of_shell, words = _OF_SHELL.get(ended.exit.code, ("script-exception", ""))
    if ended.exit.seen:
        return of_shell if ended.gives_reason and ended.exit.code > 0 else ended.code
    told = _LEVEL.search(said) or (words and words in said)
    return of_shell if told and 0 < ended.exit.code < _SIGNALLED else ended.code


def _gives_reason(text: str) -> bool:
    return bool(_LEVEL.search(text) or (_REASON.search(text) and not PROGRESS.search(text)))
