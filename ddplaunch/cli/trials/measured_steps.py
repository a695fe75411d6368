"""The steps of a run to measure: from where their times settle, until the wanted number or time is reached.

They are read, while the run goes on, from files that ranks write with ``--phases``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddplaunch.records.find import numbered
from ddplaunch.values.frozen import dataclass
from ddplaunch.watch.phases import RankPhases, StepLine, phases_path, phases_ranks, settled, summed
from ddplaunch.watch.step_rate import FollowedFile

_LEAST = 5  # with fewer steps nothing is reported
_ENOUGH = 10  # measure that many steps, however long they take, unless fewer are requested
_UNSETTLED = 60, 20.0  # steps and seconds after which measuring begins although step times have not settled
WARMUP_STEPS = 5  # the first steps, which are never measured
_NEVER = 1 << 62  # after any step


@dataclass(frozen=True)
class Measure:
    """How long a trial measures, from when step times settle.

    It measures ``steps`` or ``seconds``, whichever is reached first, and gives up after ``timeout_s`` in all.
    """

    steps: int | None = None
    seconds: float | None = 10.0
    timeout_s: float = 600.0


@dataclass(frozen=True)
class MeasuredSteps:
    """What the ranks wrote. ``ranks`` sums up each rank's measured steps, and is empty unless all ranks have enough.

    ``facts`` are each rank's own, ``steps`` counts all since the start, ``peak_bytes`` is the most memory that a rank
    took in any step. ``settled`` is False where step times still moved; ``empty_epochs`` counts epochs without a batch.
    """

    ranks: tuple[RankPhases, ...]
    facts: tuple[Mapping[str, Any], ...]
    steps: int
    settled: bool
    peak_bytes: int | None
    empty_epochs: int

    @property
    def samples_per_s(self) -> float | None:
        """Samples of all ranks per second, as the ranks counted them; None where a rank did not count."""
        rates = [rank.samples_per_s for rank in self.ranks]
        return None if None in rates or not rates else sum(rate or 0.0 for rate in rates)


class FollowedSteps:
    """The steps in a record, read as its ranks write them."""

    def __init__(self, record: Path, ranks: int) -> None:
        """Follow ``ranks`` ranks. The record may not exist yet."""
        self._record, self._ranks = record, ranks
        self._files: dict[int, FollowedFile] = {}
        self._lines: dict[int, list[StepLine]] = {}

    def look(self) -> None:
        """Read new lines."""
        for _, node in numbered(self._record, "node"):
            for _, attempt in numbered(node, "attempt"):
                for rank in phases_ranks(attempt):
                    if rank not in self._files:
                        self._files[rank] = FollowedFile(phases_path(attempt, rank))
        for rank, file in self._files.items():
            self._lines.setdefault(rank, []).extend(file.new())

    @property
    def complete(self) -> bool:
        """Whether every rank has written its file."""
        return len(self._files) >= self._ranks

    @property
    def made(self) -> int:
        """How many steps every rank has made; beyond the first few, the last one may be missing."""
        counts = []
        for rank, lines in self._lines.items():
            few = self._files[rank].facts.get("steps")
            counts.append(max(sum(line.steps for line in lines), few if isinstance(few, int) else 0))
        return min(counts, default=0)

    @property
    def empty_epochs(self) -> int:
        """How many epochs before the first step had no batch."""
        return 0 if self.made else max((file.facts.get("empty_epochs", 0) for file in self._files.values()), default=0)

    def are_enough(self, measure: Measure) -> bool:
        """Whether each rank has made all steps to measure."""
        first = self._first_step(over=False)
        return first is not None and self.complete and all(_window(lines, first, measure)[1] for lines in self._all())

    def measured(self, measure: Measure, failed: bool = False) -> MeasuredSteps:
        """Return what was measured so far; no ranks for a run that ``failed``."""
        first, ranks = self._first_step(over=True), []
        for rank, lines in sorted(self._lines.items()):
            window = _window(lines, _NEVER if first is None else first, measure)[0]
            one = summed(rank, self._files[rank].facts, window)
            ranks += [one] if one is not None and len(window) >= min(_LEAST, measure.steps or _LEAST) else []
        peaks = (line.peak_bytes for lines in self._all() for line in lines if line.peak_bytes)
        return MeasuredSteps(
            ranks=tuple(ranks) if len(ranks) == self._ranks and not failed else (),
            facts=tuple(file.facts for file in self._files.values()),
            steps=self.made,
            settled=all(settled(lines, WARMUP_STEPS) is not None for lines in self._all()),
            peak_bytes=max(peaks, default=None),
            empty_epochs=self.empty_epochs,
        )

    def _all(self) -> Collection[list[StepLine]]:
        return self._lines.values()

    def _first_step(self, *, over: bool) -> int | None:
        """Return the step from which all ranks are measured: the one where the last of them has settled.

        Where step times do not settle, it is in the middle of many steps. None while there are too few to tell, unless
        the trial is ``over``: then whatever follows the warm-up is measured.
        """
        first_steps = []
        for lines in self._all():
            index = settled(lines, WARMUP_STEPS)
            if index is None:
                walls_s = [line.wall_s for line in lines if line.wall_s]
                are_many = len(walls_s) >= _UNSETTLED[0] and sum(walls_s) >= _UNSETTLED[1]
                if not (are_many or over):
                    return None
                index = 1 + max(WARMUP_STEPS, len(lines) // 2 if are_many else 0)
            first_steps.append(lines[index].step if index < len(lines) else _NEVER)
        return max(first_steps, default=None)


def _window(lines: Sequence[StepLine], first: int, measure: Measure) -> tuple[list[StepLine], bool]:
    """Return the lines to measure, from step ``first`` on, and whether they are all that is wanted."""
    window: list[StepLine] = []
    steps, seconds = 0, 0.0
    for line in lines:
        if line.step < first or not line.wall_s:
            continue
        window.append(line)
        steps, seconds = steps + line.steps, seconds + line.wall_s
        enough = steps >= (measure.steps or math.inf) or seconds >= (measure.seconds or math.inf)
        if enough and len(window) >= min(_ENOUGH, measure.steps or _ENOUGH):
            return window, True
    return window, False
