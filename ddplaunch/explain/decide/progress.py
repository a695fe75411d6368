"""Whether the work that a log tells of went on after a line, and whether it ended well or still goes on."""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ddplaunch.explain.diagnosis import RunFacts
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.explain.read.scan import Scanned
from ddplaunch.explain.read.trailer import RankExit, closes_badly

_DONE = re.compile(
    r"\b(?<!last )(?<!not )(?<!n't )(?<!failed to )"
    r"(?!Finished: (?:ABORT|FAIL)|Done waiting |Done\. Your build exited with [1-9]|Completed <exit>)"
    r"(?!\w+ with (?:an? )?(?:exit |error |non-?zero )?(?:status|code|errors?)\b(?!\W{0,3}0))"
    r"(?:finished|completed?|done|DONE|Done|succeeded|success|Finished|Completed?|FINISHED|COMPLETED?|saved"
    r"|Saved|[Tt]otal time|total (?:time )?(?:\d*[.:][\d.:]+|\d+ ?s)|[Tt]ime consumed|End of training|Training time"
    r"|Results in|best (?:acc|metric|model|val)|exiting normally|exited with code 0|elapsed)\b"
    r"|(?:训练|训练已)完成|已保存|完了|완료|\b(?:fertig|abgeschlossen|gespeichert|terminée?|terminado|завершено|concluíd[oa]"
    r"|finalizado|guardado|enregistrée?|zakończon\w+|zapisano|completato|salvato|tamamland\w|kaydedildi|сохранен\w*)\b"
    r"|100%\||SUCCEEDED|(?:Abort|Destroy) COMPLETE|[Tt]raining (?:is )?over|[Ee]arly[ -]stopp(?:ing|ed)"
)
#: The last words of pytest and unittest, of ctest, Go, Rust, JUnit, RSpec and their like, where nothing failed.
_PASSED = re.compile(
    r"^(?!.*\b[1-9]\d* (?:failed|error)).*\b\d+ passed\b|^OK(?: \(.*\))?$"
    r"|\b\d+ (?:tests?|examples?|scenarios?|specs?|checks?|cases?)\b.*\b0 (?:failures?|failed|errors?|unexpected)\b"
    r"|100% tests passed|^ok\s+\S+\s+[\d.]+s$|^PASS$|^Job succeeded$|Tests run: \d+, Failures: 0, Errors: 0"
)
#: Words that nobody but a test suite or a scheduler says, of all of the work.
_OVER = re.compile(
    rf"{_PASSED.pattern}|\b(?:COMPLETED|SUCCEEDED|Reporting training SUCCESS|exit_status=0)\b|\bExited \(0\)"
    r"|^Successfully completed\.$|^(?:rc|RC|exit|status)[ =:]+0$"
)
#: Steps and epochs in other languages, and the rounds of reinforcement learning.
_FOREIGN = "epoche|schritt|[ée]poque|[ée]tape|[ée]poca|paso|passo|эпоха|шаг|エポック|ステップ|에폭|스텝|(?-i:update)"
#: A report of steps, or of what they measured.
PROGRESS = re.compile(
    rf"(?i)(?<![-/])\b(?:epoch|step|iter(?:ation)?|batch|global_step|train|trial|episode|rollout|{_FOREIGN})s?\b(?:\(\w+\))?"
    r"\W{0,6}\d+|第 ?\d+ ?[轮步]|"
    r"\d+/\d+ (?:\[\d+:\d\d|\|)|\[ *\d+/\d{3,}\]|"
    r"^\s*\d+(?:\s+\d+\.\d+){2,}|"  # a row of a table
    r"(?:\b|_)loss\b\W{0,3}\d|\d+%\||^\[Gloo\] Rank \d+ is connected to \d+ peer"  # torch 2.8: each healthy rank
)
#: Trainer's summary at its end, and what wandb notes at the start.
_NO_STEP = re.compile(r"train_runtime|_config_callback\b")
_SERVED = re.compile(r'"POST \S+ HTTP/\d\.\d" 2\d\d\b|\bthroughput: (?!0\.0)\d')  # each is a step of a server
_ERROR = re.compile(r"\b(?:ERROR|FATAL|CRITICAL)\b(?!.*\bTraceback\b)")
#: A number in a line.
COUNT = re.compile(r"\d[\d.,]*")
_STEP = re.compile(
    rf"(?i)(?:(?<![-/])\b(?:epoch|step|it(?:er(?:ation)?)?|batch|episode|rollout|trial|fold|task|attempt|{_FOREIGN})s?\b"
    r"(?:\(\w+\))?\W{0,6}|第 ?(?=\d+ ?[轮步])|\[ *(?=\d+/\d{3,}\]))(\d+(?:\.\d+)?)"
)
#: Nothing that is over is a step: "gave up after attempt 3", "step 3/4 ..... FAILED".
_OVER_TRIES = re.compile(
    r"(?i)^(?=.*\b(?:attempt|restart)s?\b).*\b(?:failed|exhausted|g[ai]v(?:e|es|ing) up)\b"
    r"|^.*\.{4,} (?:failed|skipped)\b"
)
#: Bars, exceptions and ends that count something.
_NO_REPORT = re.compile(r"(?i)%\||(?:error|exception|warning|errored|failed|exit(?:ed)?)\b")
#: What compose says of a service that is done, and the summary of Trainer.
_THROUGH = re.compile(r" exited with code 0$|\btrain_runtime\b")
_COUNTS = re.compile(r"\s+\[?\d+/\d+\]?\s")
_LOSS = re.compile(r"(?i)loss\W{0,4}\d")
_PART = re.compile(r"(\d+)\s?/\s?(\d+)")
#: What libraries, launchers and shells print in any run.
CHATTER = re.compile(
    r"warn|Warning|^wandb: (?!.*\(success\))|NCCL (?:INFO(?!.*(?:Abort|Destroy) COMPLETE)|version)|\*{8}"
    r"|OMP_NUM_THREADS|destroy_process_group|HYDRA_FULL_ERROR=1"
    r"|^Script (?:started|done) on\b|^```|^(?:srun|slurmstepd[\w.-]*): |^Process finished with exit code (?!0$)"
    r"|leaked|torch[./]distributed[./](?:elastic|run|launch)|^[WI]\d{4} [\d:.]+ \d+ \S*torch[/_]|^\[W"
    r"|^frame #|^<omitting|^\W*$"
    r"|^object (?:address|refcount|type|repr|type name) *: |^lost sys\.stderr$"
    r"|^(?:[Jj]ob|JOB)(?: \d+)? (?:finished|ended|completed|done|FINISHED) (?:at|on)\b"  # however it ended
)
#: A command that shows a log, with its prompt.
_SHOWS = re.compile(
    r"^(?:\S+[:~]\S* ?)?[$#] (?:sudo |ssh \S+ ['\"]?)?"
    r"(?:(?:kubectl|docker|podman|nomad|oc|aws|gcloud)\b.* logs?\b|(?:tail|cat) )"
)
_AGAIN = re.compile(r"(?i)\b(?:re-?start|resum|re-?launch|restor(?:ed|ing)\b)")
#: What faulthandler prints of a crash.
_DUMPED = re.compile(
    r"^(?:Extension modules: |(?:Current thread|Thread) 0x\w+ .*\(most recent call first\)"
    r"|\s*File \".+\", line \d+ in )"
)
#: Codes of what launchers and services print only where the work failed.
_SUMS_UP = frozenset(("launcher-summary", "told-elsewhere", "nccl-watchdog-abort"))
_SUCCEEDED = frozenset(("rendezvous-shutdown",))  # an agent prints it when its own ranks have all succeeded
_CLOSING, _WORK = 2, 3  # lines that may say at the end that the work failed; steps of a training that got going
_ENDS = 15  # lines of a file that may say how it ended
GOES_ON = 3  # lines of a program that passed over an error that it has announced
_SURVIVED = 4  # steps; a rank that lost the others makes one or two more at most


