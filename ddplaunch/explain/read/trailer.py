"""How ranks ended, from the reports of torchrun and other launchers."""

from __future__ import annotations

import re
from dataclasses import replace

from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import SIGNALS, number_of_signal, signal_name

_SIGNALS = {9: "killed", 11: "segmentation-fault", 6: "aborted", 15: "terminated", 2: "terminated", 1: "terminated"}
#: Of a negative status alone: programs leave with 128 + these numbers for reasons of their own.
_RARE_SIGNALS = {3: "terminated", 10: "terminated", 12: "terminated", 24: "time-limit"}
_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d+)\)\s+local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)"
    r"|CHILD PROCESS (?:FAILED.*|(?P<pid2>\d+) \(local_rank (?P<local2>\d+)\) FAILED \(exitcode (?P<code2>-?\d+)\))"
)
_FORCED = re.compile(r"Unable to shutdown process (\d+) via")
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback|msg)\s*: ?(.*)$")
_ENTRY = re.compile(r"^\[(\d+)\]:\s*$")
_CUT_ENTRY = re.compile(r"^\s*(?:time|host|rank) {6}: \S")  # of a summary whose beginning was not pasted
_RULE = re.compile(r"^[-=*]{10,}$")
_RANKS = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_CODE = re.compile(r"(-?\d+) \(pid: (\d+)\)")
_LEGACY = re.compile(
    r"CalledProcessError: Command .*?(?:python|torchrun|accelerate|deepspeed|local[_-]rank).*?"
    r"(?: returned non-zero exit status (?P<code>\d+)"
    r"| died with <Signals\.(?P<signal>SIG\w+): \d+>)"
)
_RETURNED = re.compile(
    r"(?:exits? with return code = |^Process finished with exit code |^status (?=\d{10}\.?$)"
    r"|Process finished with exit code (?=\d+ \(interrupted by signal ))(?P<code>-?\d+)"  # also in a sentence
)
#: What Windows says for SIGSEGV (an access violation, no stack left), SIGABRT and SIGINT, as unsigned numbers.
_OF_WINDOWS = {0xC0000005: -11, 0xC00000FD: -11, 0xC0000409: -6, 0xC000013A: -2}
_SPAWN = re.compile(
    r"process (?P<rank>\d+) terminated with (?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d+))", re.IGNORECASE
)
_MPI = re.compile(
    r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exited on signal (?P<signal>\d+)"
)
_PALS = re.compile(  # MPICH and HPE's launcher
    r"^(?P<host>[\w.-]+): rank (?P<rank>\d+) (?:died from signal (?P<number>\d+)|exited with code (?P<code>\d+))"
)
_SRUN = re.compile(
    r"srun: error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>Exited with exit code \d+|Segmentation fault"
    r"|Killed|Aborted|Bus error|Terminated|Out Of Memory)"
)
#: What srun, and docker compose, say before they end what is left, at last by SIGKILL.
_STEP_ENDED = re.compile(
    r"Aborting on container exit|Gracefully [Ss]topping"
    r"|srun: (?:Terminating (?:StepId|job step)|(?:error: )?Job step aborted|forcing job)"
)
_BY_THEM, _ENDED_SO = re.compile(r"srun: error: |[\w.-]+ exited with code "), (-9, 137, 143)
#: Open MPI, its exit code on the next line.
_NAMED = re.compile(r"(?:Process name: +\[\[\d+,\d+\],|MPI_ABORT was invoked on rank )(\d+)")
_EXIT = re.compile(r"^\s*(?:Exit code: +|with errorcode )(\d+)\.?\s*$")
#: Lightning.
_CHILD = re.compile(
    r"^\[rank: (?P<rank>\d+)\] Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)"
)
_HOW = {"Segmentation fault": -11, "Killed": -9, "Aborted": -6, "Bus error": -7, "Terminated": -15, "Out Of Memory": -9}
_CRASHES = "Bus error|Floating point exception|Illegal (?:hardware )?instruction|Trace/(?:breakpoint|BPT) trap"
_ENDS = "Segmentation fault|Killed|Abort|Terminated"
#: A signal by the words of bash, of zsh, and of the shells of macOS; signatures know the words of bash for some.
_SHELL = re.compile(
    rf"^(?:zsh: (?P<zsh>{_CRASHES}|{_ENDS})\b|\S+: line \d+: +(?P<pid>\d+) (?P<bash>{_CRASHES}|Terminated|Hangup)\b"
    rf"|(?P<bare>{_CRASHES}|(?:{_ENDS}|Abort trap)(?=: \d))(?:: \d+)?(?: +\(core dumped\))?\s*$"
    r"|(?:\[[\w.-]+:\d+\] )?Signal: (?P<mpi>Bus error) \()",
    re.IGNORECASE,
)
_OF_WORDS = {"bus": 7, "floating": 8, "illegal": 4, "trace/breakpoint": 5, "trace/bpt": 5,
             "segmentation": 11, "killed": 9, "abort": 6, "terminated": 15, "hangup": 1}  # fmt: skip
