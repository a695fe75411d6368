"""Judges the work in a log: whether it continued after a line, failed, ended well, or is still going on."""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile

from ddplaunch.explain.diagnosis import RunFacts
from ddplaunch.explain.episodes import FAILS
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.scan import Scanned
from ddplaunch.explain.read.trailer import closes_badly
from ddplaunch.explain.signatures import patterns, say
from ddplaunch.values.finding import Finding, warning

_DONE, _PASSED, PROGRESS, _STEP, CHATTER, _DUMPED, COUNT, _COUNTS, _PART, _OVER = patterns("work")
#: Codes of lines that launchers and services print only if the work failed.
_SUMS_UP = frozenset(("launcher-summary", "told-elsewhere", "nccl-watchdog-abort"))
#: A printed loss of the training, not of a validation.
(_LOSS,) = patterns("loss")
_SAID, _REPEATED = 60, 2  # characters of a line to quote; losses in a row that are not finite
_CLOSING, _WORK = 2, 3  # last lines that may report a failure; steps of a training that got going
_ENDS = 15  # last lines of a file that may say how it ended
GOES_ON = 3  # lines of a program that continued after an error it announced
ENOUGH = 4  # steps; ranks that lost another one make one or two more at most


def ended_well(lines: Sequence[Line], echoes: bool) -> bool:
    """Return whether the last lines say that the work is done or, without ``echoes``, show no unfinished work."""
    if said_done(lines, 30 if echoes else 8, once=echoes):
        return True
    texts = _texts(lines)
    return not echoes and (not texts or not _unfinished(texts) or _at_work(texts))


def unfinished_report(scanned: Scanned, work: Work) -> Line | None:
    """Return the line that reports a failure missing from the log, if no work followed it; otherwise None.

    A traceback is cut off, or the last line reports a failure.
    """
    cut = [line for line in scanned.cut if not work.went_on(line, uncaught=True)]
    lines = [line for line in _last(scanned.lines) if line.text[0] != "#"]
    is_over = any(_OVER.search(line.text) for line in lines[-_ENDS:])
    known_places = {hit.line.at for hit in scanned.hits} | {
        part.line.at for traceback in scanned.tracebacks for part in traceback.parts
    }
    known_places |= {end.line.at for end in scanned.exits if end.by_agent}
    bad = [line for line in lines[-_CLOSING:] if closes_badly(line.text)]
    good = any((PROGRESS.search(line.text) or _DONE.search(line.text)) and line not in bad for line in lines[-1:])
    closing = [] if good or is_over else [line for line in bad if line.at not in known_places]
    return min(cut or closing, key=lambda line: line.at, default=None)


def not_a_number(lines: Sequence[Line]) -> Iterator[Finding]:
    """Yield a warning that names the line from which on no printed loss is finite, if there is one."""
    losses = ((match["loss"], line) for line in reversed(lines) if (match := _LOSS.search(line.text)))
    bad = [line for _, line in takewhile(lambda printed: not math.isfinite(float(printed[0])), losses)]
    if len(bad) >= _REPEATED:
        first = bad[-1]
        words = say("loss-not-a-number", line=first.text.strip()[:_SAID])
        fix = "\nor: ".join(words.fixes)
        yield warning("not-a-number", words.what, why=words.why, fix=fix, where=f"{first.file}:{first.number}")


def says_something(text: str) -> bool:
    """Return whether a line is neither empty nor what libraries and launchers print in any run."""
    return not CHATTER.search(text) or bool(_PASSED.search(text))


def telling(texts: Sequence[str]) -> list[str]:
    """Return the lines that say something, without source lines below Python's warnings and without dumped stacks."""
    warned = (True, *("Warning: " in text for text in texts))
    return [
        text
        for text, source in zip(texts, warned, strict=False)
        if says_something(text) and not ((source and text[:1] == " ") or _DUMPED.match(text))
    ]


def _last(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines[-400:] if says_something(line.text)]


def _texts(lines: Sequence[Line]) -> list[str]:
    return [line.text for line in _last(lines)]


def said_done(lines: Sequence[Line], last: int, once: bool = False) -> bool:
    """Return whether any of the ``last`` lines that say something says that the work is done.

    With ``once``, a line that is repeated with other numbers, as after each step, does not count.
    """
    texts = _texts(lines)
    often = Counter(COUNT.sub("", text) for text in texts) if once else {}
    done_texts = (text for text in texts[-last:] if _DONE.search(text))
    return any(often.get(COUNT.sub("", text), 0) < _WORK or "100%|" in text for text in done_texts)


def says_failed(scanned: Scanned, work: Work, facts: RunFacts) -> bool:
    """Return whether the record, or the launcher's output, says that the run failed."""
    if facts.state is not None:
        return facts.state != "succeeded"
    if any(_PASSED.search(text) for text in _texts(scanned.lines)[-2:]):
        return False  # a test suite prints failures of other programs
    own_exits = [end for end in scanned.exits if not end.by_agent]
    if scanned.summary is None and _starts_anew(
        scanned.lines, max((end.line.at for end in own_exits), default=math.inf)
    ):
        return False
    # after an exit, the launcher may have started the ranks again, and they got further
    at_exits = (end.table or not work.went_on(end.line, uncaught=True) for end in own_exits)
    if scanned.summary is not None or any(at_exits):
        return True
    summed_up = (hit.line for hit in scanned.hits if hit.signature.code in _SUMS_UP and not hit.quoted)
    return any(not work.went_on(line, uncaught=True) for line in summed_up)


