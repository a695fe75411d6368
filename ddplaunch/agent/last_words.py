"""What a rank said last, from the end of its files: lines and exception; refuses to read a whole log for that."""

from __future__ import annotations

from pathlib import Path

from ddplaunch.explain.diagnosis import Raised
from ddplaunch.explain.lines import clean, frames, read_lines
from ddplaunch.explain.traceback import Tracebacks

_TAIL_BYTES = 1 << 16
_LINES = 20
_LINE_CHARS = 500


def tail(path: Path | None) -> list[str]:
    """Return the last lines of a file, whole ones, undecodable bytes replaced; none if it cannot be read."""
    if path is None:
        return []
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except OSError:
        return []
    lines = data.decode("utf-8", "replace").split("\n")
    if size > _TAIL_BYTES and len(lines) > 1:
        lines = lines[1:]
    return lines if lines[-1] else lines[:-1]


def last_lines(out: Path, err: Path | None) -> tuple[str, ...]:
    """Return at most 20 lines of stderr, or of stdout where stderr is empty, as a terminal would show them at last."""
    lines = [clean(frames(line.rstrip("\r"))[-1]).rstrip()[:_LINE_CHARS] for line in tail(err) or tail(out)]
    return tuple([line for line in lines if line][-_LINES:])


def last_exception(out: Path, err: Path | None) -> Raised | None:
    """Return the exception of the last traceback that is neither handled nor beside the point."""
    reader = Tracebacks()
    for line in read_lines(enumerate(tail(err) or tail(out), 1), "tail"):
        reader.feed(line)
    ended = [each for each in reader.finish() if not each.handled and not each.side]
    return ended[-1].root.raised if ended else None
