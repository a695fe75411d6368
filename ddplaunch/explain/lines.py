"""Raw log text to lines with their speaker; strips what launchers put in front and refuses to judge what is said."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Speaker(NamedTuple):
    """Who printed a line, as far as the line tells. ``rank`` is global, ``local`` torchrun's ``[default3]:``."""

    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    local: int | None = None


class Line(NamedTuple):
    """One line: ``at`` orders all lines of all files, ``number`` is that of the file, from 1."""

    at: int
    file: str
    number: int
    text: str
    speaker: Speaker


NOBODY = Speaker()
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LONGEST = 8000  # characters of a line that are looked at; tables in one line have no more to say

# What follows a host's name in front of a line, where a launcher over several hosts put the name there (pdsh, stern).
_BODY = (
    r"(?:Traceback \(most|  +File \"|\[rank\d+\]|\[default\d+\]|\[\d{4}-\d\d-\d\d|[IWEF]\d{4} \d\d:|\[[EWF]\d* ?[\d:]"
    r"|nccl\w+Error: |  host +: |  exitcode +: |torch\.distributed\.|\S+:\d+:\d+ \[\d+\] NCCL |slurmstepd: |ssh exited)"
)
_HOST = re.compile(rf"^([A-Za-z][\w.-]*)(?:: |\s+\| ){_BODY}")
_NO_HOST = frozenset(("srun", "slurmstepd", "wandb", "ERROR", "WARNING", "INFO", "DEBUG", "CRITICAL", "error", "File"))
_TASK = re.compile(r"^ {0,3}(\d{1,4}): ")
_STAMP = re.compile(
    r"^(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|\d\d:\d\d:\d\d(?:[.,]\d+)?)(?: |$)(?!- )"
)
_DATED = re.compile(r"^\[\d{4}-\d\d-\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d+)?\] ?")
_RECORD = re.compile(r"^(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]+:\d+\](?: |$)")
_RANK = re.compile(r"^\[rank ?(\d+)\]: ?")
_ROLE = re.compile(r"^\[(?:default|trainer|worker|[a-z_]+)(\d+)\]:")
_MPI = re.compile(r"^\[\d+,(\d+)\]<(?:stderr|stdout)>:")
_OURS = re.compile(r"^\[([A-Za-z][\w.-]*):(\d+)\] ")
_CLOCKED = re.compile(r"^\[([A-Za-z][\w.-]*) +\d+\.\d+\] ?")
_POD = re.compile(r"^\[pod/([\w.-]+)/[\w.-]+\] ")
_ACTOR = re.compile(r"^\((?:[\w.:\[\]<>-]+ )*?pid=(\d+)(?:, ip=([\d.]+))?\) ?")
_STREAM = re.compile(r"^(?:stdout|stderr)(?: \|)?: ?")
_COUNTED = re.compile(r"^\[\d+\] (?=\[)")
_NCCL = re.compile(r"^([\w.-]+):(\d+):\d+ \[(?:\d+|\[\d+\])\] ?(?=NCCL |\S+:\d+ NCCL |\n?$)")
_CPP = re.compile(r"\[(?:PG [^\]]*? )?[Rr]ank (\d+)\]")


class Prefixes:
    """What stands in front of the lines of one file: hosts, and whether srun numbered the tasks."""

    def __init__(self, sample: Sequence[str]) -> None:
        hosts = Counter(
            match.group(1) for line in sample if (match := _HOST.match(line)) and match.group(1) not in _NO_HOST
        )
        names = sorted((name for name in hosts if not name.endswith(("Error", "Exception"))), key=len, reverse=True)
        self._host = re.compile(rf"^({'|'.join(map(re.escape, names))})(?:: ?|\s+\| ?)") if names else None
        numbered = sum(bool(_TASK.match(line)) for line in sample)
        indents = [len(line) - len(line.lstrip(" ")) for line in sample if line.strip()]
        self._indent = min(indents, default=0)  # of a log that was pasted as a block
        self._tasks = numbered > 2 and numbered * 5 > 3 * sum(bool(line.strip()) for line in sample)

    def strip(self, text: str, speaker: Speaker) -> tuple[str, Speaker]:
        """Return the text behind all prefixes, and the speaker that they name."""
        rank, host, pid, local = speaker
        text = text[self._indent :] if self._indent else text
        if self._host and (match := self._host.match(text)):
            host, text = match.group(1), text[match.end() :]
        if self._tasks and (match := _TASK.match(text)):
            rank, text = int(match.group(1)) if rank is None else rank, text[match.end() :]
        for _ in range(4):
            before = text
            if text[:1] == "[":
                text, rank, host, pid, local = _bracketed(text, rank, host, pid, local)
            elif text[:1] == "(" and (match := _ACTOR.match(text)):
                pid, host, text = int(match.group(1)), match.group(2) or host, text[match.end() :]
            elif match := _STAMP.match(text) or _RECORD.match(text) or _STREAM.match(text):
                text = text[match.end() :]
            if text is before or text == before:
                break
        if "NCCL" in text and (match := _NCCL.match(text)):
            host, pid = host or match.group(1), int(match.group(2))
        if rank is None and ("ank " in text) and (match := _CPP.search(text, 0, 200)) and _is_cpp(text):
            rank = int(match.group(1))
        return text, Speaker(rank, host, pid, local)


