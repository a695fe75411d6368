"""Logs of any size to numbered lines, without the prefixes of launchers and with the rank and host that these name.

Small logs are read whole. Of big ones both ends are read, and what surrounds a few telling words between them. Blocks
are searched at some GB/s, and neither time nor memory depend on how much a training prints.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import unescape
from itertools import groupby, islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ddplaunch.explain.diagnosis import Evidence, LogSource
from ddplaunch.explain.read.packed import lines_inside, unfold, unpacked
from ddplaunch.explain.read.prefixes import NOBODY, Prefixes, Speaker, without_known

Numbered = tuple[int, str]
#: A line that warns of an error, or says that the program goes on.
_LOGGED = re.compile(
    r"\b(?:WARNING|(?<!NCCL )WARN|DEBUG)\b"
    r"|(?i:\b(?:skip(?:ping|ped)?|ignor(?:ing|ed)|retry(?:ing)?(?! count)|halv(?:ing|ed)|fall(?:ing)? ?back"
    r"|continuing|going on|will not be (?:enabled|used)|übersprungen|überspringe|weiter mit|erneuter versuch"
    r"|ignorée?|on continue|omitiendo|se omite|reintent\w+|pomijam|ponawiam|пропуск\w+|повтор\w+|продолжа\w+)\b)"
    r"|跳过|忽略|重试|改用|继续|スキップ|再試行|続行|건너뜁|재시도|계속"
)


def announced(text: str) -> bool:
    """Return whether a line says of an error that the program goes on: it warns, skips, or tries again."""
    return bool(_LOGGED.search(text))


class Line(NamedTuple):
    """One line: ``at`` counts the lines of all files, ``number`` those of its file, from 1."""

    at: int
    file: str
    number: int
    text: str
    speaker: Speaker

    @property
    def evidence(self) -> Evidence:
        """The line as evidence, cut at some 300 characters."""
        text = self.text.strip()
        return Evidence(self.file, self.number, text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
#: What a page of the web makes of quotes and brackets, and of what it shows twice escaped.
_ESCAPED = re.compile(r"&(?:amp;)?(?:lt|gt|quot|apos|amp|nbsp|#0?39|#x27);")
#: What no reader sees: marks of an encoding, spaces without width; and the spaces of a page of the web.
_UNSEEN = {0xFEFF: None, 0x200B: None, 0xA0: " "}
_LONGEST = 8000  # characters of a line that are read
_LONG_LINE = 1000
_SHOWN = 300  # characters of a line that is evidence
_WORDS = 4  # characters behind a progress bar that are more than another digit
_BAR = " #=>▏▎▍▌▋▊▉█━╸╺-"
_PARTS = re.compile(rf"\d[\d.:?]*|[{_BAR}]+|[^\d{_BAR}]+").findall
_LONG_NUMBER = re.compile(r"(\d{20})\d{80,}")  # Python refuses numbers of more than some thousand digits


def clean(raw: str) -> str:
    """Return ``raw`` without ANSI codes and control characters, cut in the middle to some 8000 characters."""
    if len(raw) > _LONGEST:
        raw = raw[: _LONGEST // 2] + " … " + raw[-_LONGEST // 2 :]
    if len(raw) > _LONG_LINE:
        raw = _LONG_NUMBER.sub(r"\1…", raw)
    if "\x1b" in raw:
        raw = _ANSI.sub("", raw)
    if "&" in raw:
        raw = _ESCAPED.sub(lambda match: unescape(match[0]), raw)
    raw = raw.replace("\x08", "").replace("\x00", "")
    return raw if raw.isascii() else raw.translate(_UNSEEN)


#: A name that ranks without a prefix wrote at once, and what they wrote behind it: "KeyErrorKeyError: : 'a''a'".
_AT_ONCE = re.compile(r"^(?:: )?(((?:[a-z_]\w*\.)*[A-Z][A-Za-z]{0,60}?(?:Error|Exception))\2+)(?:: ?)*(.*)$")
_SPACED = re.compile(r"^((?:\w+\.)*[A-Z]\w*(?:Error|Exception)) +: ")  # two writers at once
_WIDEST = 640  # characters of a line that several may have written


def untangled(text: str) -> str:
    """Return the last line of a traceback as one rank prints it; those that write at once mix theirs."""
    text = _SPACED.sub(r"\1: ", text)
    if text.count("Error") + text.count("Exception") > 1 and (match := _AT_ONCE.match(text[:_WIDEST])):
        times, said = len(match[1]) // len(match[2]), match[3]
        part = said[: len(said) // times]
        return f"{match[2]}: {part if part * times == said else said}"
    return text


_IS_NAMED = re.compile(
    r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout)(?:\(\w+\))?(?::|$)"
)
_RAISES = re.compile(r"(?:^|[:;] *)raise ((?:[A-Za-z_]\w*\.)*[A-Z]\w*)\(")


def with_type(text: str, source: str) -> str:
    """Return the last line of a traceback in the form of Python, whose last frame shows the line ``source``.

    What prints frames and message by itself, as hooks for uncaught exceptions do, leaves the type to the line of source
    that raised it.
    """
    raises = None if names_exception(text) else _RAISES.search(source)
    return f"{raises[1]}: {text}" if raises else text


def names_exception(text: str) -> bool:
    """Return whether a line begins with the name of an exception, as the last one of a traceback does."""
    return bool(_IS_NAMED.match(text))


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


def read_lines(
    numbered: Iterable[tuple[int, str]], file: str, speaker: Speaker = NOBODY, first: int = 0, sample: int = 4000
) -> Iterator[Line]:
    """Yield the lines of one file. ``numbered`` are (number, text without newline), ``first`` is the first ``at``."""
    numbered = list(numbered)
    if len(numbered) == 1 and numbered[0][1].count("\\n") >= _ESCAPES:  # a log that was pasted as a string
        number, raw = numbered[0]
        numbered = [(number, each) for each in raw.replace('\\"', '"').replace("\\t", "\t").split("\\n")]
    entries = [(number, clean(raw)) for number, raw in _pieces(_unwrapped(numbered))]
    step = max(1, len(entries) // sample)
    prefixes = Prefixes([text for _, text in entries[::step] + (entries[-200:] if step > 1 else [])])
    index = first
    for number, text in entries:
        text, who = prefixes.strip(text, speaker)
        packed = text[:2] == '{"' or "(most recent call last):" in text[:-1] or "ChildFailedError: " in text
        for inner in lines_inside(text) if packed else (text,):
            inner, who = without_known(inner, who) if packed else (inner, who)
            yield Line(index, file, number, inner.rstrip(), who)
            index += 1


_WIDTHS = range(60, 301)  # columns of terminals
_CUT_IN = re.compile(r"[\w/,.\"'(=-]")  # what a line that goes on ends and begins with, more often than not
_DRAWN = re.compile(r"(\W)\1{5}| {4}$|[│┃║▁-▏|]\s*$")  # rulers, boxes, bars, and lines that are filled up with spaces
_FEWEST_CUT, _NEARLY, _ALIKE = 2, 8, 4  # lines that differ in more than numbers; columns; characters of a start
_MOST_CUT = 0.9  # of all lines: the last piece of one is nearly always shorter
_NUMBER = re.compile(r"\d+")


def _unwrapped(numbered: list[Numbered]) -> list[Numbered]:
    """Return the lines of a log that a terminal has cut into pieces of its width, whole again.

    No line is wider there, and where a line is as wide, a word often goes on in the next one.
    """
    width = max((len(raw) for _, raw in numbered), default=0)
    widest = sum(len(raw) == width for _, raw in numbered)
    if width not in _WIDTHS or not _FEWEST_CUT <= widest <= _MOST_CUT * len(numbered):
        return numbered
    pairs = [(raw, below) for (_, raw), (_, below) in pairwise(numbered)]
    fresh = {below[:_ALIKE] for raw, below in pairs if len(raw) < width and below[:1].strip()}
    full = [
        at
        for at, (raw, below) in enumerate(pairs)
        if len(raw) == width and below[:_ALIKE] not in fresh and not _DRAWN.search(raw)
    ]
    cut = [at for at in full if _CUT_IN.match(numbered[at][1][-1]) and _CUT_IN.match(numbered[at + 1][1][:1])]
    kinds = {_NUMBER.sub("", numbered[at][1]) for at in cut}
    if len(kinds) < _FEWEST_CUT or 2 * len(cut) < len(full) or len(full) < 2 * _nearly(numbered, width):
        return numbered
    pieces, goes_on = set(full), False
    whole: list[Numbered] = []
    for at, (number, raw) in enumerate(numbered):
        if goes_on:
            number, before = whole.pop()
            raw = before + raw
        whole.append((number, raw))
        goes_on = at in pieces
    return whole


def _nearly(numbered: list[Numbered], width: int) -> int:
    """Return how many lines are a little shorter than ``width``: few, where a terminal has cut the longer ones."""
    return sum(width - _NEARLY <= len(raw) < width for _, raw in numbered)


_ESCAPES = 4  # ends of lines


def _pieces(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for number, raw in numbered:
        for frame in frames(raw.rstrip("\r")):
            for inner in unfold(frame):
                yield number, inner


_BEGUN = re.compile(r"^\W{0,3}(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_FEWEST = 5  # stamps that tell the order of a log
_OUTPUT_BELOW = "The output (if any) follows:"
_HEADER, _FRAME = "Traceback (most recent call last)", '  File "'


def oldest_first(numbered: list[Numbered]) -> list[Numbered]:
    """Return the lines in the order in which they were printed: CloudWatch and Kibana show the newest first.

    The stamps tell it; or the frames of tracebacks that stand above their heads. The mail of LSF tells the end first.
    """
    told = next((at for at, (_, text) in enumerate(numbered) if text.startswith(_OUTPUT_BELOW)), None)
    if told is not None:
        return [*numbered[told + 1 :], *numbered[: told + 1]]
    stamps = [(at, match[1]) for at, (_, text) in enumerate(numbered) if (match := _BEGUN.match(text[:40]))]
    if len(stamps) >= _FEWEST:
        falls = sum(below < above for (_, above), (_, below) in pairwise(stamps))
        rises = sum(below > above for (_, above), (_, below) in pairwise(stamps))
        if falls >= _FEWEST - 1 and falls > _MOSTLY * (falls + rises):
            starts = [at for at, _ in stamps] + [len(numbered)]
            records = [numbered[begun:end] for begun, end in pairwise(starts)]
            return [line for record in records[::-1] for line in record] + numbered[: starts[0]]
        return numbered
    heads = [at for at, (_, text) in enumerate(numbered) if _HEADER in text]
    above = [at for at in heads if at and _FRAME in numbered[at - 1][1]]
    below = any(_FRAME in numbered[at + 1][1] for at in heads if at + 1 < len(numbered))
    return numbered[::-1] if above and len(above) == len(heads) and not below else numbered


_MOSTLY = 0.9
WHOLE_BYTES = 4 << 20  # all logs together, read line by line
_LEAST_BYTES = 64 << 10  # of each log, at least
_BLOCK_BYTES = 8 << 20
_BEFORE_BYTES, _AFTER_BYTES = 2 << 10, 12 << 10  # around a telling word: a traceback is longer than its first line
_FIRST, _LAST = 24, 8  # telling words of one log whose surroundings are read
#: Nearly every failure in the middle of a log prints one of these.
_TELLING = (b"Traceback (most", b"Error", b"ERROR", b"terminate called")


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
                    source = replace(source, cut=getattr(packed, "broken", False))
                else:
                    lines = _numbered(file.read(), 1) if whole or size <= share else _big(file, size, share)
        else:
            lines = _stream(unpacked(source.read) or source.read, share)
        yield source, oldest_first(lines)


_MOST_EQUAL = 100  # lines in a row; more of them say no more
_WIDE = (b"\xff\xfe", b"\xfe\xff")


def _numbered(data: bytes, first: int) -> list[Numbered]:
    wide = data[:2] in _WIDE and data.count(b"\0", 0, 400) > 100  # PowerShell's
    encoding = "utf-16" if wide and first == 1 else "utf-8"
    lines = data.decode(encoding, "replace").split("\n")
    numbered = enumerate(lines if lines[-1] else lines[:-1], start=first)
    return [entry for _, equal in groupby(numbered, itemgetter(1)) for entry in islice(equal, _MOST_EQUAL)]


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
