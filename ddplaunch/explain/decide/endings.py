"""How ranks end whose exit no line explains, and whether a log ends well: finished, restarted, or still at work."""

from __future__ import annotations

import bisect
import re
import signal
from collections.abc import Iterable, Sequence

from ddplaunch.explain.diagnosis import RunFacts
from ddplaunch.explain.read.lines import Line, Speaker
from ddplaunch.explain.read.scan import Scanned
from ddplaunch.explain.read.trailer import RankExit
from ddplaunch.values.frozen import dataclass

_SIGNALS = {9: "killed", 11: "segmentation-fault", 6: "aborted", 15: "terminated", 2: "terminated", 1: "terminated"}
_ORDER = ("segmentation-fault", "killed", "terminated", "unknown", "aborted")
_DONE = re.compile(
    r"\b(?:finished|completed?|done|DONE|Done|succeeded|success|Finished|Completed?|FINISHED|COMPLETED?|saved|Saved"
    r"|[Tt]otal time|total (?:time )?[\d.:]+ ?s?|[Tt]ime consumed|End of training|Training time|Results in"
    r"|best (?:acc|metric|model|val)|exiting normally|exited with code 0|elapsed)\b"
    r"|100%\||SUCCEEDED|(?:Abort|Destroy) COMPLETE|[Tt]raining (?:is )?over"
)
_PROGRESS = re.compile(
    r"(?i)\b(?:epoch|step|iter(?:ation)?|batch|global_step|train)s?\b\W{0,4}\d+|\d+/\d+ \[\d+:\d\d|\bloss\b\W{0,3}\d|"
    r"\d+%\|"
)
_STEP = re.compile(r"(?i)\b(?:epoch|step|iter(?:ation)?)\b\W{0,4}(\d+)")
_PART = re.compile(r"(\d+)\s?/\s?(\d+)")
_NOISE = re.compile(
    r"warn|Warning|^wandb: |NCCL (?:INFO(?!.*(?:Abort|Destroy) COMPLETE)|version)|\*{8}|OMP_NUM_THREADS"
    r"|destroy_process_group"
    r"|leaked|torch[./]distributed[./](?:elastic|run|launch)|^[WI]\d{4} |^\[W|^frame #|^<omitting|^$"
)
_SUCCEEDED = frozenset(("rendezvous-shutdown",))  # an agent prints it when its own ranks have all succeeded
_SURVIVED = 4  # steps; a rank that lost the others makes one or two more at most


@dataclass(frozen=True)
class BareExit:
    """An exit that no line explains, and the code that its status alone gives."""

    code: str
    exit: RankExit


def unexplained(exits: Sequence[RankExit]) -> BareExit | None:
    """Return the exit that says most, None if the agent itself ended all ranks."""
    own = [each for each in exits if not each.by_agent]
    if not own:
        return None
    kinds = [BareExit(exit_code(each.code), each) for each in own]
    kinds.sort(key=lambda ended: (_ORDER.index(ended.code), ended.exit.code == 1, ended.exit.line.at))
    return kinds[0]


def exit_code(status: int) -> str:
    """Return the diagnosis code of an exit status alone."""
    return _SIGNALS.get(signal_number(status), "unknown")


def signal_number(status: int) -> int:
    """Return the signal that a status stands for, 0 for none. Shells print 128 + 11, ``sys.exit(-11)`` gives 245."""
    if status < 0:
        return -status
    return status - 128 if 128 < status < 160 else 256 - status if 240 < status < 256 else 0


def status_text(status: int) -> str:
    """Return "SIGKILL (exit code -9)" or "exit code 3"."""
    number = signal_number(status)
    if not number:
        return f"exit code {status}"
    try:
        return f"{signal.Signals(number).name} (exit code {status})"
    except ValueError:
        return f"signal {number} (exit code {status})"


def ended_well(scanned: Scanned, echoes: bool, facts: RunFacts | None) -> bool:
    """Return whether the record says so, or the last lines say that the work is done, or show no unfinished work."""
    if facts is not None and facts.state is not None:
        return facts.state == "succeeded"
    lines = scanned.lines
    begun = max((each.line.at for each in scanned.exits), default=-1)  # of the last attempt: it recovered from others
    for traceback in scanned.tracebacks:
        harmless = traceback.handled or traceback.side or traceback.bare or traceback.store_lost
        last = traceback.parts[-1].line
        if not harmless and last.at >= begun and not went_on(lines, last):
            return False
    if said_done(lines, 30 if echoes else 8) or any(hit.signature.code in _SUCCEEDED for hit in scanned.hits):
        return True
    said = _said(lines[-400:])
    return not echoes and (not said or not _unfinished(said))


def _said(lines: Sequence[Line]) -> list[str]:
    return [line.text for line in lines if line.text and not _NOISE.search(line.text)]


def said_done(lines: Sequence[Line], last: int) -> bool:
    """Return whether one of the ``last`` lines that say anything says that the work is done."""
    return any(_DONE.search(text) for text in _said(lines[-400:])[-last:])


def recovered(known: RankExit, scanned: Scanned) -> bool:
    """Return whether the launcher started the ranks again after this exit, and they got further."""
    return scanned.summary is None and not known.table and went_on(scanned.lines, known.line)


def _unfinished(said: Sequence[str]) -> bool:
    """Return whether the last line is a step before the last one that was announced, or the only step in the log.

    A log that ends with step 900 of an unknown number counts as complete, because most healthy logs end like that.
    """
    if not _PROGRESS.search(said[-1]):
        return False
    parts = [(int(a), int(b)) for text in said[-6:] for a, b in _PART.findall(text)]
    if parts:
        return not any(a >= b for a, b in parts)
    return len(_steps(said)) <= 1


def went_on(lines: Sequence[Line], line: Line, uncaught: bool = False) -> bool:
    """Return whether the work went on after ``line`` in the same log: it was completed, or made two more steps.

    Ranks that have not noticed yet that another one is gone still make one step. After an ``uncaught`` exception the
    word "done" alone does not count: the shell script around the training prints it too.
    """
    rest = (
        each.text for each in lines[max(0, line.at - lines[0].at) :] if each.at > line.at and each.file == line.file
    )
    after = [text for text in rest if text and text[0] != " " and not _NOISE.search(text)]
    if len(after) < 1 + uncaught:
        return False
    progress = sum(bool(_PROGRESS.search(text)) for text in after)
    if any(_DONE.search(text) for text in after[-15:]) and (progress or not uncaught):
        return True
    return len(_steps(after)) >= 2 or progress >= 4


def _steps(texts: Iterable[str]) -> set[str]:
    return {match.group(1) for text in texts if (match := _STEP.search(text))}


class StepReports:
    """Where each speaker reported steps, to tell an error that a rank survived from one that ended it."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._places: dict[Speaker, list[tuple[int, str]]] = {}

    def go_on_after(self, line: Line) -> bool:
        """Return whether the speaker of ``line`` reported several further steps after it."""
        places = self._places.get(line.speaker)
        if places is None:
            places = self._places[line.speaker] = [
                (each.at, each.text)
                for each in self._lines
                if each.speaker == line.speaker and _PROGRESS.search(each.text)
            ]
        after = [text for _, text in places[bisect.bisect_right(places, (line.at, "\uffff")) :][: 4 * _SURVIVED]]
        return len(_steps(after)) >= _SURVIVED or len(after) >= 4 * _SURVIVED
