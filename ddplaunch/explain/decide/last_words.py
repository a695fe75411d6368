"""How ranks end whose exit no line explains: what their status and their last words say."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ddplaunch.explain.decide.work import CHATTER, COUNT, PROGRESS
from ddplaunch.explain.read.lines import Line, names_exception
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
_LAST, _QUOTED = 8, 4  # lines among which a reason is looked for; lines from there on that are quoted
_ABOVE = 20  # lines among which the exception of a program is looked for, above what its launcher prints


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

    def order(ended: BareExit) -> tuple[int, bool, float, bool, int]:
        rank = ended.exit.rank
        kind = _ORDER.index(ended.code)
        return (kind, rank in complaining, ends.get(rank, math.inf), ended.exit.code == 1, ended.exit.line.at)

    own_exits = (end for end in exits if not end.by_agent)
    kinds = (BareExit("unknown" if end.seen and end.code > 0 else exit_code(end.code), end) for end in own_exits)
    return min(kinds, key=order, default=None)


def with_last_words(ended: BareExit, lines: Sequence[Line], complains: bool) -> BareExit:
    """Return the exit with the last lines of its rank: of stderr, where both streams have a file and it has any.

    In a log of all ranks it is the last line before the launcher's report, else one that no rank has signed and that
    reads like a reason. ``complains``: the rank says that it lost another one.
    """
    rank_exit = ended.exit
    earlier = [line for line in lines if rank_exit.seen or line.at < rank_exit.line.at]
    own_lines = _spoken(
        line for line in earlier if line.speaker.rank == rank_exit.rank and not line.file.endswith("launcher.err")
    )
    if not (own_lines or rank_exit.seen):
        unsigned = _spoken(line for line in earlier if line.speaker.rank is None)[-_LAST:]
        return replace(ended, said=tuple(line for line in unsigned if _gives_reason(line.text))[-1:])
    last = [line for line in own_lines if ".err" in line.file] or own_lines
    last = last[-_LAST:] if rank_exit.seen else last[-1:]  # what stands above it may be another rank's
    reason = _reason(last)
    by_sys_exit = not reason and rank_exit.seen and rank_exit.code == 1 and not complains
    gives_reason = bool(reason) or (by_sys_exit and any(map(_is_message, last[-1:])))
    return replace(ended, said=reason or tuple(last[-1:]), gives_reason=gives_reason)


def _spoken(lines: Iterable[Line]) -> list[Line]:
    """Return the lines that a program may have left as its last words."""
    return [
        line
        for line in lines
        if line.text[:1].strip() and not (CHATTER.search(line.text) or _REPORTS.search(line.text))
    ]


def _reason(last: Sequence[Line]) -> tuple[Line, ...]:
    """Return the first line that reads like a reason, with those below it; none where no line does."""
    first = next((at for at, line in enumerate(last) if _gives_reason(line.text)), len(last))
    return tuple(last[first : first + _QUOTED])


def _gives_reason(text: str) -> bool:
    return bool(_LEVEL.search(text) or (_REASON.search(text) and not PROGRESS.search(text)))


def _is_message(line: Line) -> bool:
    """Return whether a last line reads like what `sys.exit("…")` leaves: a sentence, or some words on stderr."""
    words = len(_WORD.findall(line.text))
    sentence = words >= 4 and len(COUNT.findall(line.text)) <= 1  # "the loss diverged at epoch 3"
    on_stderr = words >= 2 and ".err" in line.file and not PROGRESS.search(line.text)
    return (sentence or on_stderr) and not _RECORD.search(line.text)


def words_above(line: Line, scanned: Scanned) -> tuple[Line, ...]:
    """Return what stands above the traceback that ends at ``line`` and reads like a reason: a program's own words.

    Programs that a rank starts print into the rank's files; an exception of theirs says more than what is below it.
    """
    parts = (part for item in scanned.tracebacks for part in item.parts if part.line.at == line.at)
    first = next((part.first for part in parts), line.at)
    above = [item for item in scanned.lines if item.speaker == line.speaker and item.at < first]
    last = _spoken(above)[-_ABOVE:]
    raised = [item for item in last if names_exception(item.text)]
    return tuple(raised[-1:]) or _reason(last[-_LAST:])


def code_with_words(ended: BareExit) -> str:
    """Return the code of an exit: that of its signal, else what a rank's last words and its status say together.

    126 and 127 are what a shell and `env` give a command that may not be executed, or is not there. In a log without a
    record last words count that call themselves an error, or that fit to such a status.
    """
    first_words = ended.said[0].text if ended.said else ""
    of_shell, words = _OF_SHELL.get(ended.exit.code, ("script-exception", ""))
    if ended.exit.seen:
        return of_shell if ended.gives_reason and ended.exit.code > 0 else ended.code
    is_told = _LEVEL.search(first_words) or (words and words in first_words)
    return of_shell if is_told and 0 < ended.exit.code < _SIGNALLED else ended.code