#: Composer.
_CRASHED = re.compile(
    r"[Rr]ank (?P<rank>\d+) (?:\(PID (?P<pid>\d+)\) )?(?:crashed|exited) with (?:exit )?code (?P<code>-?\d+)"
)
#: An exit status by the words of make, docker, `time`, LSF, systemd, supervisord, and services that run jobs.
_STATUS = re.compile(
    r"(?:^make(?:\[\d+\])?: \*\*\* .*\] Error |^[\w.-]+ exited with code |^(?:[A-Z].{14,18}: )?Exited with exit code "
    r"|^Command exited with non-zero status |exited with status (?:code )?|Process completed with exit code "
    r"|Command failed with exit code |container failed with non-zero exit code: |exited with a non-zero status of "
    r"|^ERROR: Job failed: (?:[\w ]+ )?exit (?:code|status) |\bscript returned exit code "
    r"|systemd\[1\]: \S+: Main process exited, code=exited, status=|\bexited: \S+ \(exit status (?=\d+; not expected)"
    r"|^Error: exit status |^Exited with code exit status |^The command \".*\" exited with "
    r"|^##\[error\]\w+ exited with code '|^flux-job: task\(s\) exited with exit code "
    r"|^Script done on .*COMMAND_EXIT_CODE=\"|Normal termination \(return value |_atexit_cleanup\S* got exitcode: "
    r"|AlgorithmError: Exit Code: |^[\w./-]+\.sh: exit(?:ed|ing)?(?: with)?(?: status| code)? "
    r"|Task state is updated .* with exit code |(?:^|\bTerminated)\s*Exit (?:Code|Status): +)"
    r"(?P<code>\d+)\b"
)
_TRIGGERS = (
    "core dumped", "zsh: ", ": line ", "rror", "trap: ", "Killed: ", "fault: ", "exit code", "exited with",
    "with status", "exitcode", "Unable to shutdown", "CalledProcessError", "return code", "status ", "terminated with",
    "exited on signal", "errorcode", "MPI_ABORT", "Process name:", "Exit code:", "srun: error", "CHILD PROCESS",
    "Process finished", "Job failed", "status=", "exited: ", "xit status", "Exit Code:",
    "Exit Status:", "EXIT_CODE=", "crashed with", "return value", "died from signal", ".sh: exit",
)  # fmt: skip


#: How services and wrappers that nobody knows say at the end that the work failed: a status, a level, a state, a verb.
_CLOSES = re.compile(
    r"\b(?:exit|return)(?:ed|s|ing)?\b.{0,60}?\b(?:codes?|status|value)(?: list)?[:= ]*\[?-?[1-9]\d{0,9}\b"
    r"|\b(?:error|fatal|critical): (?=\D)|\b(?-i:ERROR|FATAL|CRITICAL)\b(?!S? ?RATE)"
    r"|\bstatus: failed|\bfailed_[a-z]+\b|\b(?:fails|failed) (?:to|with|job)\b"
    r"|\b(?:job|run|task|training|workflow|execution|container|process|runner|worker|operation|pipeline|stage|step|setup"
    r"|command|\d+ / \d+|has|was)(?: \S+)?(?:'s \w+)? (?:failed|crashed|aborted|terminated|killed|interrupted"
    r"|cancell?ed)\b|\bgiv(?:e|es|ing) up\b|\bgave up\b|\btime[sd]? out\b",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"(?<=[\w)\]:,;] )\"[^\"]*\"")  # an example, or another's words
_CLOSES_WELL = re.compile(
    r"\b(?:0|no|none|without|zero)\b[\w\s-]{0,20}\b(?:fail\w*|errors?|crashed|exit code)\b"
    r"|\b(?:fail\w*|errors?|time[sd]? out|aborted|killed|cancell?ed)\W{0,3}\d"
    r"|\b(?:success\w*|succeeded|retry\w*|skip\w*|ignor\w*|recover\w*|restart\w*|warn\w*"
    r"|debug|info|finished in|code 0|own accord|normally|failed over|converge\w*|old one|failed to (?:de|in)crease"
    r"|failed to improve)\b",
    re.IGNORECASE,
)


