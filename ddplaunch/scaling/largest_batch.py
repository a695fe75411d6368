"""Which batch fits into memory: a model of what trials took, the largest batch by it, and the next one to try.

Peak memory is taken to be a fixed part, weights, gradients, optimizer state and the libraries, and a part for each
sample. It is drawn through measured trials only; the answer is a batch that was tried itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddplaunch.values.frozen import dataclass

_ALIKE = 0.03  # two batches that differ by less are one answer
_NOISE = 0.02  # peaks that differ by less say nothing about a sample
_ROUGH = 0.1  # peaks that differ by less say it roughly
_LEAP = 16  # times the largest batch that was tried: as far as a trial goes that little is known about
_SHRINK = 4  # a trial that ran out of memory has no peak: the next one has this part of its batch
_LARGEST = 1 << 30
_FIGURES = 32  # a batch is rounded down to a multiple of a power of two, by at most this part of it


@dataclass(frozen=True)
class Tried:
    """One trial: samples of a rank's forward pass, the peak of the rank that took most, and what a rank may have.

    ``ran`` is False where memory ran out, and ``peak_bytes`` is None then. ``samples_per_s`` are those of all ranks.
    """

    batch: int
    ran: bool
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    samples_per_s: float | None = None

    def within(self, headroom: float) -> bool:
        """Say whether it leaves the part ``headroom`` of the memory free; True where no limit is known."""
        if not self.ran:
            return False
        return None in (self.peak_bytes, self.limit_bytes) or (self.peak_bytes or 0) <= budget(self, headroom)


def budget(tried: Tried, headroom: float) -> float:
    """Return how many bytes of what there is may be used."""
    return (tried.limit_bytes or 0) * (1 - headroom)


@dataclass(frozen=True)
class MemoryModel:
    """Peak memory in bytes as a fixed part and a part per sample; ``off`` is the most by which a trial differs from it.

    ``off`` is a part of the peak, None of a line through two points alone.
    """

    fixed_bytes: float
    sample_bytes: float
    off: float | None

    def at(self, batch: int) -> float:
        """Return the peak of a batch."""
        return self.fixed_bytes + self.sample_bytes * batch

    def within(self, most_bytes: float) -> int:
        """Return the largest batch below ``most_bytes``; a thousand million where a sample takes nothing."""
        if self.sample_bytes <= 0:
            return _LARGEST
        return max(0, min(_LARGEST, int((most_bytes - self.fixed_bytes) / self.sample_bytes)))


def modelled(tried: Sequence[Tried]) -> MemoryModel | None:
    """Return the line through measured peaks, the larger ones weighing more; None of fewer than two batches.

    A batch takes as much as a smaller one at least, so that where one is seen to take less, both count as the mean.
    """
    points = _rising([(each.batch, each.peak_bytes) for each in tried if each.peak_bytes is not None])
    if len({batch for batch, _ in points}) < 2:
        return None
    weight = sum(batch for batch, _ in points)
    batches = sum(batch * batch for batch, _ in points) / weight
    peaks = sum(batch * peak for batch, peak in points) / weight
    spread = sum(batch * (batch - batches) ** 2 for batch, _ in points)
    sample = sum(batch * (batch - batches) * (peak - peaks) for batch, peak in points) / spread
    line = MemoryModel(peaks - sample * batches, sample, None)
    if len({batch for batch, _ in points}) < 3:
        return line
    return MemoryModel(line.fixed_bytes, sample, max(abs(line.at(batch) / peak - 1) for batch, peak in points))


def _rising(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the nearest peaks that never fall: neighbours that do are put at their mean (isotonic regression).

    malloc gives freed memory back at times, so that of two batches the larger one may have the lower peak.
    """
    pools: list[list[tuple[int, float]]] = []
    for point in sorted(points):
        pools.append([point])
        while len(pools) > 1 and _mean(pools[-2]) > _mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    return [(batch, _mean(pool)) for pool in pools for batch, _ in pool]


def _mean(points: Sequence[tuple[int, float]]) -> float:
    return sum(peak for _, peak in points) / len(points)


