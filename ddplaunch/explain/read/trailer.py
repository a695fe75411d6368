"""How ranks ended, as reported by torchrun and other launchers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from ddplaunch.explain.read.lines import SHAPES, Line, shape_of
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.explain.signatures import named, patterns
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import SIGNALS, number_of_signal, signal_name

_SIGNALS = {9: "killed", 11: "segmentation-fault", 6: "aborted", 15: "terminated", 2: "terminated", 1: "terminated"}
#: Only for negative statuses: programs exit with 128 + these numbers for reasons of their own.
_RARE_SIGNALS = {3: "terminated", 10: "terminated", 12: "terminated", 24: "time-limit"}
_FORCED = re.compile(r"Unable to shutdown process (\d+) via")
_FIELD, _ENTRY, _RULE, _RANKS, _CODE, _RETURNED, _CLOSES, _CLOSES_WELL = patterns("trailer")
_SIGNALS_MOST = 64
_OF_LAUNCHERS, _EXITS = patterns("exits-of-launchers"), patterns("exits")
_HOW = {"segmentation fault": 11, "killed": 9, "aborted": 6, "abort": 6, "bus error": 7, "terminated": 15,
        "out of memory": 9, "floating point exception": 8, "illegal hardware instruction": 4}  # fmt: skip
#: Each line that reports an exit contains one of these.
_TRIGGERS = [
    shape_of(text)
    for text in (*named("read-exits-of-launchers").needed, *named("read-exits").needed, "Unable to shutdown")
]


@lru_cache(SHAPES)
def _may_report(shape: bytes) -> bool:
    return any(trigger in shape for trigger in _TRIGGERS)


_QUOTED = re.compile(r"(?<=[\w)\]:,;] )\"[^\"]*\"")  # an example, or somebody else's words


def closes_badly(text: str) -> bool:
    """Return whether a log's last line says that the work failed, whatever program printed it."""
    text = _QUOTED.sub("", text)
    return bool(_CLOSES.search(text)) and not _CLOSES_WELL.search(text)


@dataclass(frozen=True)
class RankExit:
    """One rank's end as a launcher reports it.

    ``code`` is negative for a signal; ``by_agent``: the launcher sent that signal. ``table``: an entry of torchrun's
    summary. ``seen``: the guard saw the end, so a code above 128 is not a signal.
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


class Trailer:
    """Collects exits, line by line; in torchrun's summary it knows which rank each line is about."""

    def __init__(self) -> None:
        self.exits: list[RankExit] = []
        self._forced: set[int] = set()
        self._entries: dict[Speaker, Speaker] = {}  # for each printing speaker: the entry's rank
        self.failed_summary: Line | None = None

    def feed(self, line: Line) -> Line:
        """Process a line and return it; in a summary, with the rank of the entry as its speaker."""
        if _ENTRY.match(line.text):
            self._entries[line.speaker] = Speaker(host=line.speaker.host)
        elif (entry := self._entries.get(line.speaker)) is not None:
            line = self._summary(line, entry)
        text = line.text
        if _may_report(shape_of(text)) and (rank_exit := self._exit(line)) and rank_exit.code:
            self.exits.append(rank_exit)
        if text.endswith(" FAILED") and text.count(" ") == 1:
            self.failed_summary = self.failed_summary or line
        return line

    def _summary(self, line: Line, entry: Speaker) -> Line:
        match = _FIELD.match(line.text)
        if match is None:
            if _RULE.match(line.text) or line.text[:1].strip():
                del self._entries[line.speaker]
                return line
            return line._replace(text=line.text[2:], speaker=entry)
        name, value = match.groups()
        if name == "host":
            entry = entry._replace(host=value.strip() or entry.host)
        elif ranks := _RANKS.match(value):
            entry = entry._replace(rank=int(ranks[1]), local=int(ranks[2]))
        elif code := _CODE.match(value):
            pid = int(code[2])
            self.exits.append(RankExit(int(code[1]), line, entry.rank, entry.local, pid, entry.host, table=True))
        self._entries[line.speaker] = entry
        return line._replace(text=value, speaker=entry) if name in ("traceback", "msg") else line

    def _exit(self, line: Line) -> RankExit | None:
        """Return the exit that a launcher, a shell or a service reports in ``line``, or None."""
        if match := _FORCED.search(line.text):
            self._forced.add(int(match[1]))
            return None
        patterns = (*_OF_LAUNCHERS, *_EXITS) if line.speaker.rank is None else _EXITS
        return next((_told(match, line) for pattern in patterns if (match := pattern.search(line.text))), None)

    def finish(self) -> Iterator[RankExit]:
        """Yield the exits with ``by_agent`` set, and with ranks and hosts from torchrun's summary."""
        entries: dict[object, RankExit] = {}
        for rank_exit in self.exits:
            entries |= dict.fromkeys(_keys(rank_exit), rank_exit) if rank_exit.table else {}
        for rank_exit in self.exits:
            entry = next((entries[key] for key in _keys(rank_exit) if key in entries), rank_exit)
            rank, host = entry.rank if rank_exit.rank is None else rank_exit.rank, rank_exit.host or entry.host
            yield replace(rank_exit, rank=rank, host=host, by_agent=_by_agent(rank_exit, self._forced))


