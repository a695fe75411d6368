"""What ``explain`` reads: the logs of a recorded run with its facts, files, or a stream."""

from __future__ import annotations

import io
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from ddplaunch.explain.decide.flight import PG_CONFIG, is_dump
from ddplaunch.explain.diagnosis import LogSource, RunFacts
from ddplaunch.machine.files import Piece, pieces_of
from ddplaunch.records.directory import path_text
from ddplaunch.records.find import RunRecord, numbered, read_record
from ddplaunch.records.json_files import objects
from ddplaunch.records.log_files import log_parts
from ddplaunch.records.outcome import rank_end
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.frozen import dataclass

_OUTPUT = re.compile(r"rank-(\d+)\.(out|err)")
_TORCHRUN = re.compile(r"std(?:out|err)\.log")  # <log-dir>/<run-id>_<random>/attempt_N/<local_rank>/stdout.log
_LOGS = (".log", ".out", ".err", ".txt")
#: First bytes of compressed files, and the program that unpacks them.
_PACKED = {b"\x1f\x8b": "zcat", b"BZh": "bzcat", b"\xfd7zXZ": "xzcat", b"\x28\xb5\x2f\xfd": "zstdcat"}
_SAMPLE_BYTES = 1 << 16
_CONTROLS = b"\1\2\3\4\5\6\16\17\20\21\22\23\24\25\26\27\30\31\32\34\35\36\37"  # of no text; \a to \r and ESC are
_BINARY_SHARE = 0.03  # of control characters among the nonzero bytes; random bytes have 8 %
_MOST_ENTRIES = 200_000  # files and folders to visit below a folder
_WHY = "`explain` reads a log, a recorded run, or describes a code"


@dataclass(frozen=True)
class Subject:
    """What to explain: logs, known facts, and the record if the logs are a run's."""

    names: str
    sources: tuple[LogSource, ...]
    facts: RunFacts | None = None
    record: RunRecord | None = None


def recorded_run(directory: Path) -> Subject:
    """Return the logs of the last attempt on every node of a run, with the facts in its record."""
    record = read_record(directory)
    sources: list[LogSource] = []
    parts = log_parts(directory)
    newest = {part.file.node: part.file.attempt for part in parts}
    for number, node in numbered(directory, "node"):
        host = (record.outcomes[number].host or None) if number in record.outcomes else None
        for part in parts:
            if (part.file.node, part.file.attempt) == (number, newest.get(number)):
                sources += _sources(directory, part.pieces, part.file.rank, host)
        sources += log_sources(directory, f"{node.name}/launcher.err", None, host)
    return Subject(f"run {directory.name}", tuple(sources), _facts(record), record)


def log_sources(directory: Path, name: str, rank: int | None, host: str | None, last: bytes = b"") -> list[LogSource]:
    """Return the files of the log ``name`` of a record, to be read; none if there is no such log.

    ``last`` is appended to the last file: output that is not in any file.
    """
    sources = _sources(directory, pieces_of(directory / name), rank, host)
    if last:
        written = sources.pop() if sources else LogSource(name, io.BytesIO(), rank, host)
        sources.append(replace(written, read=io.BufferedReader(_Joined(written.read, last))))
    return sources


def _sources(directory: Path, pieces: Sequence[Piece], rank: int | None, host: str | None) -> list[LogSource]:
    paths = [Path(piece.path) for piece in pieces]
    return [LogSource(str(path.relative_to(directory)), path, rank, host) for path in paths]


class _Joined(io.RawIOBase):
    """A file followed by more bytes."""

    def __init__(self, file: Path | BinaryIO, last: bytes) -> None:
        self._parts: list[BinaryIO] = [file.open("rb") if isinstance(file, Path) else file, io.BytesIO(last)]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._parts:
            if data := self._parts[0].read(len(buffer)):
                buffer[: len(data)] = data
                return len(data)
            self._parts.pop(0).close()
        return 0


def _facts(record: RunRecord) -> RunFacts | None:
    outcomes = record.outcomes.values()
    if not outcomes:
        return facts_of_run(record.run) if record.run else None
    return replace(
        facts_of_run(record.run),
        ranks=tuple(rank_end(rank_outcome) for outcome in outcomes for rank_outcome in outcome.last_ranks),
        state=next((outcome.state for outcome in outcomes if outcome.state != "succeeded"), "succeeded"),
    )


def facts_of_run(run: Mapping[str, Any]) -> RunFacts:
    """Return the facts in run.json: the plan, the command as typed, warnings, and the user's files."""
    plan, argv, code = (run.get(name) for name in ("plan", "argv", "code"))
    return RunFacts(
        plan=plan if isinstance(plan, dict) else None,
        argv=tuple(map(str, argv)) if isinstance(argv, list) else None,
        run=run,
        findings=tuple(objects(run.get("findings"))),
        code=tuple(code) if isinstance(code, dict) else (),
    )


