"""Logs of any size to numbered lines, without the prefixes of launchers and with the rank and host that these name.

Small logs are read whole. Of big ones both ends are read, and what surrounds a few telling words between them. Blocks
are searched at some GB/s, and neither time nor memory depend on how much a training prints.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ddplaunch.explain.diagnosis import LogSource


class Speaker(NamedTuple):
    """Who printed a line, as far as its prefix tells. ``rank`` is global, ``local`` from torchrun's ``[default3]:``."""

    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    local: int | None = None


class Line(NamedTuple):
    """One line: ``at`` counts the lines of all files, ``number`` those of its file, from 1."""

    at: int
    file: str
    number: int
    text: str
    speaker: Speaker


NOBODY = Speaker()
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LONGEST = 8000  # characters of a line that are read

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
    """The prefixes of one file's lines: names of hosts, the numbers of srun's tasks, and an indent of all lines."""

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

    def strip(self, text: str, who: Speaker) -> tuple[str, Speaker]:
        """Return the text without its prefixes, and the speaker that they name."""
        text = text[self._indent :] if self._indent else text
        if self._host and (match := self._host.match(text)):
            text, who = text[match.end() :], who._replace(host=match.group(1))
        if self._tasks and (match := _TASK.match(text)):
            text, who = text[match.end() :], who if who.rank is not None else who._replace(rank=int(match.group(1)))
        for _ in range(4):
            before = text
            if text[:1] == "[":
                text, who = _bracketed(text, who)
            elif text[:1] == "(" and (match := _ACTOR.match(text)):
                text, who = text[match.end() :], who._replace(pid=int(match.group(1)), host=match.group(2) or who.host)
            elif match := _STAMP.match(text) or _RECORD.match(text) or _STREAM.match(text):
                text = text[match.end() :]
            if text == before:
                break
        if "NCCL" in text and (match := _NCCL.match(text)):
            who = who._replace(host=who.host or match.group(1), pid=int(match.group(2)))
        if who.rank is None and "ank " in text and (match := _CPP.search(text, 0, 200)) and _is_cpp(text):
            who = who._replace(rank=int(match.group(1)))
        return text, who


def _is_cpp(text: str) -> bool:
    return ".cpp:" in text[:80] or text.startswith(("  what():  [", "[Rank ", "[PG "))


def _bracketed(text: str, who: Speaker) -> tuple[str, Speaker]:
    if match := _COUNTED.match(text):
        text = text[match.end() :]
    if match := _RANK.match(text) or _MPI.match(text):
        return text[match.end() :], who._replace(rank=int(match.group(1)))
    if match := _ROLE.match(text):
        return text[match.end() :], who._replace(local=int(match.group(1)))
    if match := _DATED.match(text):
        return text[match.end() :], who
    if match := _CLOCKED.match(text) or _POD.match(text):
        return text[match.end() :], who._replace(host=match.group(1))
    match = _OURS.match(text)
    if match is None or text.startswith("***", match.end()):
        return text, who
    host, number, rest = match.group(1), int(match.group(2)), text[match.end() :]
    if len(match.group(2)) < 5 and "ignal" not in rest[:12]:
        return rest, who._replace(rank=number if who.rank is None else who.rank, host=host)
    return rest, who._replace(host=who.host or host, pid=number)  # Open MPI: [host:pid]


