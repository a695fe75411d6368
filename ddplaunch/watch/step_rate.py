"""Reads each rank's step rate from the last few KiB of its recorded output, or from the phases that it writes.

Step counters are recognised by their text: ``step 12``, ``iter: 12``, ``'step': 12``, tqdm's ``12/500 [00:03<…,
4.1it/s]``, ``Epoch: [0][ 12/5005]`` and ``Train Epoch: 1 [640/60000``.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from ddplaunch.machine.files import open_plain, pieces_of
from ddplaunch.records.log_files import LOSS, STEP_BAR, STEPS
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import duration_text, size_text
from ddplaunch.watch.phases import MOST_BYTES, PHASES, StepLine, parsed, phases_path, summed

_TAIL_BYTES = 1 << 14
_WINDOW_S = 10.0
_FRESH_S = 30.0


@dataclass(frozen=True)
class Progress:
    """A rank's last step number, and its rate in steps per second, from its output or with ``--phases`` from its file.

    ``total`` is how many steps there will be, if the output says so. ``loss`` is the last printed loss, "nan" or "inf"
    if it is not finite. With ``--phases``, ``phases`` are percent of the time, by the names in ``PHASES``.
    """

    step: float | None = None
    rate: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    loss: float | str | None = None
    total: float | None = None


class Steps:
    """Follows the output files of one attempt's ranks. A missing file gives no progress."""

    def __init__(self, folder: str | Path, ranks: Sequence[int]) -> None:
        """``folder`` is ``node-K/attempt-A``."""
        self._files = {rank: [_File(f"{folder}/rank-{rank}.{stream}") for stream in ("out", "err")] for rank in ranks}

    def progress(self, now_s: float) -> dict[int, Progress]:
        """Return each rank's progress; ``now_s`` is in seconds since the epoch."""
        progress = {}
        for rank, files in self._files.items():
            by_pattern = zip(*(file.look(now_s) for file in files), strict=True)
            counters = [counter for same in by_pattern for counter in same if counter.points]
            loss = max((file.loss for file in files), key=lambda timed: timed[0])[1]
            if counters:
                fresh = (counter for counter in counters if now_s - counter.points[-1][0] < _FRESH_S)
                best = next(fresh, None) or max(counters, key=lambda counter: counter.points[-1][0])
                progress[rank] = Progress(best.points[-1][1], best.rate(now_s), loss=loss, total=best.total)
            elif loss is not None:
                progress[rank] = Progress(loss=loss)
        return progress


class _Counter:
    """One step counter in one file. ``points`` are (time, number) of each change in the window."""

    def __init__(self) -> None:
        self.points: deque[tuple[float, float]] = deque()
        self.total: float | None = None

    def note(self, at_s: float, step: float | None) -> None:
        if step is None or (self.points and step == self.points[-1][1]):
            return
        if self.points and step < self.points[-1][1]:  # the next epoch
            self.points.clear()
        self.points.append((at_s, step))
        while len(self.points) > 2 and self.points[1][0] < at_s - _WINDOW_S:
            self.points.popleft()

    def rate(self, now_s: float) -> float | None:
        """Return steps per second over the window; it falls when the next step is overdue."""
        if len(self.points) < 2:
            return None
        times = [at_s for at_s, _ in self.points]
        longest = max(later - earlier for earlier, later in pairwise(times))
        span_s = (now_s if now_s - times[-1] > 2 * longest + 2 else times[-1]) - times[0]
        return None if span_s <= 0 else round((self.points[-1][1] - self.points[0][1]) / span_s, 4)