@dataclass(frozen=True)
class Batches:
    """The batches that may be tried: ``first``, any up to ``most``; with ``total`` those that divide it.

    ``total`` are the samples of one rank and optimizer step, which batch times accumulation are to be exactly. Without
    accumulation (``whole``) that is the only batch.
    """

    first: int
    most: int = _LARGEST
    total: int | None = None
    whole: bool = False

    @property
    def least(self) -> int:
        """The smallest of all."""
        return self.total if self.whole and self.total is not None else 1

    def at_most(self, batch: float) -> int:
        """Return the largest that is not above ``batch``, as round as it need be; the smallest where there is none."""
        if self.total is not None:
            return self.least if self.whole else max(each for each in _divisors(self.total) if each <= max(1, batch))
        found = int(max(1, min(batch, self.most)))
        step = 1 << max(0, (found // _FIGURES).bit_length() - 1)
        return found // step * step


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def largest(tried: Sequence[Tried], headroom: float) -> Tried | None:
    """Return the trial with the largest batch that leaves ``headroom``; None while there is none."""
    return max((each for each in tried if each.within(headroom)), key=lambda each: each.batch, default=None)


def next_batch(tried: Sequence[Tried], batches: Batches, headroom: float) -> int | None:
    """Return the batch to try next, None once the largest that leaves ``headroom`` of the memory is known.

    It is known where the model leads to no batch that is larger by 3 % than the largest that fits and smaller than the
    smallest that does not.
    """
    if not tried:
        first = min(batches.first, batches.most)
        return batches.at_most(first) if batches.total is not None else max(1, first)
    best = largest(tried, headroom)
    over = min((each.batch for each in tried if not each.within(headroom)), default=None)
    if best is None:
        assert over is not None
        return _below(tried, batches, headroom, over)
    if over is not None and _as_near_as_it_is_known(tried, best, headroom):
        return None
    if best.peak_bytes is None or best.limit_bytes is None:
        wanted = float(best.batch * _LEAP)
    else:
        wanted = _by_model(tried, best, headroom)
    return _between(best.batch, over, batches, wanted)


def _as_near_as_it_is_known(tried: Sequence[Tried], best: Tried, headroom: float) -> bool:
    """Say whether what is left of the memory is less than trials of one batch differ by."""
    model = modelled(tried)
    if model is None or model.off is None or best.peak_bytes is None or best.limit_bytes is None:
        return False
    return best.peak_bytes >= budget(best, headroom) * (1 - model.off)


def _below(tried: Sequence[Tried], batches: Batches, headroom: float, over: int) -> int | None:
    """Return a batch below all that were tried, none of which fits."""
    if over <= batches.least:
        return None
    smallest = min(tried, key=lambda each: each.batch)
    model = modelled(tried)
    wanted = over / _SHRINK
    if model is not None and smallest.limit_bytes is not None and model.sample_bytes > 0:
        wanted = model.within(budget(smallest, headroom))
    return batches.at_most(min(wanted, over - 1))


def _by_model(tried: Sequence[Tried], best: Tried, headroom: float) -> float:
    """Return which batch fits by all that was measured, as far as it can be trusted."""
    most_bytes, peak = budget(best, headroom), best.peak_bytes or 1
    farthest = best.batch * _LEAP
    peaks = [each.peak_bytes for each in tried if each.peak_bytes]
    model = modelled(tried)
    if model is None:  # even if all of the peak is for samples, so many fit
        return min(farthest, max(best.batch * most_bytes / peak, 2 * best.batch))
    if max(peaks) > (1 + _NOISE) * peak and all(each.batch <= best.batch for each in tried):
        # the largest batch did not take most: what a sample takes is not known to more than this
        return min(farthest, max(best.batch * most_bytes / max(peaks), 2 * best.batch))
    told = (max(peaks) - min(peaks)) / max(peaks)
    if told < _NOISE or model.sample_bytes <= 0:
        return farthest
    found = min(farthest, model.within(most_bytes))
    return max(best.batch, (found + best.batch) / 2) if told < _ROUGH else found


def _between(best: int, over: int | None, batches: Batches, wanted: float) -> int | None:
    """Return ``wanted`` as one of the batches above ``best`` and below ``over``; None where none is left."""
    if over is not None and wanted >= over:  # what was over says more than the model
        wanted = over - 1 if batches.total is not None else (best + over) / 2
    found = batches.at_most(wanted)
    if found <= best:
        return None
    if batches.total is None and found <= best * (1 + _ALIKE):
        return None
    return None if over is not None and found >= over else found


def fastest(tried: Sequence[Tried], headroom: float, samples: int = _LARGEST) -> Tried | None:
    """Return the trial that trained most samples a second of those that leave ``headroom``, of equals the largest.

    Of ``samples`` for each rank a batch has to leave ten steps in an epoch: nobody wants to train with fewer, however
    fast they are.
    """
    enough = [one for one in tried if one.within(headroom) and one.batch * 10 <= samples]
    rates = {one: rate for one in enough if (rate := one.samples_per_s)}
    like = (one for one, rate in rates.items() if rate >= max(rates.values()) * (1 - _ALIKE))
    return largest(list(like), headroom)