def _keys(rank_exit: RankExit) -> Iterator[object]:
    """Yield the keys by which an exit matches its entry in a summary, best first."""
    if rank_exit.pid is not None:
        yield from ((rank_exit.pid, rank_exit.host), rank_exit.pid)
    if rank_exit.local is not None:
        yield (rank_exit.host, "local", rank_exit.local)


def _told(match: re.Match[str], line: Line) -> RankExit:
    """Return the exit that ``match`` found in ``line``."""
    parts = match.groupdict()
    rank, pid, local = (int(parts[name]) if parts.get(name) else None for name in ("rank", "pid", "local"))
    number = _HOW.get((parts.get("how") or "").lower()) or int(parts.get("number") or 0)
    if name := parts.get("signal"):
        number = number_of_signal(name) or SIGNALS["SIGKILL"]
    status = int(parts.get("code") or -number)
    code = status if status < 257 else status - 128  # PBS adds 256 to a signal's number, a shell 128
    return RankExit(code, line, rank, local, pid, parts.get("host") or line.speaker.host)


def _by_agent(rank_exit: RankExit, forced: set[int]) -> bool:
    """Return whether the agent ended this rank after another one had failed: SIGTERM first, then SIGKILL."""
    if rank_exit.code == -9:
        return rank_exit.pid in forced
    if rank_exit.code != -15:
        return False
    named = _RETURNED.search(rank_exit.line.text)  # the process whose end made the launcher stop the others
    return rank_exit.table or (rank_exit.pid is None and named is None)


def exit_code(status: int) -> str:
    """Return the diagnosis code for an exit status alone, as printed in a log."""
    rare = _RARE_SIGNALS.get(-status, "unknown")
    return _SIGNALS.get(signal_number(status), rare)


def signal_number(status: int) -> int:
    """Return the signal that a status may stand for; 0 if none.

    Shells print 128 + 11; ``sys.exit(-11)`` gives 245. But 255 is ``sys.exit(-1)``.
    """
    if -_SIGNALS_MOST <= status < 0:  # Windows has statuses far below this range
        return -status
    return status - 128 if 128 < status < 160 else 256 - status if 240 < status < 254 else 0


def status_text(status: int, seen: bool = False) -> str:
    """Return "SIGKILL (exit code -9)" or "exit code 3"; a positive status ``seen`` by the guard is not a signal."""
    number = 0 if seen and status > 0 else signal_number(status)
    return f"{signal_name(number)} (exit code {status})" if number else f"exit code {status}"