def ended_well(scanned: Scanned, after: Afterwards, echoes: bool, facts: RunFacts | None) -> bool:
    """Return whether the record says so, or the last lines say that the work is done, or show no unfinished work."""
    if facts is not None and facts.state is not None:
        return facts.state == "succeeded"
    lines = scanned.lines
    begun = max((each.line.at for each in scanned.exits), default=-1)  # of the last attempt: it recovered from others
    for traceback in scanned.tracebacks:
        harmless = traceback.handled or traceback.side or traceback.bare or traceback.store_lost
        last = traceback.parts[-1].line
        went_on = after.went_on(last, uncaught=not traceback.logged, announced=traceback.logged)
        went_on |= traceback.logged and after.said_between(last, lines[-1].at + 1) >= GOES_ON
        if not (harmless or went_on) and last.at >= begun:
            return False
    summed_up = (hit.line for hit in scanned.hits if hit.signature.code in _SUMS_UP and not hit.quoted)
    if any(not after.went_on(line, uncaught=True) for line in summed_up if line.at >= begun):
        return False
    told = {hit.line.at for hit in scanned.hits if not hit.signature.is_root}  # of others, which may be "finished"
    if said_done([line for line in lines[-400:] if line.at not in told], 30 if echoes else 8, once=echoes) or any(
        hit.signature.code in _SUCCEEDED for hit in scanned.hits
    ):
        return True
    if not echoes and any(each.code == "teardown-noise" and "destroy" in line.text for each, line, *_ in scanned.hits):
        return True  # an interpreter that comes to its end says it
    said = _said(lines[-400:])
    return not echoes and (not said or not _unfinished(said) or _at_work(said))