def _is_cpp(text: str) -> bool:
    return ".cpp:" in text[:80] or text.startswith(("  what():  [", "[Rank ", "[PG "))


def _bracketed(
    text: str, rank: int | None, host: str | None, pid: int | None, local: int | None
) -> tuple[str, int | None, str | None, int | None, int | None]:
    if match := _COUNTED.match(text):
        text = text[match.end() :]
    if match := _RANK.match(text):
        return text[match.end() :], int(match.group(1)), host, pid, local
    if match := _ROLE.match(text):
        return text[match.end() :], rank, host, pid, int(match.group(1))
    if match := _MPI.match(text):
        return text[match.end() :], int(match.group(1)), host, pid, local
    if match := _DATED.match(text):
        return text[match.end() :], rank, host, pid, local
    if match := _CLOCKED.match(text) or _POD.match(text):
        return text[match.end() :], rank, match.group(1), pid, local
    if (match := _OURS.match(text)) and not text.startswith("***", match.end()):
        number = int(match.group(2))
        if len(match.group(2)) < 5 and "ignal" not in text[match.end() : match.end() + 12]:
            return text[match.end() :], number if rank is None else rank, match.group(1), pid, local
        return text[match.end() :], rank, host or match.group(1), number, local  # Open MPI: [host:pid]
    return text, rank, host, pid, local


def clean(raw: str) -> str:
    """Return ``raw`` without ANSI codes and control characters, at most some 8000 characters of it."""
    if len(raw) > _LONGEST:
        raw = raw[: _LONGEST // 2] + " … " + raw[-_LONGEST // 2 :]
    if "\x1b" in raw:
        raw = _ANSI.sub("", raw)
    return raw.replace("\x08", "").replace("\x00", "")


def frames(raw: str) -> list[str]:
    """Return what a line shows one after the other: progress bars redraw it after each carriage return."""
    if "\r" not in raw:
        return [raw]
    pieces = [piece for piece in raw.split("\r") if piece.strip()]
    return pieces[:1] + pieces[-3:] if len(pieces) > 4 else pieces or [""]


def unfold(raw: str) -> list[str]:
    """Return the lines inside a JSON record (structured logging, container runtimes), or the line itself."""
    if '"py_callstack": "' in raw and (match := _CALLSTACK.search(raw)):  # torchelastic's error file, logged
        return match.group(1).replace("\\n", "\n").replace('\\"', '"').split("\n")
    if not raw.startswith('{"') or not raw.rstrip().endswith("}"):
        return [raw]
    try:
        record = json.loads(raw)
    except ValueError:
        return [raw]
    texts = [str(record[key]) for key in _JSON_TEXT if isinstance(record.get(key), str) and record[key]]
    return "\n".join(texts).rstrip("\n").split("\n") if texts else [raw]


_CALLSTACK = re.compile(r'"py_callstack": "(Traceback .*?[^\\])"(?:,|\s*\}|\s*$)')
_JSON_TEXT = ("message", "msg", "log", "text", "event", "exc_info", "exception", "stack_trace", "traceback")


def read_lines(
    numbered: Iterable[tuple[int, str]], file: str, speaker: Speaker = NOBODY, first: int = 0, sample: int = 4000
) -> Iterator[Line]:
    """Yield the lines of one file; ``numbered`` are (number, text without its newline), ``first`` the next place."""
    entries = [(number, clean(raw)) for number, raw in _pieces(numbered)]
    step = max(1, len(entries) // sample)
    prefixes = Prefixes([text for _, text in entries[::step]] + [text for _, text in entries[-200:]])
    index = first
    for number, text in entries:
        text, who = prefixes.strip(text, speaker)
        yield Line(index, file, number, text.rstrip(), who)
        index += 1


def _pieces(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for number, raw in numbered:
        for frame in frames(raw.rstrip("\r")):
            for inner in unfold(frame):
                yield number, inner