def closes_badly(text: str) -> bool:
    """Return whether the last line of a log says that the work failed, whoever says it."""
    text = _QUOTED.sub("", text)
    return bool(_CLOSES.search(text)) and not _CLOSES_WELL.search(text)


@dataclass(frozen=True)
class RankExit:
    """One rank's end as a launcher reports it.

    ``code`` is negative for a signal; ``by_agent``: the launcher sent it. ``table``: an entry of torchrun's summary.
    ``seen``: the guard saw it, so a code above 128 is no signal. ``one_file``: both streams of the rank went there.
    """

    code: int
    line: Line
    rank: int | None = None
    local: int | None = None
    pid: int | None = None
    host: str | None = None
    by_agent: bool = False
    table: bool = False
    seen: bool = False
    one_file: bool = False


class Trailer:
    """Collects exits, line by line; in the summary of torchrun it knows which rank each line is about."""

    def __init__(self) -> None:
        self.exits: list[RankExit] = []
        self._forced: set[int] = set()
        self._named: int | None = None
        self._tables: dict[Speaker, dict[str, str]] = {}
        self.failed_summary: Line | None = None
        self._step_ended: Line | None = None

    def feed(self, line: Line) -> Line:
        """Take a line; return it, in a summary with the rank of the entry as its speaker."""
        text = line.text
        table = self._tables.get(line.speaker)
        if table is not None or _ENTRY.match(text) or (" : " in text and _CUT_ENTRY.match(text)):
            line = self._summary(line, table)
            text = line.text
        if any(trigger in text for trigger in _TRIGGERS) and (known := self._exit(line)) and known.code:
            self.exits.append(known)
        if self._step_ended is None and _STEP_ENDED.match(text):
            self._step_ended = line
        if text.endswith(" FAILED") and text.count(" ") == 1:
            self.failed_summary = self.failed_summary or line
        return line

    def _summary(self, line: Line, table: dict[str, str] | None) -> Line:
        if _ENTRY.match(line.text):
            self._tables[line.speaker] = {"entry": "1"}
            return line
        if table is None:
            table = self._tables[line.speaker] = {"entry": "1"}
        if _RULE.match(line.text) or line.text.startswith("Root Cause"):
            del self._tables[line.speaker]
            return line
        match = _FIELD.match(line.text)
        if match is None:
            if line.text and not line.text.startswith(" "):
                del self._tables[line.speaker]
                return line
            return line._replace(text=line.text[2:], speaker=_entry_speaker(line.speaker, table))
        table[match.group(1)] = match.group(2)
        if match.group(1) == "exitcode":
            self._entry(line, table)
        if match.group(1) in ("traceback", "msg"):
            return line._replace(text=match.group(2), speaker=_entry_speaker(line.speaker, table))
        return line

    def _entry(self, line: Line, table: dict[str, str]) -> None:
        if code := _CODE.match(table["exitcode"]):
            who = _entry_speaker(line.speaker, table)
            number, pid = int(code.group(1)), int(code.group(2))
            self.exits.append(RankExit(number, line, who.rank, who.local, pid, who.host, table=True))

    def _exit(self, line: Line) -> RankExit | None:
        """Return the exit that torchrun, Open MPI or another launcher reports in ``line``."""
        text, host = line.text, line.speaker.host
        if match := _FORCED.search(text):
            self._forced.add(int(match.group(1)))
        elif match := _FAILED.search(text):
            groups = match.groupdict()
            code, local, pid = (groups[name] or groups[name + "2"] for name in ("code", "local", "pid"))
            return None if code is None else RankExit(int(code), line, None, int(local), int(pid), host)
        elif match := _MPI.search(text):
            return RankExit(-int(match["signal"]), line, int(match["rank"]), None, int(match["pid"]), match["host"])
        elif line.speaker.rank is None and (match := _LEGACY.search(text)):
            return RankExit(_number(match), line)  # the command is the last that was started, not the one that failed
        elif match := _RETURNED.search(text):
            return RankExit(_number(match), line, host=host)
        elif line.speaker.rank is None and (match := _SPAWN.search(text)):  # else the rank started it
            return RankExit(_number(match), line, int(match["rank"]))
        elif match := _NAMED.search(text):
            self._named = int(match.group(1))
        elif self._named is not None and (match := _EXIT.match(text)):
            rank, self._named = self._named, None
            return RankExit(int(match.group(1)), line, rank)
        else:
            return _of_step_or_shell(line)
        return None

    def finish(self) -> list[RankExit]:
        """Return the exits, with ``by_agent``, and with ranks and hosts from the summary's entry for the same pid."""
        ranks = {(each.pid, each.host): each for each in self.exits if each.table and each.pid is not None}
        places = {(each.host, each.local): each for each in self.exits if each.table and each.local is not None}
        by_pid = {each.pid: each for each in self.exits if each.table and each.pid is not None}
        failed = any(each.code > 0 for each in self.exits)
        result = []
        for each in self.exits:
            known = ranks.get((each.pid, each.host)) or by_pid.get(each.pid) if each.pid is not None else None
            if known is None and each.local is not None:
                known = places.get((each.host, each.local))
            if known is not None:
                rank = known.rank if each.rank is None else each.rank
                each = replace(each, rank=rank, host=each.host or known.host)
            late = self._step_ended is not None and each.line.at > self._step_ended.at
            killed = late and each.code in _ENDED_SO and _BY_THEM.match(each.line.text) is not None
            result.append(replace(each, by_agent=killed or _by_agent(each, self._forced, failed)))
        return result