def unfinished_report(scanned: Scanned, after: Afterwards) -> Line | None:
    """Return where a failure is reported that is not in the log itself, after which no work went on.

    A traceback is cut off, the program's own hook for uncaught exceptions failed over it, or the last line says so.
    """
    hooks = [line for line in scanned.lines if line.text.startswith("Error in sys.excepthook")]
    found = [_told_above(line, scanned) for line in (*hooks, *scanned.cut) if not after.went_on(line, uncaught=True)]
    said = [line for line in scanned.lines[-400:] if says_something(line.text) and line.text[0] != "#"]
    last, over = said[-_CLOSING:], any(_OVER.search(line.text) for line in said[-_ENDS:])
    bad = [line for line in last if closes_badly(line.text)]
    known = {hit.line.at for hit in scanned.hits} | {part.line.at for each in scanned.tracebacks for part in each.parts}
    known |= {each.line.at for each in scanned.exits if each.by_agent}
    good = any((PROGRESS.search(line.text) or _DONE.search(line.text)) and line not in bad for line in last[-1:])
    closing = [] if good or over else [line for line in bad if line.at not in known]
    return min(found or closing, key=lambda line: line.at, default=None)


def _told_above(cut: Line, scanned: Scanned) -> Line:
    """Return the line above a report that is cut off, if the same speaker calls an error there; else ``cut``."""
    place = cut.at - scanned.lines[0].at
    above = scanned.lines[place - 1] if place else cut
    return above if above.speaker == cut.speaker and _ERROR.search(above.text) else cut


def says_something(text: str) -> bool:
    """Return whether a line is neither empty nor what libraries and launchers print in any run."""
    return bool(text) and (not CHATTER.search(text) or bool(_PASSED.search(text)))


def telling(texts: Sequence[str]) -> list[str]:
    """Return the lines that say something, without the line of source below a warning of Python, and without stacks."""
    warned = (True, *("Warning: " in text for text in texts))
    return [
        text
        for text, source in zip(texts, warned, strict=False)
        if says_something(text) and not ((source and text[:1] == " ") or _DUMPED.match(text))
    ]


def _said(lines: Sequence[Line]) -> list[str]:
    return [line.text for line in lines if says_something(line.text)]


def said_done(lines: Sequence[Line], last: int, once: bool = False) -> bool:
    """Return whether one of the ``last`` lines that say anything says that the work is done.

    ``once``: and is not said again and again, with other numbers, as of each step that is done.
    """
    said = _said(lines[-400:])
    often = Counter(COUNT.sub("", text) for text in said) if once else {}
    done = (text for text in said[-last:] if _DONE.search(text))
    return any(often.get(COUNT.sub("", text), 0) < _WORK or "100%|" in text for text in done)


def says_failed(scanned: Scanned, after: Afterwards, facts: RunFacts | None) -> bool:
    """Return whether the record, or the launcher's output, says that the run failed."""
    if facts is not None and facts.state is not None:
        return facts.state != "succeeded"
    if _all_passed(scanned.lines):
        return False
    own = [each for each in scanned.exits if not each.by_agent and not _recovered(each, scanned, after)]
    return scanned.summary is not None or bool(own)


def _recovered(known: RankExit, scanned: Scanned, after: Afterwards) -> bool:
    """Return whether the launcher started the ranks again after this exit, and they got further."""
    if scanned.summary is not None or known.table or after.shows_another(known.line):
        return False
    return after.went_on(known.line, not after.began_again(known.line))