def _starts_anew(lines: Sequence[Line], last_exit: float) -> bool:
    """Return whether the program's first line stands again after the last exit, which a launcher then survived."""
    first = next((line.text for line in lines if says_something(line.text)), "")
    repeated = (line for line in lines if line.at > last_exit and COUNT.sub("", line.text) == COUNT.sub("", first))
    return not (not first or PROGRESS.search(first) or FAILS.search(first)) and any(repeated)


def _unfinished(texts: Sequence[str]) -> bool:
    """Return whether the last line is a step before the last announced one, or the only step in the log.

    A log that ends with step 900 of an unknown number counts as finished, because most healthy logs end like that. So
    does one whose reports differ without numbers of steps, and one that reached the last step, counted from 0 or 1.
    """
    if not PROGRESS.search(texts[-1]):
        return False
    reports = (text for text in texts[-6:] if PROGRESS.search(text))
    parts = [(int(a), int(b) - ("%|" not in text)) for text in reports for a, b in _PART.findall(text)]
    if parts:
        return not any(a >= b for a, b in parts)  # epochs may be counted from 0; bars are not
    return len({" ".join(_STEP.findall(text)) or text for text in texts if PROGRESS.search(text)}) <= 1


def _at_work(texts: Sequence[str]) -> bool:
    """Return whether a log that ends before the last step reports many steps: the training may still be running."""
    reports = {(*_PART.findall(text), *_STEP.findall(text)): "%|" in text for text in texts if PROGRESS.search(text)}
    logged = list(reports.values()).count(False)  # a bar is redrawn many times during a step
    return len(reports) >= _WORK or logged >= _WORK - 1


def stops_short(lines: Sequence[Line]) -> Line | None:
    """Return the last line of a log without failures if it reports a step before the last one; otherwise None."""
    last = _last(lines)
    return last[-1] if last and _unfinished([line.text for line in last]) else None


def _counts(line: Line) -> bool:
    """Return whether a line may tell that the work goes on: no source line, and nothing that every run prints."""
    reports = line.text[:1] != " " or "%|" in line.text or _COUNTS.match(line.text)
    return bool(reports) and says_something(line.text)


class _File:
    """What a file says after each of its lines: read from its end, as far back as somebody asks.

    Where ``ENOUGH`` different steps follow, no rule asks for more. ``passed`` and ``done`` count the lines from the end
    to the last one that says that tests passed or a job is over, and that the work is done.
    """

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._read = 0
        self._places: list[int] = []  # negative, of lines that say something
        self._progress, self._steps, self._steps_seen = [0], [0], set[str]()
        self.passed = self.done = math.inf

    def after(self, line: Line) -> tuple[int, int, int]:
        """Return how many lines that say something, reports of progress, and different steps follow ``line``."""
        while self._read < len(self.lines) and self._steps[-1] < ENOUGH:
            other = self.lines[-1 - self._read]
            if other.at <= line.at:
                break
            self._read += 1
            if _counts(other):
                self._note(other)
        after = bisect.bisect_left(self._places, -line.at)
        return after, self._progress[after], self._steps[after]

    def _note(self, line: Line) -> None:
        if (lines_behind := len(self._places)) < _ENDS:
            self.passed = min(self.passed, lines_behind if _OVER.search(line.text) else math.inf)
            self.done = min(self.done, lines_behind if _DONE.search(line.text) else math.inf)
        self._places.append(-line.at)
        self._progress.append(self._progress[-1] + bool(PROGRESS.search(line.text)))
        self._steps_seen |= {" ".join(_STEP.findall(line.text))} - {""}
        self._steps.append(len(self._steps_seen))


class Work:
    """How each file continues after a line; read once, because a log may have thousands of failures."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._files = defaultdict[str, _File](_File)
        for line in lines:
            self._files[line.file].lines.append(line)

    def went_on(self, line: Line, uncaught: bool = False, announced: bool = False) -> bool:
        """Return whether the work continued after ``line`` in the same log: it was completed, or made two more steps.

        Ranks that have not yet noticed that another one is gone still make one step; one step is enough if the error
        was ``announced`` as skipped or retried. After an ``uncaught`` exception the word "done" only counts with a
        step, because the shell script around the training prints it too.
        """
        file = self._files[line.file]
        lines_after, progress, steps = file.after(line)
        if file.passed < lines_after:
            return True
        if lines_after < 1 + uncaught:
            return False
        is_over = file.done < lines_after and (steps > 0 or not uncaught)
        return is_over or steps >= 2 or progress >= (1 if announced else 4)

    def reported_after(self, line: Line) -> tuple[int, int]:
        """Return how many reports of progress, and how many different steps, follow ``line`` in the same log."""
        return self._files[line.file].after(line)[1:]

    def said_between(self, line: Line, until: int) -> int:
        """Return how many lines that say something follow ``line`` in its log before ``until``, at most `GOES_ON`."""
        own_lines = self._files[line.file].lines
        begin, end = (bisect.bisect_left(own_lines, at, key=lambda other: other.at) for at in (line.at + 1, until))
        return len(list(islice(filter(_counts, map(own_lines.__getitem__, range(begin, end))), GOES_ON)))
