"""Samples of a host sorted by rank, and the rank that steps slowest; refuses to say why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from ddplaunch.frozen import dataclass
from ddplaunch.probes.samples import GpuSample, RankSample, Sample

LEAST_SAMPLES = 10
_SLOWER = 0.95
_RECENT = 10
Point = tuple[RankSample, GpuSample | None]


@dataclass(frozen=True)
class Series:
    """One rank over time, with its GPU at each moment."""

    rank: int
    points: tuple[Point, ...]

    def typical(self, value: Callable[[RankSample, GpuSample | None], float | None]) -> float | None:
        """Return the median of what is known, None where nothing is."""
        known = [each for rank, gpu in self.points if (each := value(rank, gpu)) is not None]
        return median(known) if known else None

    @property
    def gpu(self) -> GpuSample | None:
        """Its GPU as it was last, None where it uses none."""
        return next((gpu for _, gpu in reversed(self.points) if gpu is not None), None)

    @property
    def omp_threads(self) -> int:
        """OMP_NUM_THREADS, 0 where it is not known."""
        return self.points[-1][0].omp_threads or 0

    @property
    def workers(self) -> int:
        """How many DataLoader workers it usually has."""
        return round(self.typical(lambda rank, _: rank.workers) or 0)


def series_of(samples: Sequence[Sample]) -> tuple[Series, ...]:
    """Return the ranks of the last attempt that have enough samples, in order."""
    attempt = max((sample.attempt for sample in samples), default=0)
    found: dict[int, list[Point]] = {}
    for sample in samples:
        for rank in sample.ranks if sample.attempt == attempt else ():
            found.setdefault(rank.rank, []).append((rank, sample.gpu_of(rank)))
    return tuple(Series(rank, _training(found[rank])) for rank in sorted(found) if len(found[rank]) >= LEAST_SAMPLES)


def _training(points: list[Point]) -> tuple[Point, ...]:
    """Return the moments from the first step to the last where ranks tell: imports and the end are another matter."""
    steps = [rank.step for rank, _ in points]
    moved = [at for at, (before, now) in enumerate(pairwise(steps), 1) if now is not None and now != before]
    stepping = points[moved[0] : moved[-1] + 1] if moved else []
    return tuple(stepping if len(stepping) >= LEAST_SAMPLES else points)


def slowest_rank(samples: Sequence[Sample]) -> int | None:
    """Return the rank that steps lately at less than 95 % of the others' rate; None if none does, or ranks do not tell.

    Ranks that wait for each other in every step have one rate: there the findings tell who is late.
    """
    recent: dict[int, list[float]] = {rank.rank: [] for rank in samples[-1].ranks} if samples else {}
    for sample in samples[-_RECENT:]:
        for rank in sample.ranks if sample.attempt == samples[-1].attempt else ():
            if rank.rank in recent and rank.step_rate is not None:
                recent[rank.rank].append(rank.step_rate)
    rates = {rank: median(each) for rank, each in recent.items() if each}
    if len(rates) < 2:
        return None
    slow = min(rates, key=lambda each: rates[each])
    usual = median(rate for each, rate in rates.items() if each != slow)
    return slow if rates[slow] < _SLOWER * usual else None