def _unfinished(said: Sequence[str]) -> bool:
    """Return whether the last line is a step before the last one that was announced, or the only step in the log.

    A log that ends with step 900 of an unknown number counts as complete, because most healthy logs end like that, and
    so does one whose reports count nothing but differ, and one that counts from 0 and reached the last one.
    """
    if not PROGRESS.search(said[-1]) or _NO_STEP.search(said[-1]):
        return False
    parts = [(int(a), int(b)) for text in said[-6:] if PROGRESS.search(text) for a, b in _PART.findall(text)]
    if parts:
        from_zero = {int(b) for text in said if "%|" not in text for a, b in _PART.findall(text) if int(a) == 0}
        return not any(a >= b or (a == b - 1 and b in from_zero) for a, b in parts)
    return len({" ".join(_STEP.findall(text)) or text for text in said if PROGRESS.search(text)}) <= 1


def _at_work(said: Sequence[str]) -> bool:
    """Return whether a log that ends before the last step reports many: the training still runs, for all it says."""
    texts = [part for text in said for part in (text.split("%|") if text.count("%|") > 1 else [text])]  # bars in a row
    reports = {(*_PART.findall(text), *_STEP.findall(text)): "%|" in text for text in texts if PROGRESS.search(text)}
    logged = list(reports.values()).count(False)  # a bar is drawn many times within a step's time
    return len(reports) >= _WORK or logged >= _WORK - 1


def stops_short(lines: Sequence[Line]) -> Line | None:
    """Return the last line of a log in which nothing failed, if it reports a step before the last one."""
    told = [line for line in lines[-400:] if says_something(line.text)]
    return told[-1] if told and _unfinished([line.text for line in told]) else None


def _all_passed(lines: Sequence[Line]) -> bool:
    """Return whether the log is that of tests of which none failed: they print failures of other programs."""
    return any(_PASSED.search(text) for text in _said(lines[-400:])[-2:])


class _Counted(NamedTuple):
    """How many lines of progress, and how many different steps, follow each place of a file; the ``reports`` of steps.

    ``passed`` and ``done`` are the places of the last of its ends that say that tests passed or a job is over, and that
    the work is done, -1 for none.
    """

    progress: list[int]
    steps: list[int]
    passed: int
    done: int
    reports: list[Line]


