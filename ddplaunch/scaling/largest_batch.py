"""Which batch fits into memory: a model of what trials took, the largest batch by it, and the next one to try.

Peak memory is taken to be a fixed part, weights, gradients, optimizer state and the libraries, and a part for each
sample: a line through the smallest and the largest batch that ran. The answer is a batch that was tried itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddplaunch.values.frozen import dataclass

_ALIKE = 0.03  # two batches that differ by less are one answer
_LEAP = 16  # times the largest batch that was tried: as far as a trial goes
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
    """Return the line through the smallest and the largest batch whose peaks are known; None of fewer than two.

    A batch takes as much as a smaller one at least; malloc gives freed memory back at times, so that it can seem less.
    """
    peaks = {trial.batch: trial.peak_bytes for trial in tried if trial.peak_bytes is not None}
    if len(peaks) < 2:
        return None
    small, large = min(peaks), max(peaks)
    sample = max(0.0, (peaks[large] - peaks[small]) / (large - small))
    line = MemoryModel(peaks[large] - sample * large, sample, None)
    if len(peaks) < 3:
        return line
    return MemoryModel(line.fixed_bytes, sample, max(abs(line.at(batch) / peak - 1) for batch, peak in peaks.items()))


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
            return self.least if self.whole else max(part for part in _divisors(self.total) if part <= max(1, batch))
        batch_size = int(max(1, min(batch, self.most)))
        step = 1 << max(0, (batch_size // _FIGURES).bit_length() - 1)
        return batch_size // step * step


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def largest(tried: Sequence[Tried], headroom: float) -> Tried | None:
    """Return the trial with the largest batch that leaves ``headroom``; None while there is none."""
    return max((trial for trial in tried if trial.within(headroom)), key=lambda trial: trial.batch, default=None)


def next_batch(tried: Sequence[Tried], batches: Batches, headroom: float) -> int | None:
    """Return the batch to try next, None once the largest that leaves ``headroom`` of the memory is known.

    It is known where the model leads to no batch that is larger by 3 % than the largest that fits and smaller than the
    smallest that does not.
    """
    if not tried:
        first = min(batches.first, batches.most)
        return batches.at_most(first) if batches.total is not None else max(1, first)
    best = largest(tried, headroom)
    too_large = min((trial.batch for trial in tried if not trial.within(headroom)), default=_LARGEST)
    predicted = _by_model(tried, best, headroom)
    if best is None:
        return None if too_large <= batches.least else batches.at_most(min(predicted, too_large - 1))
    if predicted >= too_large:  # what was over says more than the model
        predicted = too_large - 1 if batches.total is not None else (best.batch + too_large) / 2
    batch = batches.at_most(predicted)
    alike = 1 if batches.total is not None else 1 + _ALIKE
    return batch if best.batch * alike < batch < too_large else None


def _by_model(tried: Sequence[Tried], best: Tried | None, headroom: float) -> float:
    """Return which batch fits by all that was measured, as far as it can be trusted."""
    model, smallest = modelled(tried), min(tried, key=lambda trial: trial.batch)
    trusted = model is not None and model.sample_bytes > 0
    if best is None:
        if model is None or not trusted or smallest.limit_bytes is None:
            return smallest.batch / _SHRINK
        return model.within(budget(smallest, headroom))
    if best.peak_bytes is None or best.limit_bytes is None:
        return best.batch * _LEAP
    if model is not None and trusted:
        return min(best.batch * _LEAP, model.within(budget(best, headroom)))
    peak = max(trial.peak_bytes or 1 for trial in tried)  # even if all of it is for samples, so many fit
    return min(best.batch * _LEAP, max(best.batch * budget(best, headroom) / peak, 2 * best.batch))


def fastest(tried: Sequence[Tried], headroom: float, samples: int = _LARGEST) -> Tried | None:
    """Return the trial that trained most samples a second of those that leave ``headroom``, of equals the largest.

    Of ``samples`` for each rank a batch has to leave ten steps in an epoch: nobody wants to train with fewer, however
    fast they are.
    """
    enough = [one for one in tried if one.within(headroom) and one.batch * 10 <= samples]
    rates = {one: rate for one in enough if (rate := one.samples_per_s)}
    like = (one for one, rate in rates.items() if rate >= max(rates.values()) * (1 - _ALIKE))
    return largest(list(like), headroom)
