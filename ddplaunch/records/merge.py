"""What ranks have printed so far, as blocks of lines in the order of their times; refuses to wait for more."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Iterator, Sequence

from ddplaunch.frozen import dataclass
from ddplaunch.records.log_files import LogFile
from ddplaunch.records.stamps import stamp_s

_CHUNK_BYTES = 1 << 20
_TRIED_LINES = 200
_EARLIEST = float("-inf")


@dataclass(frozen=True)
class Part:
    """The bytes of a file from ``start`` up to ``end``: what was there when somebody looked."""

    file: LogFile
    start: int
    end: int


Block = tuple[LogFile, bytes]


def part_of(file: LogFile, lines: int | None) -> Part:
    """Return the last ``lines`` lines of a file, all of it for None. A file that is gone is empty."""
    try:
        end = file.path.stat().st_size
        return Part(file, 0 if lines is None else _start_of_last(file, end, lines), end)
    except OSError:
        return Part(file, 0, 0)


def _start_of_last(file: LogFile, end: int, lines: int) -> int:
    """Return where the last ``lines`` lines begin; a line without its newline counts."""
    if lines == 0:
        return end
    position, missing = end, lines
    with file.path.open("rb") as source:
        while position > 0:
            length = min(_CHUNK_BYTES, position)
            source.seek(position - length)
            data = source.read(length)
            found = len(data) - 1 if position == end and data.endswith(b"\n") else len(data)
            while (found := data.rfind(b"\n", 0, found)) >= 0:
                missing -= 1
                if missing == 0:
                    return position - length + found + 1
            position -= length
    return 0


def has_stamps(part: Part) -> bool:
    """Return whether one of the first lines begins with a time."""
    year = _year(part.file)
    lines = next(_chunks(part), b"").split(b"\n", _TRIED_LINES)[:_TRIED_LINES]
    return any(stamp_s(line, year) is not None for line in lines)


def blocks(parts: Sequence[Part], since_s: float | None = None) -> Iterator[Block]:
    """Yield the lines of all parts: attempt by attempt, within one in the order of the times that lines begin with.

    A line without a time stays behind the one before it in its file. Files without any time come first, one after the
    other, in order of rank: the record does not know when their lines were printed. With ``since_s`` (seconds since
    the epoch) lines of an earlier time are left out, and files without times that were last written before it.
    """
    for attempt in sorted({part.file.attempt for part in parts}):
        timed: list[Part] = []
        plain: list[Part] = []
        for part in parts:
            if part.file.attempt == attempt and part.end > part.start:
                (timed if has_stamps(part) else plain).append(part)
        for part in plain:
            if since_s is None or _written_s(part.file) >= since_s:
                yield from ((part.file, chunk) for chunk in _chunks(part))
        if len(timed) == 1 and since_s is None:
            yield from ((timed[0].file, chunk) for chunk in _chunks(timed[0]))
        else:
            yield from _merged(timed, since_s)


def _merged(parts: Sequence[Part], since_s: float | None) -> Iterator[Block]:
    """Merge by time; lines of one file that follow each other in the result are one block."""
    streams = [_timed(part, number) for number, part in enumerate(parts)]
    gathered: list[bytes] = []
    current = -1
    for when, number, line in heapq.merge(*streams, key=lambda item: item[0]):
        if since_s is not None and when < since_s:
            continue
        if number != current or len(gathered) > 1000:
            if gathered:
                yield parts[current].file, b"".join(gathered)
            gathered, current = [], number
        gathered.append(line)
    if gathered:
        yield parts[current].file, b"".join(gathered)


def _timed(part: Part, number: int) -> Iterator[tuple[float, int, bytes]]:
    """Yield each line with the latest time up to it, so that the merge sees every file in order."""
    latest, year = _EARLIEST, _year(part.file)
    for chunk in _chunks(part):
        for line in chunk.splitlines(keepends=True) if b"\r" not in chunk else _lines(chunk):
            when = stamp_s(line, year)
            if when is not None and when > latest:
                latest = when
            yield latest, number, line


def _lines(chunk: bytes) -> list[bytes]:
    """Split at newlines only: ``splitlines`` would also split a progress bar at its carriage returns."""
    *whole, last = chunk.split(b"\n")
    return [line + b"\n" for line in whole] + ([last] if last else [])


def _chunks(part: Part) -> Iterator[bytes]:
    """Yield the part in pieces that end with a line, except the last; a line of more than 16 MiB is cut."""
    rest = b""
    try:
        with part.file.path.open("rb") as source:
            source.seek(part.start)
            left = part.end - part.start
            while left > 0 and (data := source.read(min(_CHUNK_BYTES, left))):
                left -= len(data)
                cut = data.rfind(b"\n") + 1
                if cut:
                    yield rest + data[:cut]
                    rest = data[cut:]
                else:
                    rest += data
                    if len(rest) > 16 * _CHUNK_BYTES:
                        yield rest
                        rest = b""
    except OSError:  # the record was removed meanwhile
        return
    if rest:
        yield rest


def _year(file: LogFile) -> int:
    return time.localtime(_written_s(file)).tm_year


def _written_s(file: LogFile) -> float:
    try:
        return os.stat(file.path).st_mtime  # noqa: PTH116
    except OSError:
        return 0.0