class _File:
    """One recorded stream, read from where the last look ended."""

    def __init__(self, path: str) -> None:
        self._log = self._path = path
        self.loss: tuple[float, float | str | None] = (0.0, None)  # when it was printed, and its value
        self._counters = [_Counter() for _ in STEPS]
        self._position = self._size = 0

    def look(self, now_s: float) -> list[_Counter]:
        pieces = pieces_of(self._log)  # a stream continues in the next piece when a file is full
        if pieces and pieces[-1].path != self._path:
            self._path, self._position, self._size = pieces[-1].path, 0, 0
        with suppress(OSError):
            status = os.stat(self._path)  # noqa: PTH116 - pathlib takes twice as long
            if status.st_size < self._position:  # the file was truncated
                self._position = 0
            if status.st_size > self._position:
                self._read(status.st_size, min(status.st_mtime, now_s))
        return self._counters

    def _read(self, size: int, at_s: float) -> None:
        """Read new data up to its last line end; an unfinished line counts once it has stopped growing."""
        start = max(self._position, size - _TAIL_BYTES)
        with open(self._path, "rb", buffering=0) as file:
            file.seek(start)
            data = file.read(size - start)
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if size == self._size or (not end and len(data) >= _TAIL_BYTES):
            end = len(data)
        self._size, self._position = size, start + end
        if losses := list(LOSS.finditer(data)):
            loss = _number(losses[-1]["loss"])  # JSON has no number that is not finite
            self.loss = (at_s, loss if loss is None or math.isfinite(loss) else str(loss))
        for counter, pattern in zip(self._counters, STEPS, strict=True):
            # a bar starts with \r, so the newest has no line end; its unit shows that it is complete
            matches = list(pattern.finditer(data, 0, len(data) if pattern is STEP_BAR else end))
            if matches:
                counter.note(at_s, _number(matches[-1][1]))
                counter.total = _number(matches[-1].groupdict().get("total"))


_steps_of = lru_cache(1)(Steps)


def progress_line(folder: str, rank: int, columns: int, gpu_bytes: int | None = None, silent: str = "") -> str:
    """Return how far a rank of the attempt in ``folder`` is, in less than ``columns``; "" if nothing is to be said.

    ``gpu_bytes`` is the memory in use on its GPU. ``silent`` says that no rank has printed for long; a rate of before
    says nothing then.
    """
    now, parts = _steps_of(folder, (rank,)).progress(time.time()).get(rank, Progress()), [silent]
    if now.step is not None:
        rest = (now.total or -1) - now.step  # a total that is passed was of something else
        parts += [f"step {now.step:.0f}{f'/{now.total:.0f}' if rest >= 0 else ''}"]
        if now.rate and not silent:
            parts += [f"{rate_text(now.rate)} steps/s"]
            parts += [f"{duration_text(rest / now.rate)} left"] if rest > 0 else []
        parts += [f"loss {now.loss}"] if now.loss is not None else []
        parts += [f"GPU {size_text(gpu_bytes)}"] if gpu_bytes else []
    while parts and len(line := f"ddplaunch: {', '.join(filter(None, parts))}") >= columns:
        parts.pop()
    return line if any(parts) else ""


def rate_text(rate: float | None) -> str:
    """Return a rate with three digits, or as many as it has, "" if unknown."""
    return "" if rate is None else f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _number(text: bytes | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


class FollowedFile:
    """Follows one rank's file of phases. ``facts`` are those read so far."""

    def __init__(self, path: Path) -> None:
        """Follow the file at ``path``, which may not exist yet."""
        self._path, self._read = path, 0
        self.facts: dict[str, Any] = {}

    def new(self) -> tuple[StepLine, ...]:
        """Return the lines that were written since the last call."""
        with suppress(OSError), open(open_plain(self._path), "rb") as file:
            file.seek(self._read)
            data = file.read(MOST_BYTES)
            whole = data[: data.rfind(b"\n") + 1]
            self._read += len(whole)
            new_lines = parsed(whole.split(b"\n"))
            self.facts.update(new_lines.facts)
            return new_lines.lines
        return ()


class FollowedPhases:
    """Follows the files of phases of one attempt's ranks while they train."""

    def __init__(self, folder: Path, ranks: Sequence[int]) -> None:
        """``folder`` is ``node-K/attempt-A``."""
        self._files = {rank: FollowedFile(phases_path(folder, rank)) for rank in ranks}
        self._recent: dict[int, deque[StepLine]] = {rank: deque() for rank in ranks}

    def progress(self, now_s: float) -> dict[int, Progress]:
        """Return the progress of each rank with timed steps; ``now_s`` is in seconds since 1970."""
        progress = {}
        for rank, recent in self._recent.items():
            recent += self._files[rank].new()
            while len(recent) > 1 and recent[0].end_s < now_s - _WINDOW_S:
                recent.popleft()
            if (one := summed(rank, {}, recent)) is not None:
                shares = {name: round(100 * share, 1) for name in PHASES if (share := one.shares[name]) is not None}
                rate = 0.0 if now_s - recent[-1].end_s > _WINDOW_S + 2 * one.mean_s else round(1 / one.mean_s, 4)
                progress[rank] = Progress(float(recent[-1].step), rate, shares)
        return progress
