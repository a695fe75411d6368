"""Reads logs of any size as numbered lines, without launchers' prefixes but with the rank and host in them.

Small logs are read completely; of large ones both ends, and the surroundings of a few telling words in between. Blocks
are searched at some GB/s, and neither time nor memory depends on how much a training prints.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ddplaunch.explain.diagnosis import Evidence, LogSource
from ddplaunch.explain.read.prefixes import NOBODY, Prefixes, Speaker, without_known
from ddplaunch.explain.signatures import named, patterns

Numbered = tuple[int, str]
_LOGGED, _BEHIND_BAR, _IS_NAMED = patterns("lines")


def announced_in(text: str) -> bool:
    """Return whether a line says that the program continues after an error: it warns, skips, or retries."""
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
        """The line as evidence, cut at 300 characters."""
        text = self.text.strip()
        return Evidence(self.file, self.number, text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
#: Invisible characters (byte order marks, zero-width spaces) to remove, and non-breaking spaces of web pages.
_UNSEEN = {0xFEFF: None, 0x200B: None, 0xA0: " "}
_LONGEST = 4000  # characters that are read of a line; Python refuses numbers of more than 4300 digits
_SHOWN = 300  # characters of a line of evidence


def clean(raw: str) -> str:
    """Return ``raw`` without ANSI codes and control characters, cut in the middle to 4000 characters."""
    if len(raw) > _LONGEST:
        raw = raw[: _LONGEST // 2] + " … " + raw[-_LONGEST // 2 :]
    if "\x1b" in raw:
        raw = _ANSI.sub("", raw)
    raw = raw.replace("\x08", "").replace("\x00", "")
    return raw if raw.isascii() else raw.translate(_UNSEEN)


SHAPES = 50_000  # to remember; a training prints few


def shape_of(text: str) -> bytes:
    """Return what is equal in lines of one kind: the text without digits and spaces."""
    return text.encode("utf-8", "replace").translate(None, b"0123456789 ")


def names_exception(text: str) -> bool:
    """Return whether a line begins with the name of an exception, like the last line of a traceback."""
    return bool(_IS_NAMED.match(text))


def frames(raw: str) -> list[str]:
    """Return what a line showed over time: bars redraw it after each carriage return, others print behind."""
    pieces = [piece for piece in raw.split("\r") if piece.strip()] or [""]
    return [*(pieces[:1] + pieces[-3:-1] if len(pieces) > 4 else pieces[:-1]), *_BEHIND_BAR.split(pieces[-1], 1)]


def read_lines(
    numbered: Iterable[tuple[int, str]], file: str, speaker: Speaker = NOBODY, first: int = 0, sample: int = 4000
) -> Iterator[Line]:
    """Yield the lines of one file. ``numbered`` are (number, text without newline); ``first`` is the first ``at``."""
    entries = [(number, clean(raw)) for number, raw in _pieces(numbered)]
    step = max(1, len(entries) // sample)
    prefixes = Prefixes([text for _, text in entries[::step] + (entries[-200:] if step > 1 else [])])
    index = first
    for number, text in entries:
        text, who = prefixes.strip(text, speaker)
        for inner in unfold(text):
            inner, who = without_known(inner, who) if text[:1] == "{" else (inner, who)
            yield Line(index, file, number, inner.rstrip(), who)
            index += 1


def _pieces(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for number, raw in numbered:
        for frame in frames(raw.rstrip("\r")):
            for inner in unfold(frame):
                yield number, inner


_JSON_TEXT, _JSON_NUMBERS = (named(f"read-json-{name}").patterns for name in ("text", "numbers"))
_MOST_RANKS = 10**7


def unfold(raw: str) -> list[str]:
    """Return the lines inside a JSON record (structured logging, container runtimes), else the line itself."""
    if raw[:1] != "{":
        return [raw]
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return [raw]
    for inner in [value for value in record.values() if isinstance(value, dict)]:
        record = inner | record
    texts = [str(record[key]) for key in _JSON_TEXT if isinstance(record.get(key), str) and record[key]]
    numbers = [f"{key} {record[key]}" for key in _JSON_NUMBERS if type(record.get(key)) in (int, float)]
    texts = [" ".join([*texts[:1], *numbers]), *texts[1:]] if numbers else texts
    rank = next((record[key] for key in ("rank", "global_rank") if type(record.get(key)) is int), -1)
    front = f"[rank{rank}]: " if 0 <= rank < _MOST_RANKS else ""
    return [front + line for line in "\n".join(texts).rstrip("\n").split("\n")] if texts else [raw]


_OUTPUT_BELOW = "The output (if any) follows:"  # LSF's mail reports the end first


WHOLE_BYTES = 4 << 20  # of all logs together, to be read completely
_ENDS_BYTES, _LEAST_BYTES = 1 << 20, 64 << 10  # of larger ones: the last bytes of all together, and of each at least
_BLOCK_BYTES = 1 << 20
_BEFORE_BYTES, _AFTER_BYTES = 2 << 10, 12 << 10  # around a telling word; a traceback is longer than its first line
_FIRST, _LAST = 24, 8  # telling words of one log whose surroundings are read
#: Nearly every failure in the middle of a log prints one of these.
_TELLING = (b"Traceback (most", b"Error", b"ERROR", b"terminate called")


def numbered_lines(sources: Sequence[LogSource]) -> Iterator[tuple[LogSource, list[Numbered]]]:
    """Yield each log with its numbered lines, without newlines. Raises OSError if a file cannot be read."""
    sizes = [source.read.stat().st_size if isinstance(source.read, Path) else 0 for source in sources]
    whole = sum(sizes) <= WHOLE_BYTES
    share = WHOLE_BYTES if whole else max(_LEAST_BYTES, _ENDS_BYTES // len(sources))
    for source in sources:
        with open(source.read, "rb") if isinstance(source.read, Path) else nullcontext(source.read) as file:
            lines = _read(file, share)
        below = next((at for at, (_, text) in enumerate(lines) if text.startswith(_OUTPUT_BELOW)), -1) + 1
        yield source, lines[below:] + lines[:below]


_MOST_EQUAL = 100  # identical lines in a row; more of them add nothing


def _numbered(data: bytes, first: int) -> list[Numbered]:
    lines = data.decode("utf-8", "replace").split("\n")
    numbered = enumerate(lines if lines[-1] else lines[:-1], start=first)
    return [entry for _, equal in groupby(numbered, itemgetter(1)) for entry in islice(equal, _MOST_EQUAL)]


def _read(stream: BinaryIO, share: int) -> list[Numbered]:
    """Return the lines of a file or pipe; of a large one, its ends and the surroundings of telling words."""
    block = head = stream.read(share)
    if len(head) < share:
        return _numbered(head, 1)
    windows, last = _Windows(), deque[bytes](maxlen=share // _BLOCK_BYTES + 2)
    while block:
        windows.search(block)
        last.append(block)
        block = stream.read(_BLOCK_BYTES)
    tail = b"".join(last)[-share:]
    # the last line of the head may be cut, and so may the first of the tail; lines of a window may be cut at its end
    lines = dict(_numbered(head[: share // 4], 1)[:-1])
    for number, data in (*windows.first, *windows.last):
        lines.update(_numbered(data, number))
    lines.update(_numbered(tail, windows.passed - tail.count(b"\n") + 1)[1:])
    return sorted(lines.items())


class _Windows:
    """The surroundings of the first and the last telling words, in blocks that are read only once."""

    def __init__(self) -> None:
        self.passed = 0  # newlines in all blocks so far
        self.first: list[tuple[int, bytes]] = []
        self.last: deque[tuple[int, bytes]] = deque(maxlen=_LAST)
        self._end = b""  # the last whole lines of the block before

    def search(self, block: bytes) -> None:
        """Search the next block for telling words."""
        seam = self._end + block[:_BEFORE_BYTES]
        if any(word in seam for word in _TELLING):  # its surroundings are in both blocks
            block = self._end + block
            self.passed -= self._end.count(b"\n")
        end = 0
        for at in self._places(block):
            if at < end:
                continue
            start = block.rfind(b"\n", 0, max(0, at - _BEFORE_BYTES)) + 1
            end = at + _AFTER_BYTES
            window = self.first if len(self.first) < _FIRST else self.last
            window.append((self.passed + block.count(b"\n", 0, start) + 1, block[start:end]))
        self.passed += len(block) - len(block.replace(b"\n", b""))  # which takes half the time of `count`
        self._end = block[-_BEFORE_BYTES - _AFTER_BYTES :].partition(b"\n")[2]

    def _places(self, block: bytes) -> list[int]:
        places: list[int] = []
        for word in _TELLING:
            # most blocks have none, which CPython finds out twice as fast backwards
            at = block.find(word) if block.rfind(word) >= 0 else -1
            while at >= 0:
                places.append(at)
                at = block.find(word, at + _AFTER_BYTES)
        return sorted(places)


def reason_text(lines: Sequence[Line]) -> str:
    """Return the first of a rank's last lines, joined with the next if it ends with a colon, as in Rust's panics."""
    texts = [line.text.strip() for line in lines]
    return " ".join(texts[:2]) if texts and texts[0].endswith(":") else "".join(texts[:1])
