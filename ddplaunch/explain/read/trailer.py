"""How ranks ended, from the reports of torchrun and other launchers."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from ddplaunch.explain.read.lines import Line, Speaker
from ddplaunch.values.frozen import dataclass

_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d+)\)\s+local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)"
    r"|CHILD PROCESS (?:FAILED.*|(?P<pid2>\d+) \(local_rank (?P<local2>\d+)\) FAILED \(exitcode (?P<code2>-?\d+)\))"
)
_FORCED = re.compile(r"Unable to shutdown process (\d+) via")
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback|msg)\s*: ?(.*)$")
_ENTRY = re.compile(r"^\[(\d+)\]:\s*$")
_RULE = re.compile(r"^[-=*]{10,}$")
_RANKS = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_CODE = re.compile(r"(-?\d+) \(pid: (\d+)\)")
_LEGACY = re.compile(
    r"CalledProcessError: Command .*?(?: returned non-zero exit status (?P<code>\d+)"
    r"| died with <Signals\.(?P<signal>SIG\w+): \d+>)"
)
_RETURNED = re.compile(r"exits? with return code = (?P<code>-?\d+)")
_SPAWN = re.compile(
    r"process (?P<rank>\d+) terminated with (?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d+))", re.IGNORECASE
)
_MPI = re.compile(
    r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exited on signal (?P<signal>\d+)"
)
_SRUN = re.compile(
    r"srun: error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>Exited with exit code \d+|Segmentation fault"
    r"|Killed|Aborted|Bus error|Terminated|Out Of Memory)"
)
_NAMED = re.compile(r"Process name: +\[\[\d+,\d+\],(\d+)\]")  # Open MPI, its exit code on the next line
_EXIT = re.compile(r"^\s*Exit code: +(\d+)\s*$")
_HOW = {"Segmentation fault": -11, "Killed": -9, "Aborted": -6, "Bus error": -7, "Terminated": -15, "Out Of Memory": -9}
_TRIGGERS = (
    "exitcode", "Unable to shutdown", "CalledProcessError", "return code", "terminated with",
    "exited on signal", "Process name:", "Exit code:", "srun: error", "CHILD PROCESS",
)  # fmt: skip


@dataclass(frozen=True)
class RankExit:
    """One rank's end as a launcher reports it.

    ``code`` is negative for a signal; ``by_agent``: the launcher sent it. ``table``: an entry of torchrun's summary.
    """

    code: int
    line: Line
    rank: int | None = None
    local: int | None = None
    pid: int | None = None
    host: str | None = None
    time: str = ""
    by_agent: bool = False
    table: bool = False


class Trailer:
    """Collects exits, line by line; in the summary of torchrun it knows which rank each line is about."""

    def __init__(self) -> None:
        self.exits: list[RankExit] = []
        self._forced: set[int] = set()
        self._named: int | None = None
        self._tables: dict[Speaker, dict[str, str]] = {}
        self.failed_summary: Line | None = None

    def feed(self, line: Line) -> Line:
        """Take a line; return it, in a summary with the rank of the entry as its speaker."""
        text = line.text
        table = self._tables.get(line.speaker)
        if table is not None or _ENTRY.match(text):
            line = self._summary(line, table)
            text = line.text
        if any(trigger in text for trigger in _TRIGGERS):
            self._report(line)
        if "FAILED" in text and text.endswith(" FAILED"):
            self.failed_summary = self.failed_summary or line
        return line

    def _summary(self, line: Line, table: dict[str, str] | None) -> Line:
        if _ENTRY.match(line.text):
            self._tables[line.speaker] = {"entry": "1"}
            return line
        assert table is not None
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
        code, ranks = _CODE.match(table["exitcode"]), _RANKS.match(table.get("rank", ""))
        if code is None:
            return
        rank, local = (int(ranks.group(1)), int(ranks.group(2))) if ranks else (None, None)
        host = table.get("host", "").strip() or line.speaker.host
        known = RankExit(
            int(code.group(1)), line, rank, local, int(code.group(2)), host, table.get("time", ""), table=True
        )
        self.exits.append(known)

    def _report(self, line: Line) -> None:
        text = line.text
        if match := _FORCED.search(text):
            self._forced.add(int(match.group(1)))
        elif match := _FAILED.search(text):
            groups = match.groupdict()
            code, local, pid = (groups[name] or groups[name + "2"] for name in ("code", "local", "pid"))
            if code is not None:
                self._add(line, int(code), local=int(local), pid=int(pid), host=line.speaker.host)
        elif match := _MPI.search(text):
            self._add(line, -int(match["signal"]), int(match["rank"]), pid=int(match["pid"]), host=match["host"])
        else:
            self._command(line)

    def _command(self, line: Line) -> None:
        """Read how a launcher other than torchrun reports a process that it started."""
        text = line.text
        if match := _LEGACY.search(text):
            self._add(line, _number(match))  # the command is the last that was started, not the one that failed
        elif match := _RETURNED.search(text):
            self._add(line, int(match["code"]), host=line.speaker.host)
        elif match := _SPAWN.search(text):
            self._add(line, _number(match), int(match["rank"]))
        elif match := _NAMED.search(text):
            self._named = int(match.group(1))
        elif self._named is not None and (match := _EXIT.match(text)):
            self._add(line, int(match.group(1)), self._named)
            self._named = None
        elif match := _SRUN.search(text):
            how, tasks = match["how"], match["tasks"]
            code = int(how.rpartition(" ")[2]) if how.startswith("Exited") else _HOW[how]
            self._add(line, code, int(tasks) if tasks.isdecimal() else None, host=match["host"])

    def _add(
        self,
        line: Line,
        code: int,
        rank: int | None = None,
        local: int | None = None,
        pid: int | None = None,
        host: str | None = None,
    ) -> None:
        if code:
            self.exits.append(RankExit(code, line, rank, local, pid, host))

    def finish(self) -> list[RankExit]:
        """Return the exits, with ``by_agent``, and with ranks and hosts from the summary's entry for the same pid."""
        ranks = {(each.pid, each.host): each for each in self.exits if each.table and each.pid is not None}
        places = {(each.host, each.local): each for each in self.exits if each.table and each.local is not None}
        by_pid = {each.pid: each for each in self.exits if each.table and each.pid is not None}
        result: list[RankExit] = []
        for each in self.exits:
            known = ranks.get((each.pid, each.host)) or by_pid.get(each.pid) if each.pid is not None else None
            if known is None and each.local is not None:
                known = places.get((each.host, each.local))
            if known is not None:
                rank = known.rank if each.rank is None else each.rank
                each = replace(each, rank=rank, host=each.host or known.host, time=each.time or known.time)
            result.append(replace(each, by_agent=_by_agent(each, self._forced)))
        return result


def _entry_speaker(speaker: Speaker, table: dict[str, str]) -> Speaker:
    ranks = _RANKS.match(table.get("rank", ""))
    host = table.get("host", "").strip() or speaker.host
    return Speaker(int(ranks.group(1)) if ranks else None, host, None, int(ranks.group(2)) if ranks else None)


def _by_agent(each: RankExit, forced: set[int]) -> bool:
    """Return whether the agent ended this rank after another one had failed: SIGTERM first, then SIGKILL."""
    if each.pid is None:
        return each.code == -15
    if each.pid in forced and each.code == -9:
        return True
    return each.code == -15 and each.table


def _number(match: re.Match[str]) -> int:
    if match["signal"]:
        return -int(getattr(signal, match["signal"], signal.SIGKILL))
    return int(match["code"])