def named_files(words: Sequence[str]) -> Subject:
    """Return the named logs: files, pipes, folders of logs, and stdin (``-``).

    Raises UsageError for a name that is missing, unreadable, or not a log.
    """
    sources: list[LogSource] = []
    for word in words:
        if not word:
            raise usage("an empty word names no log", why=_WHY, fix="name a file, or `-` for stdin")
        if word == "-":
            sources.append(_stdin())
        elif (path := Path(word)).is_dir():
            sources += _folder(path)
        else:
            sources.append(_file(word, path))
    named = sources[0].name if len(sources) == 1 else f"{len(sources)} logs"
    return Subject(named, tuple(sources))


def _stdin() -> LogSource:
    if sys.stdin is None:
        raise usage("stdin is closed", why="`-` reads the log from there", fix="`ddplaunch explain FILE`")
    stream: Any = sys.stdin.buffer
    return LogSource(
        "stdin", _log("stdin", stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream))
    )


def _file(word: str, path: Path) -> LogSource:
    """Return a file to be read later, or a pipe, which is opened now."""
    try:
        if stat.S_ISFIFO(path.stat().st_mode):
            return LogSource(word, _log(word, path.open("rb")))
        if not path.is_file():
            raise usage(f"`{word}` is not a log: it is a device or a socket", why=_WHY, fix=_NAMES)
        with path.open("rb", _SAMPLE_BYTES) as file:
            _log(word, file)
    except OSError as error:
        raise usage(
            f"`{word}` cannot be read: {error.strerror}",
            why=_WHY,
            fix="name a file that is there; `ddplaunch ps` lists the recorded runs",
        ) from error
    return LogSource(word, path)


_NAMES = "name a file that holds text; `ddplaunch ps` lists the recorded runs"


def _log(word: str, file: BinaryIO) -> BinaryIO:
    """Return ``file`` with nothing consumed. Raises UsageError if it is compressed, or does not begin like text."""
    start = file.peek() if isinstance(file, io.BufferedReader) else b""
    if program := next((command for magic, command in _PACKED.items() if start.startswith(magic)), None):
        name = "FILE" if word == "stdin" else shlex.quote(word)
        raise usage(f"`{word}` is compressed", why=_WHY, fix=f"`{program} {name} | ddplaunch explain -`")
    if _is_binary(start):
        raise usage(f"`{word}` is not a log: it holds no text", why=_WHY, fix=_NAMES)
    return file


def _is_binary(start: bytes) -> bool:
    """Return whether a file that begins with ``start`` is not text, in any encoding.

    Zero bytes do not count: a log that was truncated while it was written contains a run of them, and in UTF-16 every
    second byte is zero.
    """
    shown = start.replace(b"\0", b"")
    text_bytes = len(shown.translate(None, _CONTROLS))
    return bool(start) and PG_CONFIG not in start and (not shown or text_bytes < (1 - _BINARY_SHARE) * len(shown))


def _folder(folder: Path) -> list[LogSource]:
    logs = []
    for path in sorted(_logs_below(folder)):
        try:
            logs.append(_file(path_text(path), path))
        except UsageError:  # one of many files in a folder may not be a log, or be unreadable
            continue
    if not logs:
        raise usage(
            f"`{folder}` holds no log",
            why=f"files that end in {', '.join(_LOGS)} are looked for there, and in the folders below",
            fix="name the files",
        )
    return [LogSource(log.name, log.read, _rank_of(Path(log.name))) for log in logs]


def _logs_below(folder: Path) -> Iterator[Path]:
    """Yield the files below ``folder`` that are named like logs. Raises UsageError if there are too many entries."""
    entries = 0
    for directory, folders, files in os.walk(folder):
        entries += len(folders) + len(files)
        if entries > _MOST_ENTRIES:
            raise usage(
                f"`{folder}` is no folder of logs: it holds more than {_MOST_ENTRIES} files",
                why="all that is called like a log in a folder and below it is read together, as one run's",
                fix="name the folder of one run, or its files",
            )
        for name in files:
            path = Path(directory, name)
            if (path.suffix in _LOGS and path.is_file()) or is_dump(path):
                yield path


def _rank_of(path: Path) -> int | None:
    """Return the rank from a path in torchrun's ``--log-dir`` or in our records; local ranks count as global."""
    if match := _OUTPUT.match(path.name):
        return int(match.group(1))
    return int(path.parent.name) if _TORCHRUN.match(path.name) and path.parent.name.isdecimal() else None