def _of_step_or_shell(line: Line) -> RankExit | None:
    """Return the exit that srun, a shell, or a service that runs jobs reports."""
    if match := _SRUN.search(line.text):
        how, tasks = match["how"], match["tasks"]
        number = int(how.rpartition(" ")[2]) if how.startswith("Exited") else _HOW[how]
        return RankExit(number, line, int(tasks) if tasks.isdecimal() else None, host=match["host"])
    if match := _PALS.match(line.text):
        number = int(match["code"] or 0) - int(match["number"] or 0)
        return RankExit(number, line, int(match["rank"]), host=match["host"])
    if match := _SHELL.match(line.text):
        pid, *words = (match[name] for name in ("pid", "zsh", "bash", "bare", "mpi"))
        how = next(filter(None, words)).lower().partition(" ")[0]
        return RankExit(-_OF_WORDS[how], line, None, None, None if pid is None else int(pid), line.speaker.host)
    if match := _CHILD.match(line.text):
        return RankExit(int(match["code"]), line, int(match["rank"]), None, int(match["pid"]), line.speaker.host)
    if match := _CRASHED.search(line.text):
        pid = None if match["pid"] is None else int(match["pid"])
        return RankExit(int(match["code"]), line, int(match["rank"]), None, pid, line.speaker.host)
    if match := _STATUS.search(line.text):
        number = int(match["code"])  # PBS: 256 and the signal, where a shell has 128
        return RankExit(number if number < 257 else number - 128, line, host=line.speaker.host)
    return None


def _entry_speaker(speaker: Speaker, table: dict[str, str]) -> Speaker:
    ranks = _RANKS.match(table.get("rank", ""))
    host = table.get("host", "").strip() or speaker.host
    return Speaker(int(ranks.group(1)) if ranks else None, host, None, int(ranks.group(2)) if ranks else None)


def _by_agent(each: RankExit, forced: set[int], failed: bool) -> bool:
    """Return whether the agent ended this rank after another one had ``failed``: SIGTERM first, then SIGKILL."""
    if each.code == -9:
        return each.pid in forced
    if each.code != -15:
        return False
    named = _RETURNED.search(each.line.text)  # the process whose end made the launcher stop the others
    return each.table or (each.pid is None and named is None) or (failed and bool(_CRASHED.search(each.line.text)))


def _number(match: re.Match[str]) -> int:
    if match.groupdict().get("signal"):
        return -(number_of_signal(match["signal"]) or SIGNALS["SIGKILL"])
    code = int(match["code"])
    return _OF_WINDOWS.get(code % 2**32, code)


def exit_code(status: int) -> str:
    """Return the diagnosis code of an exit status alone, as a log tells it."""
    rare = _RARE_SIGNALS.get(-status, "unknown")
    return _SIGNALS.get(signal_number(status), rare)


def signal_number(status: int) -> int:
    """Return the signal that a status may stand for, 0 for none.

    Shells print 128 + 11, ``sys.exit(-11)`` gives 245; 255 is what ``sys.exit(-1)`` gives.
    """
    if status < 0:
        return -status
    return status - 128 if 128 < status < 160 else 256 - status if 240 < status < 254 else 0


def status_text(status: int, seen: bool = False) -> str:
    """Return "SIGKILL (exit code -9)" or "exit code 3"; a positive status that the guard has ``seen`` is no signal."""
    number = 0 if seen and status > 0 else signal_number(status)
    return f"{signal_name(number)} (exit code {status})" if number else f"exit code {status}"
