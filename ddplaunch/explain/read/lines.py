"""Logs of any size to numbered lines, without the prefixes of launchers and with the rank and host that these name.

Small logs are read whole. Of big ones both ends are read, and what surrounds a few telling words between them. Blocks
are searched at some GB/s, and neither time nor memory depend on how much a training prints.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ddplaunch.explain.diagnosis import LogSource
from ddplaunch.explain.read.packed import unpacked


class Speaker(NamedTuple):
    """Who printed a line, as far as its prefix tells. ``rank`` is global, ``local`` from torchrun's ``[default3]:``.

    ``quoted``: the file of a record is this rank's, and the prefix names another one.
    """

    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    local: int | None = None
    quoted: bool = False


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
_LONG_LINE = 1000
_WORDS = 4  # characters behind a progress bar that are more than another digit
_BAR = " #=>▏▎▍▌▋▊▉█━╸╺-"
_PARTS = re.compile(rf"\d[\d.:?]*|[{_BAR}]+|[^\d{_BAR}]+").findall
_LONG_NUMBER = re.compile(r"(\d{20})\d{80,}")  # Python refuses numbers of more than some thousand digits

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
#: Serving stacks name the rank behind the time: its own where tensors are parallel alone, not in a group of several.
_DATED = re.compile(
    r"^\[\d{4}-\d\d-\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?(?: TP(?P<rank>\d{1,5})|(?: [A-Z]{2}\d{1,5})+)?\] ?"
)
#: Determined: the container, the rank, and bars in front of what it printed; its command shows the level.
_TRIAL = re.compile(r"^(?:<[a-z]+> +(?=\[)|[0-9a-f]{8} (?:\[rank=(?P<rank>\d{1,7})\] )?\|\| ?|\|\| (?=[A-Z]+: ))")
#: Python's logging, where it repeats what a rank has printed.
_REPEATED = re.compile(r"^\d{4}-\d\d-\d\d[T ][\d:]{8}(?:[.,]\d+)? - [\w.]+ - [A-Z]{4,8} - (?=\[rank\d+\]: )")
_RECORD = re.compile(r"^(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]+:\d+\](?: |$)")
#: Lightning has another place for the colon, and tells so of a process that is gone.
_RANK = re.compile(r"^\[rank(?:: (?=\d+\] (?!Child process))| ?(?=\d+\]:))(\d{1,7})\]:? ?")
_ROLE = re.compile(r"^\[(?:default|trainer|worker|[a-z_]+)(\d{1,7})\]:")
_MPI = re.compile(r"^\[(?:\d+,)?(?:mpirank:)?(\d{1,7})(?:,[\w.-]+)?\]<(?:stderr|stdout)>:")
_OURS = re.compile(r"^\[([A-Za-z][\w.-]*):(\d{1,10})\] ")
_CLOCKED = re.compile(r"^\[([A-Za-z][\w.-]*) +\d+\.\d+\] ?")
_POD = re.compile(r"^\[pod/([\w.-]+)/[\w.-]+\] ")
_ACTOR = re.compile(
    r"^\((?:Worker_TP(?P<worker>\d{1,5}) |VllmWorker rank=(?P<rank>\d{1,5}) )?(?:[\w.-]+, rank=(?P<node>\d{1,7}), )?"
    r"(?:[\w.:=\[\]<>-]+ )*?pid=(?P<pid>\d{1,10})(?:, ip=(?P<ip>[\d.]+))?\) ?"
)
_PASTED = re.compile(r"^(?:> ?)+")  # as mails and issues quote
_STREAM = re.compile(r"^(?:(?:stdout|stderr)(?: \|)?: ?|[\w.-]+(?: \[[\w.-]+\])? \[(?:stdout|stderr)\] )")
_COUNTED = re.compile(r"^\[\d+\] (?=\[)|^\[[\w-]+/\w+/\w+ \(pid \d+\)\] ?")  # the latter: a task of Metaflow
_REPLICA = re.compile(r"^[A-Za-z][\w.-]*/\d{1,6} (?=\[(?:default|rank|trainer)\d)")  # torchx: role and replica
_NCCL = re.compile(r"^([\w.-]+):(\d{1,10}):\d+ \[(?:\d+|\[\d+\])\] ?(?=NCCL |\S+:\d+ NCCL |\n?$)")
_CPP = re.compile(r"\[(?:PG [^\]]*? )?[Rr]ank (\d{1,7})\]")
#: journald and syslog; what systemd and the kernel say of others is read with their names.
_SYSLOG = re.compile(r"^[A-Z][a-z]{2} [ \d]\d [\d:]{8} [\w.-]+ (?!systemd|kernel)[\w.@/-]+\[\d+\]: ?")

_IN_FRONT = (_STAMP, _REPEATED, _RECORD, _STREAM, _REPLICA, _TRIAL, _SYSLOG)


class Prefixes:
    """The prefixes of one file's lines: names of hosts, the numbers of srun's tasks, and an indent of all lines."""

    def __init__(self, sample: Sequence[str]) -> None:
        hosts = Counter(
            match.group(1)
            for line in sample
            if (match := _HOST.match(_STAMP.sub("", line, count=1))) and match.group(1) not in _NO_HOST
        )
        names = sorted((name for name in hosts if not name.endswith(("Error", "Exception"))), key=len, reverse=True)
        self._host = re.compile(rf"^({'|'.join(map(re.escape, names))})(?:: ?|\s+\| ?)") if names else None
        numbered = sum(bool(_TASK.match(line)) for line in sample)
        indents = [len(line) - len(line.lstrip(" ")) for line in sample if line.strip()]
        self._indent = min(indents, default=0)  # of a log that was pasted as a block
        self._pasted = 2 * sum(bool(_PASTED.match(line)) for line in sample) > sum(
            bool(line.strip()) for line in sample
        )
        self._begun: int | None = None
        self._inside = False
        self._tasks = numbered > 2 and numbered * 5 > 3 * sum(bool(line.strip()) for line in sample)

    def _of_record(self, text: str, who: Speaker) -> Speaker:
        """Return who printed the rest of a record: only its first line has a stamp, the traceback below it has none."""
        if match := _DATED.match(text):
            self._begun, self._inside = None if match["rank"] is None else int(match["rank"]), True
            return who
        going_on, self._inside = self._inside or text[:1] == " ", text[:1] == " "
        if not going_on:
            self._begun = None
        return who if self._begun is None else who._replace(rank=self._begun)

    def strip(self, text: str, who: Speaker) -> tuple[str, Speaker]:
        """Return the text without its prefixes, and the speaker that they name."""
        text = text[self._indent :] if self._indent else text
        if self._pasted and (match := _PASTED.match(text)):
            text = text[match.end() :]
        if who.rank is None and (self._begun is not None or text[:2] == "[2"):
            who = self._of_record(text, who)
        if self._host and (match := self._host.match(bare := _STAMP.sub("", text, count=1))):
            text, who = bare[match.end() :], who._replace(host=match.group(1))
        if self._tasks and (match := _TASK.match(text)):
            text, who = text[match.end() :], who if who.rank is not None else who._replace(rank=int(match.group(1)))
        for _ in range(4):
            before = text
            if text[:1] == "[":
                text, who = _bracketed(text, who)
            elif text[:1] == "(" and (match := _ACTOR.match(text)):
                text, who = text[match.end() :], _actor(match, who)
            else:
                text, who = _in_front(text, who)
            if text == before:
                break
        return text, _native(text, who)


def _in_front(text: str, who: Speaker) -> tuple[str, Speaker]:
    match = next(filter(None, (each.match(text) for each in _IN_FRONT)), None)
    if match is None:
        return text, who
    rank = match.groupdict().get("rank")
    return text[match.end() :], who if rank is None or who.rank is not None else who._replace(rank=int(rank))


def _actor(match: re.Match[str], who: Speaker) -> Speaker:
    """Return the worker process of a serving stack or of Ray; one of the former may name its rank."""
    rank = match["worker"] or match["rank"] or match["node"]
    known = who.rank if rank is None or who.rank is not None else int(rank)
    return who._replace(rank=known, pid=int(match["pid"]), host=match["ip"] or who.host)


def _native(text: str, who: Speaker) -> Speaker:
    """Return the speaker as NCCL's and c10d's own lines name it; they stay as they are."""
    if "NCCL" in text and (match := _NCCL.match(text)):
        who = who._replace(host=who.host or match.group(1), pid=int(match.group(2)))
    if who.rank is None and "ank " in text and (match := _CPP.search(text, 0, 200)) and _is_cpp(text):
        who = who._replace(rank=int(match.group(1)))
    return who


def _is_cpp(text: str) -> bool:
    return ".cpp:" in text[:80] or text.startswith(("  what():  [", "[Rank ", "[PG "))


def _bracketed(text: str, who: Speaker) -> tuple[str, Speaker]:
    if match := _COUNTED.match(text):
        text = text[match.end() :]
    if match := _RANK.match(text) or _MPI.match(text):
        if who.rank is not None and who.host is not None and who.rank != int(match.group(1)):  # a record knows
            return text[match.end() :], who._replace(quoted=True)
        return text[match.end() :], who._replace(rank=int(match.group(1)))
    if match := _ROLE.match(text):
        return text[match.end() :], who._replace(local=int(match.group(1)))
    if match := _DATED.match(text):
        rank = match["rank"]
        return text[match.end() :], who if rank is None or who.rank is not None else who._replace(rank=int(rank))
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
    if len(raw) > _LONG_LINE:
        raw = _LONG_NUMBER.sub(r"\1…", raw)
    if "\x1b" in raw:
        raw = _ANSI.sub("", raw)
    return raw.replace("\x08", "").replace("\x00", "")


def frames(raw: str) -> list[str]:
    """Return what a line showed one after the other: progress bars redraw it after each carriage return."""
    if "\r" not in raw:
        return [raw]
    pieces = [piece for piece in raw.split("\r") if piece.strip()]
    shown = pieces[:1] + pieces[-3:] if len(pieces) > 4 else pieces or [""]
    return shown[:-1] + _bar_and_words(*shown[-2:]) if len(shown) > 1 else shown


def _bar_and_words(before: str, last: str) -> list[str]:
    """Return what a bar showed ``last``, and apart from it what was printed right behind the bar, on the same line.

    A bar is drawn over and over: as ``before``, with other numbers.
    """
    if len(last) < len(before) + _WORDS or len(last) > _LONG_LINE:
        return [last]
    shape = "".join(
        r"[\d.:?]+" if part[0].isdigit() else f"[{_BAR}]*" if part[0] in _BAR else re.escape(part)
        for part in _PARTS(before)
    )
    match = re.match(shape, last)
    return [last[: match.end()], last[match.end() :]] if match and last[match.end() :].strip() else [last]


def unfold(raw: str) -> list[str]:
    """Return the lines inside a JSON record (structured logging, container runtimes), else the line itself."""
    if '"py_callstack": "' in raw and (match := _CALLSTACK.search(raw)):  # torchelastic's error file, logged
        return match.group(1).replace("\\n", "\n").replace('\\"', '"').split("\n")
    if not raw.startswith('{"') or not raw.rstrip().endswith("}"):
        return [raw]
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return [raw]
    texts = [str(record[key]) for key in _JSON_TEXT if isinstance(record.get(key), str) and record[key]]
    steps = [f"{key} {record[key]}" for key in _JSON_STEPS if type(record.get(key)) in (int, float)]
    texts = [" ".join([*texts[:1], *steps]), *texts[1:]] if steps else texts
    rank = next((record[key] for key in ("rank", "global_rank") if type(record.get(key)) is int), -1)
    front = f"[rank{rank}]: " if 0 <= rank < _MOST_RANKS else ""
    return [front + line for line in "\n".join(texts).rstrip("\n").split("\n")] if texts else [raw]


_CALLSTACK = re.compile(r'"py_callstack": "(Traceback .*?[^\\])"(?:,|\s*\}|\s*$)')
_JSON_TEXT = (
    *("message", "msg", "log", "text", "event", "exc_info", "exc_text", "exc", "exception", "error", "err"),
    *("stack_trace", "stack", "traceback"),
)
_JSON_STEPS = ("epoch", "step", "global_step", "iteration", "iter")
_MOST_RANKS = 10**7


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
    sizes = [source.read.stat().st_size if isinstance(source.read, Path) else 0 for source in sources]
    whole = sum(sizes) <= WHOLE_BYTES
    share = max(_LEAST_BYTES, WHOLE_BYTES // max(1, len(sources)))
    for source, size in zip(sources, sizes, strict=True):
        if isinstance(source.read, Path):
            with open(source.read, "rb") as file:
                packed = unpacked(file)
                if packed is not None:
                    lines = _stream(packed, share)
                    yield replace(source, cut=getattr(packed, "broken", False)), lines
                else:
                    yield source, _numbered(file.read(), 1) if whole or size <= share else _big(file, size, share)
        else:
            yield source, _stream(unpacked(source.read) or source.read, share)


def _numbered(data: bytes, first: int) -> list[Numbered]:
    lines = data.decode("utf-8", "replace").split("\n")
    return list(enumerate(lines if lines[-1] else lines[:-1], start=first))


def _stream(stream: BinaryIO, share: int) -> list[Numbered]:
    """Read a pipe; only its ends, and the surroundings of telling words, are kept in memory."""
    block = head = stream.read(share)
    if len(head) < share:
        return _numbered(head, 1)
    windows, tail = _Windows(), b""
    while block:
        windows.search(block)
        tail = (tail + block)[-share:]
        block = stream.read(_BLOCK_BYTES)
    return _merged(head[: share // 4], windows, windows.passed - tail.count(b"\n"), tail)


def _big(file: BinaryIO, size: int, share: int) -> list[Numbered]:
    head = file.read(share // 4)
    windows = _Windows()
    windows.passed = head.count(b"\n")
    left = size - 3 * share // 4 - len(head)
    while left > 0 and (block := file.read(min(_BLOCK_BYTES, left))):
        windows.search(block)
        left -= len(block)
    return _merged(head, windows, windows.passed, file.read(3 * share // 4 + _BLOCK_BYTES))


def _merged(head: bytes, windows: _Windows, before_tail: int, tail: bytes) -> list[Numbered]:
    """Return the lines of both ends and of the windows, each once; ``before_tail`` newlines precede the tail."""
    pieces = [_numbered(data, number) for number, data in windows.kept()]
    lines = _numbered(head, 1)
    if tail:
        lines.pop()  # it may be cut, and so may the first one of the tail
        pieces.append(_numbered(tail, before_tail + 1)[1:])
    for piece in pieces:
        last = lines[-1][0] if lines else 0
        lines += [each for each in piece if each[0] > last]
    return lines


class _Windows:
    """The surroundings of the first and the last telling words, in blocks that are read once."""

    def __init__(self) -> None:
        self.passed = 0  # newlines of all blocks so far
        self._first: list[tuple[int, bytes]] = []
        self._last: deque[tuple[int, bytes]] = deque(maxlen=_LAST)

    def search(self, block: bytes) -> None:
        """Look through the next block."""
        end = 0
        for at in self._places(block):
            if at < end:
                continue
            start = block.rfind(b"\n", 0, max(0, at - _BEFORE_BYTES)) + 1
            end = at + _AFTER_BYTES
            kept = self._first if len(self._first) < _FIRST else self._last
            kept.append((self.passed + block.count(b"\n", 0, start) + 1, block[start:end]))
        self.passed += block.count(b"\n")

    def _places(self, block: bytes) -> list[int]:
        places: list[int] = []
        for word in _TELLING:
            if (
                block.rfind(word) < 0
            ):  # in most blocks there is none; CPython finds that out four times faster backwards
                continue
            at = block.find(word)
            for _ in range(_FIRST):
                if at < 0:
                    break
                places.append(at)
                at = block.find(word, at + _AFTER_BYTES)
        return sorted(places)

    def kept(self) -> list[tuple[int, bytes]]:
        """Return (number of the first line, bytes) of each window, in their order."""
        return [*self._first, *self._last]


def reason_text(lines: Sequence[Line]) -> str:
    """Return the first of a rank's last words, with the line that it announces by a colon, as panics of Rust do."""
    texts = [line.text.strip() for line in lines]
    return " ".join(texts[:2]) if texts[:1] and texts[0].endswith(":") else "".join(texts[:1])
