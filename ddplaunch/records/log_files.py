"""The output of a run's ranks: the files of its record, their lines ordered by time, and new lines as they come."""

from __future__ import annotations

import heapq
import os
import re
import time
from calendar import timegm
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from io import BytesIO
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import BinaryIO

from ddplaunch.machine.files import Piece, pieces_in, pieces_of
from ddplaunch.records.find import numbered
from ddplaunch.values.frozen import dataclass

_FILE = re.compile(r"rank-(\d+)\.(out|err)")
_RANK = rb"(?:\[rank\d+\]:? ?)?"  # the prefix of torch's own log handler
_ISO = re.compile(
    # years and months that a calendar has: with any other, timegm() raises
    _RANK + rb"[\[(<]?(?:[A-Z]{4,8}[ :|\]-]{1,4})?([12]\d{3})[-/](0[1-9]|1[0-2])[-/](\d\d)[ T]"
    rb"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))? ?(Z|[+-]\d\d:?\d\d)?"
)
# I1121 14:30:12.123456, the format of glog, used by torch's C++ side and NCCL; it has no year.
_GLOG = re.compile(_RANK + rb"\[?[DIWEFV](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9})")
# 11/21/2026 14:30:12, as in examples of transformers and diffusers; [11/21 14:30:12 of detectron2
_US = re.compile(_RANK + rb"[\[(]?(\d\d)/(\d\d)(?:/(\d{4}))? (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_POLL_S = 0.1
_NEW_FILES_S = 0.5
_OVER_S = 2.0
_CHUNK_BYTES = 1 << 20
_ROUND_CHUNKS = 16
_BLOCK_LINES = 1000
_TRIED_LINES = 200
_EARLIEST = float("-inf")


#: Step counters in a line, in order of preference if the output of one rank has several; the number is the group
#: ``step``, or else the first group, and ``total`` how many there will be. Colours may stand around their words.
STEP_BAR = re.compile(
    rb"(?P<step>\d{1,12})/(?:\d{1,12}|\?) \[[\d:]{4,12}<[\d:?]{1,12}, {1,3}(?P<rate>[\d.]{1,12})(?P<unit>it/s|s/it)"
)
STEPS = (
    re.compile(
        rb"(?i)(?:\b|(?<=[\d;\[]m))(?:global_?)?(?:step|iter|iteration|it)(?:\x1b\[[\d;]{0,9}m)?[\"']?\s{0,3}[:=#\[(]?"
        rb"\s{0,6}(?:\x1b\[[\d;]{0,9}m)?(\d{1,12})(?![\d.]*\s?(?:/s|it/s|s/it|ms))(?:\s?(?:/|of)\s?(?P<total>\d{1,12}))?"
    ),
    STEP_BAR,
    re.compile(rb"(?i)\bepoch:? ?\[?\d+\]? ?\[ {0,8}(\d{1,12})/\d"),
)
#: ``loss: 0.12``, ``'train_loss': 0.12``, tqdm's ``loss=0.12``; but not a validation's loss.
LOSS = re.compile(
    rb"(?i)(?:(?<![a-z0-9_/.-])|(?<=[\d;\[]m))(?<!val )(?<!validation )(?<!test )"
    rb"(?:train(?:ing)?[_/ -]?|avg[_ ]?|mean[_ ]?|total[_ ]?)?loss"
    rb"(?:\x1b\[[\d;]{0,9}m)?[\"']?\s{0,3}[:=(]?\s{0,6}(?:\x1b\[[\d;]{0,9}m)?"
    rb"(?P<loss>[-+]?(?:\d{1,12}\.?\d{0,20}(?:e[-+]?\d{1,3})?|\.\d{1,20}|nan|inf)(?=[^a-z0-9.]|\.\s))"
)


@dataclass(frozen=True)
class LogFile:
    """One stream of one rank in one attempt; ``rank`` is global, ``attempt`` counts on its node from 0."""

    path: Path
    node: int
    attempt: int
    rank: int
    stream: str

    @property
    def order(self) -> tuple[int, int, bool, int]:
        """Sort key: attempt, then rank; stderr last, because it ends with the traceback."""
        return (self.attempt, self.rank, self.stream == "err", self.node)


def log_file(directory: Path, node: int, attempt: int, name: str) -> LogFile:
    """Return the file with this name in a run's directory. Raises ValueError if ranks have no such file."""
    match = _FILE.fullmatch(name)
    if match is None:
        raise ValueError(f"`{name}` is no file of a rank's output")
    return LogFile(directory / f"node-{node}" / f"attempt-{attempt}" / name, node, attempt, int(match[1]), match[2])


def log_files(directory: Path, ranks: frozenset[int] | None = None) -> list[LogFile]:
    """Return the files of these ranks (None: all) ordered by attempt and rank; none if the record is gone."""
    return [file for file, _ in _with_pieces(directory, ranks)]


def log_parts(directory: Path, ranks: frozenset[int] | None = None, lines: int | None = None) -> list[LogPart]:
    """Return the files of these ranks as parts: whole, or with ``lines`` the end of each rank's last attempt."""
    files = _with_pieces(directory, ranks)
    newest = {(file.node, file.rank): file.attempt for file, _ in files}
    return [
        part_of(file, lines, pieces)
        for file, pieces in files
        if lines is None or file.attempt == newest[file.node, file.rank]
    ]


def _with_pieces(directory: Path, ranks: frozenset[int] | None) -> list[tuple[LogFile, tuple[Piece, ...]]]:
    found = []
    for node, folder in numbered(directory, "node"):
        for attempt, place in numbered(folder, "attempt"):
            for name, pieces in pieces_in(place).items():
                with suppress(ValueError):
                    file = log_file(directory, node, attempt, name)
                    if ranks is None or file.rank in ranks:
                        found.append((file, tuple(pieces)))
    return sorted(found, key=lambda piece: piece[0].order)


@dataclass(frozen=True)
class LogPart:
    """The bytes of a stream from ``start`` to ``end``, as of the time when it was looked up.

    Positions also count bytes that are no longer kept. ``pieces`` are the files that contain the rest.
    """

    file: LogFile
    start: int
    end: int
    pieces: tuple[Piece, ...] = ()

    @property
    def cut_bytes(self) -> int:
        """The number of bytes between ``start`` and ``end`` that are not kept."""
        return sum(later.start - earlier.end for earlier, later in pairwise(self.pieces) if later.start > self.start)

    @property
    def written_s(self) -> float:
        """When the part was last written to, in seconds since the epoch; 0 if it is gone."""
        with suppress(OSError):
            return os.stat(self.pieces[-1].path).st_mtime if self.pieces else 0.0  # noqa: PTH116
        return 0.0


Block = tuple[LogFile, bytes]


def part_of(file: LogFile, lines: int | None, pieces: tuple[Piece, ...] | None = None) -> LogPart:
    """Return the last ``lines`` lines of a stream; all of it for None; an empty part if the file is gone."""
    pieces = tuple(pieces_of(file.path)) if pieces is None else pieces
    if not pieces:
        return LogPart(file, 0, 0)
    return LogPart(file, 0 if lines is None else _start_of_last(pieces, lines), pieces[-1].end, pieces)


def _start_of_last(pieces: Sequence[Piece], lines: int) -> int:
    """Return where the last ``lines`` lines begin; a last line without newline counts."""
    end, missing = pieces[-1].end, lines
    if missing == 0:
        return end
    for piece in reversed(pieces):
        with suppress(OSError), open(piece.path, "rb") as source:
            position = piece.end
            while position > piece.start:
                length = min(_CHUNK_BYTES, position - piece.start)
                source.seek(position - length - piece.start)
                data = source.read(length)
                newline = len(data) - 1 if position == end and data.endswith(b"\n") else len(data)
                while (newline := data.rfind(b"\n", 0, newline)) >= 0:
                    missing -= 1
                    if missing == 0:
                        return position - length + newline + 1
                position -= length
    return 0


def has_stamps(part: LogPart) -> bool:
    """Return whether any of the first lines begins with a time."""
    year = _year(part)
    lines = next(_chunks(part), b"").split(b"\n", _TRIED_LINES)[:_TRIED_LINES]
    return any(stamp_s(line, year) is not None for line in lines)


def blocks(parts: Sequence[LogPart]) -> Iterator[Block]:
    """Yield the lines of all parts, attempt by attempt, in the order of the times at their beginnings.

    A line without a time follows the line before it in its file. Files without any times come first, one after another
    by rank, because it is unknown when their lines were printed.
    """
    for attempt in sorted({part.file.attempt for part in parts}):
        timed: list[LogPart] = []
        for part in parts:
            if part.file.attempt != attempt or part.end == part.start:
                continue
            if has_stamps(part):
                timed.append(part)
            else:
                yield from ((part.file, chunk) for chunk in _chunks(part))
        lines = heapq.merge(*(_timed(part, number) for number, part in enumerate(timed)), key=lambda item: item[0])
        for number, group in groupby(lines, key=lambda item: item[1]):
            while block := b"".join(line for _, _, line in islice(group, _BLOCK_LINES)):
                yield timed[number].file, block


def _timed(part: LogPart, number: int) -> Iterator[tuple[float, int, bytes]]:
    """Yield each line with the latest time so far, so that every file is sorted for the merge."""
    latest, year = _EARLIEST, _year(part)
    for chunk in _chunks(part):
        for line in BytesIO(chunk):  # splits at newlines only; ``splitlines`` would also split progress bars
            when = stamp_s(line, year)
            if when is not None and when > latest:
                latest = when
            yield latest, number, line


def _chunks(part: LogPart) -> Iterator[bytes]:
    """Yield the part in chunks of whole lines, except the last; a line of more than 16 MiB is split."""
    rest = b""
    for data in _read(part):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield rest + data[:cut]
            rest = data[cut:]
        else:
            rest += data
            if len(rest) > 16 * _CHUNK_BYTES:
                yield rest
                rest = b""
    if rest:
        yield rest


def _read(part: LogPart) -> Iterator[bytes]:
    for piece in part.pieces:
        position, end = max(part.start, piece.start), min(part.end, piece.end)
        with suppress(OSError), open(piece.path, "rb") as source:  # it may have been removed
            source.seek(max(0, position - piece.start))
            while position < end and (data := source.read(min(_CHUNK_BYTES, end - position))):
                position += len(data)
                yield data


def _year(part: LogPart) -> int:
    return time.localtime(part.written_s).tm_year


def stamp_s(line: bytes, year: int) -> float | None:
    """Return the time at the start of ``line`` in seconds since the epoch, or None if there is none.

    A time without a zone is local, one without a year is in ``year``.
    """
    match = _ISO.match(line)
    if match:
        return _seconds(tuple(int(part) for part in match.groups()[:6]), match[8]) + _fraction(match[7])
    match = _GLOG.match(line)
    if match:
        return _seconds((year, *(int(part) for part in match.groups()[:5])), None) + _fraction(match[6])
    match = _US.match(line)
    if match:
        month, day, named, *rest = (int(part) for part in match.groups(b"0")[:6])
        return _seconds((named or year, month, day, *rest), None) + _fraction(match[7])
    return None


def _seconds(moment: tuple[int, ...], zone: bytes | None) -> float:
    if zone is None:
        return _minute_s(moment[:5]) + moment[5]
    offset_s = 0
    if zone != b"Z":
        digits = zone[1:].replace(b":", b"")
        offset_s = (int(digits[:2]) * 60 + int(digits[2:])) * 60 * (-1 if zone[:1] == b"-" else 1)
    return timegm(moment) - offset_s


@lru_cache(maxsize=16)  # mktime() takes most of the time, and most lines share a minute
def _minute_s(moment: tuple[int, ...]) -> float:
    try:
        return time.mktime((*moment, 0, 0, 0, -1))  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        return 0.0


def _fraction(digits: bytes | None) -> float:
    return int(digits) / 10 ** len(digits) if digits else 0.0


def follow_logs(
    directory: Path,
    ranks: frozenset[int] | None,
    positions: Mapping[Path, int],
    over: Callable[[], bool],
    over_s: float = _OVER_S,
) -> Iterator[tuple[LogFile | None, bytes]]:
    """Yield what ranks print from now on, in order of arrival, across restarts.

    ``positions`` says where to continue in files that were read already; other files are new and read from their start.
    An empty item ``(None, b"")`` comes after each round. Ends after a round without output once the directory is gone
    or ``over()``, which is called every ``over_s`` seconds, says that nothing more will come.
    """
    files: dict[str, tuple[LogFile, BinaryIO]] = {}
    looked_s = asked_s = float("-inf")
    last_round = False
    with ExitStack() as opened:
        while True:
            now_s = time.monotonic()
            if now_s - looked_s >= _NEW_FILES_S or last_round:
                looked_s = now_s
                _open_new(files, opened, _with_pieces(directory, ranks), positions)
            came = False
            for item in _round(files):
                came = True
                yield item
            yield None, b""
            if came:
                continue
            if last_round:
                return
            if now_s - asked_s >= over_s:
                asked_s, last_round = now_s, over() or not directory.is_dir()
            time.sleep(_POLL_S)


def _open_new(
    files: dict[str, tuple[LogFile, BinaryIO]],
    opened: ExitStack,
    there: Sequence[tuple[LogFile, tuple[Piece, ...]]],
    positions: Mapping[Path, int],
) -> None:
    """Open the pieces of logs that are not in ``files`` yet, each at the position where reading continues."""
    for file, pieces in there:
        for piece in pieces:
            with suppress(OSError):  # it may have been removed
                if piece.path not in files:
                    stream = opened.enter_context(open(piece.path, "rb", buffering=0))  # noqa: SIM115
                    stream.seek(max(0, min(piece.end, positions.get(file.path, 0)) - piece.start))
                    files[piece.path] = file, stream


def _round(files: Mapping[str, tuple[LogFile, BinaryIO]]) -> Iterator[tuple[LogFile, bytes]]:
    """Yield what came since the last round, at most 16 MiB per file, so that every file gets its turn."""
    for file, stream in files.values():
        for _ in range(_ROUND_CHUNKS):
            if not (data := stream.read(_CHUNK_BYTES)):
                break
            yield file, data
