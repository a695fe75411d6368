"""Logs as they lie about: compressed files, pipes that somebody writes into, records of JSON, and what is no log."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import json
import lzma
import os
import re
import select
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

#: First bytes of compressed files, and what reads them.
_PACKED: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)
#: Modules that read zstd: Python's own since 3.14, its backport, and the library of most distributions.
_ZSTD = ("compression.zstd", "backports.zstd", "zstandard")
_MAGIC_BYTES = 6
_SAMPLE_BYTES = 1 << 16
_PIECE_BYTES = 1 << 16
_TEXT_CONTROLS = frozenset(b"\a\b\t\n\v\f\r\x1b")
_BINARY_SHARE = 0.03  # control characters among the bytes that are not zero; of random bytes 8 %
_WRITER_MS = 2000  # to wait for somebody who writes into a FIFO
_BROKEN = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)  # of a file that was cut off or is damaged


def packing(start: bytes) -> str:
    """Return how a file that begins with ``start`` is compressed: "gzip", "bz2", "xz", "zstd"; "" if it is not."""
    return next((name for magic, name in _PACKED if start.startswith(magic)), "")


def zstd_opener() -> Callable[[BinaryIO], Any] | None:
    """Return what reads zstd in this Python, None if nothing does."""
    for name in _ZSTD:
        try:
            return cast("Callable[[BinaryIO], Any]", importlib.import_module(name).open)
        except (ImportError, AttributeError):
            continue
    return None


class Unpacked:
    """What a compressed file holds, up to the place where it was cut off or damaged."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._broken = inner, False

    @property
    def broken(self) -> bool:
        """Whether what was read so far ended where the file was cut off or damaged."""
        return self._broken

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, fewer at the end."""
        pieces: list[bytes] = []
        while size > 0 and not self._broken:
            try:
                piece = self._inner.read(min(size, _PIECE_BYTES))
            except _BROKEN:
                self._broken = True
                break
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def unpacked(file: BinaryIO) -> BinaryIO | None:
    """Return what ``file`` holds if it is compressed and can be read, None if it is to be read as it is."""
    how = packing(sample(file)[:_MAGIC_BYTES])
    if how == "gzip":
        return cast("BinaryIO", Unpacked(_pieces(gzip.GzipFile(fileobj=file))))
    if how == "bz2":
        return cast("BinaryIO", Unpacked(_pieces(bz2.BZ2File(file))))
    if how == "xz":
        return cast("BinaryIO", Unpacked(_pieces(lzma.LZMAFile(file))))
    opener = zstd_opener() if how == "zstd" else None
    return None if opener is None else cast("BinaryIO", Unpacked(opener(file)))


class _pieces:
    """Reads what was unpacked so far, where ``read`` would throw it away for an error that comes after it."""

    def __init__(self, packed: gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile) -> None:
        self.read = packed.read1


def sample(file: BinaryIO) -> bytes:
    """Return the first bytes of ``file`` without moving on, none where it cannot be looked into."""
    if not isinstance(file, io.BufferedReader):
        return b""
    if file.seekable() and file.tell() == 0:
        start = file.read(_SAMPLE_BYTES)
        file.seek(0)
        return start
    return file.peek(_SAMPLE_BYTES)


def is_binary(start: bytes) -> bool:
    """Return whether a file that begins with ``start`` is no text, in whatever encoding.

    Zero bytes alone do not count: a log that was cut while it was written has a run of them, UTF-16 every other one.
    """
    shown = start.replace(b"\0", b"")
    if not shown:
        return bool(start)
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in shown)
    return controls > _BINARY_SHARE * len(shown)


def open_pipe(path: Path) -> BinaryIO | None:
    """Return a FIFO that somebody writes into, or has written into; None if nobody does within two seconds."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    watch = select.poll()
    watch.register(descriptor, select.POLLIN)
    if not watch.poll(_WRITER_MS):
        try:
            os.read(descriptor, 1)  # nothing is there: it fails where somebody holds the other end
        except BlockingIOError:
            pass
        else:
            os.close(descriptor)
            return None
    os.set_blocking(descriptor, True)
    return open(descriptor, "rb")


_BEHIND = re.compile(r"(\S.*[\w.)])(torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError: .*)")
_TOLD_IN_ONE = re.compile(
    r"(?i:\b(?:message|reason|error|status|failed|failure|exited)\b).{0,400}?"
    r"(?P<told>Traceback \(most recent call last\):(?:\\n| File \").*)"
)
_NAMED = re.compile(r" (?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit): ")
_CALLSTACK = re.compile(r'"py_callstack": "(Traceback .*?[^\\])"(?:,|\s*\}|\s*$)')
_JSON_TEXT = (
    *("message", "msg", "log", "text", "event", "exc_info", "exc_text", "exc", "exception", "error", "err"),
    *("stack_trace", "stack", "traceback"),
)
_JSON_NUMBERS = ("epoch", "step", "global_step", "iteration", "iter", "loss")
_MOST_RANKS = 10**7


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
    numbers = [f"{key} {record[key]}" for key in _JSON_NUMBERS if type(record.get(key)) in (int, float)]
    texts = [" ".join([*texts[:1], *numbers]), *texts[1:]] if numbers else texts
    rank = next((record[key] for key in ("rank", "global_rank") if type(record.get(key)) is int), -1)
    front = f"[rank{rank}]: " if 0 <= rank < _MOST_RANKS else ""
    return [front + line for line in "\n".join(texts).rstrip("\n").split("\n")] if texts else [raw]


def _joined(raw: str) -> list[str]:
    """Return the lines of a traceback that a service told in one line as why the work ended, else the line itself.

    The last words of torchrun's traceback may stand right behind those of a rank, which did not end its line.
    """
    if (match := _BEHIND.match(raw)) is not None:
        return [match[1], match[2]]
    match = _TOLD_IN_ONE.search(raw)
    if match is None:
        return [raw]
    before, told = raw[: match.start("told")], match["told"]
    if told.startswith("Traceback (most recent call last):\\n"):
        return [before, *told.replace("\\n", "\n").replace('\\"', '"').split("\n")]
    *frames, last = told.replace(' File "', '\n  File "').split("\n")
    named = _NAMED.search(last)
    return (
        [before, *frames, last]
        if named is None
        else [before, *frames, last[: named.start()], last[named.start() + 1 :]]
    )


def lines_inside(text: str) -> list[str]:
    """Return the lines inside a line: of a JSON record behind a prefix, of a traceback that a service told in one."""
    return [inner for each in unfold(text) for inner in _joined(each)]