class Afterwards:
    """What each file goes on with after a line; counted once, because a log may have thousands of failures."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._files: dict[str, list[Line]] = {}
        for line in lines:
            if line.text and (line.text[0] != " " or _counts(line.text)) and says_something(line.text):
                self._files.setdefault(line.file, []).append(line)
        self._title = lines[0].at if len(lines) > 1 and lines[0].text and not lines[1].text else -1
        self._known: dict[re.Pattern[str], dict[str, tuple[int, int]]] = {}
        self._counts: dict[str, _Counted] = {}

    def went_on(self, line: Line, uncaught: bool = False, announced: bool = False, asked: bool = False) -> bool:
        """Return whether the work went on after ``line`` in the same log: it was completed, or made two more steps.

        Ranks that have not noticed yet that another one is gone still make one step, which is enough where the error
        was ``announced`` as skipped or tried again. After an ``uncaught`` exception the word "done" counts only with a
        step: the shell script around the training prints it too. One that was ``asked`` to end may make a step until it
        does so. Nothing goes on after a title: a first line that stands alone, as of a report whose log follows below.
        """
        if line.at == self._title:
            return False
        said = self._files.get(line.file, [])
        at = bisect.bisect_right(said, line.at, key=lambda each: each.at)
        progresses, kinds, passed, done, _ = self._counted(line.file, said)
        if passed >= at:
            return True
        if len(said) - at < 1 + uncaught:
            return False
        progress, steps = progresses[at], kinds[at]
        begun = steps > 0 or (progress > 0 and self.began_again(line))
        over = done >= at and progress >= 2 * asked and (begun or not uncaught)
        return over or steps >= 2 or progress >= (1 if announced else 4)

    def reports_a_step(self, line: Line) -> Line | None:
        """Return the first report of a step below ``line`` in the same log that no other rank signs.

        A bar may be drawn once more after a failure.
        """
        reports = self._counted(line.file, self._files.get(line.file, [])).reports
        below = range(bisect.bisect_right(reports, line.at, key=lambda each: each.at), len(reports))
        return next((reports[at] for at in below if line.speaker.rank in (None, reports[at].speaker.rank)), None)

    def shows_another(self, line: Line) -> bool:
        """Return whether a command that shows a log was typed below ``line``: what follows may be older."""
        return self._places(_SHOWS, line.file)[-1] > line.at

    def said_between(self, line: Line, until: int) -> int:
        """Return how many lines that say something follow ``line`` in the same log before the line at ``until``."""
        said = self._files.get(line.file, [])
        begun, end = (bisect.bisect_left(said, at, key=lambda each: each.at) for at in (line.at + 1, until))
        return end - begun

    def began_again(self, line: Line) -> bool:
        """Return whether a line after ``line`` says that the work was taken up again."""
        return self._places(_AGAIN, line.file)[-1] > line.at

    def was_over(self, line: Line) -> bool:
        """Return whether the work had ended before ``line``: a container with status 0, or Trainer with its summary.

        What served it is stopped then.
        """
        return 0 <= self._places(_THROUGH, line.file)[0] < line.at

    def _places(self, pattern: re.Pattern[str], file: str) -> tuple[int, int]:
        """Return the places of the first and the last line of a file that ``pattern`` matches, -1 for none."""
        if pattern not in self._known:
            found = {
                name: [each.at for each in said if pattern.search(each.text)] for name, said in self._files.items()
            }
            self._known[pattern] = {name: (places[0], places[-1]) for name, places in found.items() if places}
        return self._known[pattern].get(file, (-1, -1))

    def _counted(self, file: str, said: Sequence[Line]) -> _Counted:
        if file not in self._counts:
            progress, steps, seen = [0], [0], set[str]()
            reports: list[Line] = []
            for line in reversed(said):
                reported = bool(PROGRESS.search(line.text))
                made = set() if _OVER_TRIES.search(line.text) else _steps([line.text])
                seen |= {line.text} if _SERVED.search(line.text) else made
                progress.append(progress[-1] + reported)
                steps.append(len(seen))
                if reported and made and not _NO_REPORT.search(line.text):
                    reports.append(line)
            last = range(max(0, len(said) - _ENDS), len(said))
            passed, done = (
                max((at for at in last if each.search(said[at].text)), default=-1) for each in (_OVER, _DONE)
            )
            self._counts[file] = _Counted(progress[::-1], steps[::-1], passed, done, reports[::-1])
        return self._counts[file]


def _counts(text: str) -> bool:
    """Return whether a line that is indented is a report, and none of a traceback."""
    return "%|" in text or bool(_COUNTS.match(text))


def _steps(texts: Iterable[str]) -> set[str]:
    """Return what steps the lines report: "epoch 0 step 10" is another one than "epoch 0 step 20"."""
    return {" ".join(found) for text in texts if (found := _STEP.findall(text))}


def _is_made(text: str) -> bool:
    """Return whether a report is of a step that was made: a bar at 0 is drawn before the first one."""
    counted = [float(part) for part, _ in _PART.findall(text)] or [float(step) for step in _STEP.findall(text)]
    return any(counted) if counted else bool(_LOSS.search(text))


class StepReports:
    """Where each speaker reported steps, to tell an error that a rank survived from one that ended it."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._places: dict[Speaker, list[tuple[int, str]]] = {}
        self._reports: list[Line] = []
        self._made: dict[str, int] = {}  # the last report in each file of a step that was made
        for each in lines:
            if PROGRESS.search(each.text):
                self._places.setdefault(each.speaker, []).append((each.at, each.text))
                self._reports.append(each)

    def made_after(self, line: Line) -> bool:
        """Return whether any rank reported a step after ``line`` in the same file, which means that all had started."""
        if line.file not in self._made:
            later = (each for each in reversed(self._reports) if each.file == line.file)
            made = (each.at for each in later if _is_made(each.text) and says_something(each.text))
            self._made[line.file] = next(made, -1)
        return self._made[line.file] > line.at

    def go_on_after(self, line: Line) -> bool:
        """Return whether the speaker of ``line`` reported several further steps after it."""
        places = self._places.get(line.speaker, [])
        after = [text for _, text in places[bisect.bisect_right(places, (line.at, "\uffff")) :][: 4 * _SURVIVED]]
        return len(_steps(after)) >= _SURVIVED or len(after) >= 4 * _SURVIVED
