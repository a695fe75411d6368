"""Logs of any size to numbered lines: small ones whole, of big ones both ends and what looks like trouble between.

Refuses to understand what it reads. A log of 1 GB is searched at some GB/s for a few telling words, in blocks, so that
neither time nor memory depend on how much a training prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from ddplaunch.explain.facts import LogSource

WHOLE_BYTES = 4 << 20  # all logs together, read line by line
_LEAST_BYTES = 64 << 10  # of each log, at least
_BLOCK_BYTES = 8 << 20
_BEFORE_BYTES, _AFTER_BYTES = 2 << 10, 12 << 10  # around a telling word: a traceback is longer than its first line
_FIRST, _LAST = 24, 8  # telling places of one log that are looked at
#: What stands in nearly every failure that is not at the end of its log.
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
    """Read a pipe: what is too much to keep is searched like the middle of a file and forgotten."""
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
    """The surroundings of telling words in blocks that are shown once: the first ones, and the last ones."""

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
        """Return (number of the first line, bytes) of the windows, in their order."""
        return self._first + self._last
