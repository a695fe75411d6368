"""Which batch fits into memory: models the trials so far, and chooses the next batch to try and the largest that fits.

Peak memory is modelled as a fixed part (weights, gradients, optimizer state, libraries) plus a part per sample: a line
through the smallest and the largest batch that ran. The answer is always a batch that was tried.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass

_ALIKE = 0.03  # batches that differ by a smaller fraction count as equal
_LEAP = 16  # the next trial is at most this many times the largest batch that fits
_SHRINK = 4  # running out of memory yields no peak, so the next trial divides the batch by this
_LARGEST = 1 << 30
_FIGURES = 32  # a batch is rounded down to a multiple of a power of two, by at most 1/32 of it


@dataclass(frozen=True)
class Tried:
    """One trial: samples per forward pass of a rank, the highest peak of any rank, and the memory limit per rank.

    If memory ran out, ``ran`` is False and ``peak_bytes`` is None. ``samples_per_s`` counts all ranks.
    """

    batch: int
    ran: bool
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    samples_per_s: float | None = None

    def within(self, headroom: float) -> bool:
        """Return whether the trial left the fraction ``headroom`` of memory free; True if the limit is unknown."""
        if not self.ran:
            return False
        return None in (self.peak_bytes, self.limit_bytes) or (self.peak_bytes or 0) <= budget(self, headroom)


def budget(tried: Tried, headroom: float) -> float:
    """Return how many bytes of the limit may be used."""
    return (tried.limit_bytes or 0) * (1 - headroom)


@dataclass(frozen=True)
class MemoryModel:
    """Peak memory in bytes as a fixed part plus a part per sample.

    ``off`` is the largest deviation of a trial, as a fraction of its peak; None if only two trials define the line.
    """

    fixed_bytes: float
    sample_bytes: float
    off: float | None

    def at(self, batch: int) -> float:
        """Return the predicted peak of a batch, in bytes."""
        return self.fixed_bytes + self.sample_bytes * batch

    def within(self, most_bytes: float) -> int:
        """Return the largest batch that fits into ``most_bytes``, at most 2**30."""
        if self.sample_bytes <= 0:
            return _LARGEST
        return max(0, min(_LARGEST, int((most_bytes - self.fixed_bytes) / self.sample_bytes)))


def modelled(tried: Sequence[Tried]) -> MemoryModel | None:
    """Return the line through the smallest and the largest batch with a known peak; None if there are fewer than two.

    The slope is never negative: a larger batch may seem to need less only because malloc sometimes returns freed
    memory.
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
    """The batches that may be tried: ``first``, then any up to ``most``; with ``total``, only its divisors.

    ``total`` is the samples of one rank per optimizer step: batch times accumulation has to equal it. Without
    accumulation (``whole``) it is the only batch.
    """

    first: int
    most: int = _LARGEST
    total: int | None = None
    whole: bool = False

    @property
    def least(self) -> int:
        """The smallest batch that may be tried."""
        return self.total if self.whole and self.total is not None else 1

    def at_most(self, batch: float) -> int:
        """Return the largest allowed batch up to ``batch``, rounded if large; ``least`` if there is none."""
        if self.total is not None:
            return self.least if self.whole else max(part for part in _divisors(self.total) if part <= max(1, batch))
        batch_size = int(max(1, min(batch, self.most)))
        step = 1 << max(0, (batch_size // _FIGURES).bit_length() - 1)
        return batch_size // step * step


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def largest(tried: Sequence[Tried], headroom: float) -> Tried | None:
    """Return the trial with the largest batch that leaves ``headroom``, or None."""
    return max((trial for trial in tried if trial.within(headroom)), key=lambda trial: trial.batch, default=None)


def next_batch(tried: Sequence[Tried], batches: Batches, headroom: float) -> int | None:
    """Return the batch to try next; None once the largest that leaves ``headroom`` of the memory is known.

    That is when the model predicts no batch both 3 % larger than the largest that fits and smaller than the smallest
    that does not fit.
    """
    if not tried:
        first = min(batches.first, batches.most)
        return batches.at_most(first) if batches.total is not None else max(1, first)
    best = largest(tried, headroom)
    too_large = min((trial.batch for trial in tried if not trial.within(headroom)), default=_LARGEST)
    predicted = _by_model(tried, best, headroom)
    if best is None:
        return None if too_large <= batches.least else batches.at_most(min(predicted, too_large - 1))
    if predicted >= too_large:  # a trial that did not fit is more reliable than the model
        predicted = too_large - 1 if batches.total is not None else (best.batch + too_large) / 2
    batch = batches.at_most(predicted)
    alike = 1 if batches.total is not None else 1 + _ALIKE
    return batch if best.batch * alike < batch < too_large else None


def _by_model(tried: Sequence[Tried], best: Tried | None, headroom: float) -> float:
    """Return the largest batch predicted to fit, at most a leap above the largest that did."""
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
    peak = max(trial.peak_bytes or 1 for trial in tried)  # this many fit even if the whole peak is for samples
    return min(best.batch * _LEAP, max(best.batch * budget(best, headroom) / peak, 2 * best.batch))


def fastest(tried: Sequence[Tried], headroom: float, samples: int = _LARGEST) -> Tried | None:
    """Return the fastest trial that leaves ``headroom``; among about equal rates, the one with the largest batch.

    ``samples`` is the data set per rank: a batch must leave at least ten steps per epoch, because too few steps train
    badly however fast they are.
    """
    enough = [one for one in tried if one.within(headroom) and one.batch * 10 <= samples]
    rates = {one: rate for one in enough if (rate := one.samples_per_s)}
    like = (one for one, rate in rates.items() if rate >= max(rates.values()) * (1 - _ALIKE))
    return largest(list(like), headroom)


@dataclass(frozen=True)
class FitTrial:
    """One trial: its numbers, a clause on how it ended, and its run. ``accum`` is None if it is not decided.

    ``observed`` are the findings from its ranks' first steps, as `run` reports them.
    """

    tried: Tried
    accum: int | None
    steps: int
    note: str
    run_id: str
    took_s: float
    observed: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class FitCommand:
    """A command to type: its words, and its samples per optimizer step (``effective``), None if unknown."""

    batch: int
    effective: int | None
    same: bool
    words: tuple[str, ...]


@dataclass(frozen=True)
class Fitted:
    """The whole answer. ``best`` is the largest batch that leaves ``headroom`` (0.1 for 10 %) free, ``fastest`` the
    fastest such batch. ``most`` is the number of samples that a rank has, None if unknown.
    """

    trials: tuple[FitTrial, ...]
    headroom: float
    device: str
    best: Tried | None = None
    fastest: Tried | None = None
    model: MemoryModel | None = None
    most: int | None = None
    command: FitCommand | None = None
    problem: Finding | None = None