def clean(raw: str) -> str:
    """Return ``raw`` without ANSI codes and control characters, cut in the middle to some 8000 characters."""
    if len(raw) > _LONGEST:
        raw = raw[: _LONGEST // 2] + " … " + raw[-_LONGEST // 2 :]
    if "\x1b" in raw:
        raw = _ANSI.sub("", raw)
    return raw.replace("\x08", "").replace("\x00", "")


def frames(raw: str) -> list[str]:
    """Return what a line showed one after the other: progress bars redraw it after each carriage return."""
    if "\r" not in raw:
        return [raw]
    pieces = [piece for piece in raw.split("\r") if piece.strip()]
    return pieces[:1] + pieces[-3:] if len(pieces) > 4 else pieces or [""]


def unfold(raw: str) -> list[str]:
    """Return the lines inside a JSON record (structured logging, container runtimes), else the line itself."""
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
    """Yield the lines of one file. ``numbered`` are (number, text without newline), ``first`` is the first ``at``."""
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


WHOLE_BYTES = 4 << 20  # all logs together, read line by line
_LEAST_BYTES = 64 << 10  # of each log, at least
_BLOCK_BYTES = 8 << 20
_BEFORE_BYTES, _AFTER_BYTES = 2 << 10, 12 << 10  # around a telling word: a traceback is longer than its first line
_FIRST, _LAST = 24, 8  # telling words of one log whose surroundings are read
#: Nearly every failure in the middle of a log prints one of these.
_TELLING = (b"Traceback (most", b"Error", b"ERROR", b"terminate called")

Numbered = tuple[int, str]


def numbered_lines(sources: Sequence[LogSource]) -> Iterator[tuple[LogSource, list[Numbered]]]:
    """Yield each log with its numbered lines, without newlines. Raises OSError if a file cannot be read."""
    sizes = [_size(source) for source in sources]
    whole = sum(sizes) <= WHOLE_BYTES
    share = max(_LEAST_BYTES, WHOLE_BYTES // max(1, len(sources)))
    for source, size in zip(sources, sizes, strict=True):
        if isinstance(source.read, bytes):
            yield source, _numbered(source.read if whole else _ends(source.read, share), 1)
        elif isinstance(source.read, Path):
            with open(source.read, "rb") as file:
                yield source, _numbered(file.read(), 1) if whole or size <= share else _big(file, size, share)
        else:
            yield source, _stream(source.read, share)


def _size(source: LogSource) -> int:
    if isinstance(source.read, bytes):
        return len(source.read)
    return source.read.stat().st_size if isinstance(source.read, Path) else 0


def _numbered(data: bytes, first: int) -> list[Numbered]:
    text = data.decode("utf-8", "replace")
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return list(enumerate(lines, start=first))


def _ends(data: bytes, share: int) -> bytes:
    return data if len(data) <= share else data[: share // 4] + b"\n" + data[-3 * share // 4 :]


def _stream(stream: BinaryIO, share: int) -> list[Numbered]:
    """Read a pipe; only its ends, and the surroundings of telling words, are kept in memory."""
    head = stream.read(WHOLE_BYTES)
    if len(head) < WHOLE_BYTES:
        return _numbered(head, 1)
    windows = _Windows()
    tail = b""
    offset = 0
    block = head
    while block:
        windows.search(block, offset)
        tail = (tail + block)[-share:]
        offset += len(block)
        block = stream.read(_BLOCK_BYTES)
    lines = _numbered(head[: share // 4], 1)
    return _merged(lines, windows, tail, offset - len(tail), offset)


def _big(file: BinaryIO, size: int, share: int) -> list[Numbered]:
    head = file.read(share // 4)
    windows = _Windows()
    offset = len(head)
    windows.passed = head.count(b"\n")
    tail_at = max(offset, size - 3 * share // 4)
    while offset < tail_at and (block := file.read(min(_BLOCK_BYTES, tail_at - offset))):
        windows.search(block, offset)
        offset += len(block)
    file.seek(offset, os.SEEK_SET)
    return _merged(_numbered(head, 1), windows, file.read(3 * share // 4 + _BLOCK_BYTES), offset, size)


def _merged(head: list[Numbered], windows: _Windows, tail: bytes, tail_at: int, size: int) -> list[Numbered]:
    lines = head[:-1] if tail else head  # the last one may be cut
    for number, data in windows.kept():
        lines += [each for each in _numbered(data, number) if each[0] > lines[-1][0]] if lines else []
    number = windows.passed + 1
    if tail_at + len(tail) >= size and windows.offset > tail_at:  # a stream: the tail was counted as well
        number -= tail.count(b"\n")
    last = _numbered(tail, number)[1:]
    return lines + [each for each in last if not lines or each[0] > lines[-1][0]]


class _Windows:
    """The surroundings of the first and the last telling words, in blocks that are read once."""

    def __init__(self) -> None:
        self.passed = 0  # newlines of all blocks so far
        self.offset = 0
        self._first: list[tuple[int, bytes]] = []
        self._last: list[tuple[int, bytes]] = []

    def search(self, block: bytes, offset: int) -> None:
        """Look through the next block."""
        end = 0
        for at in self._places(block):
            if at < end:
                continue
            start = block.rfind(b"\n", 0, max(0, at - _BEFORE_BYTES)) + 1
            end = at + _AFTER_BYTES
            self._keep((self.passed + block.count(b"\n", 0, start) + 1, block[start:end]))
        self.passed += block.count(b"\n")
        self.offset = offset + len(block)

    def _places(self, block: bytes) -> list[int]:
        places: list[int] = []
        for word in _TELLING:
            at = block.find(word)
            for _ in range(_FIRST):
                if at < 0:
                    break
                places.append(at)
                at = block.find(word, at + _AFTER_BYTES)
        return sorted(places)

    def _keep(self, window: tuple[int, bytes]) -> None:
        if len(self._first) < _FIRST:
            self._first.append(window)
        else:
            self._last = [*self._last[-(_LAST - 1) :], window]

    def kept(self) -> list[tuple[int, bytes]]:
        """Return (number of the first line, bytes) of each window, in their order."""
        return self._first + self._last
