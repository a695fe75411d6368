"""Compares the ranks with one process that got all their samples and rank 0's parameters, and makes claims of that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ddplaunch.prove.claims import Claim, Fit, Vector, fit, mean, near, right, still_open, wrong
from ddplaunch.prove.gradients import averaged
from ddplaunch.prove.recording import Event, Recorded
from ddplaunch.values.words import count

_SUBJECT = "one process"
_NEAR, _ROUNDED = 1e-3, 3e-2
_TOO_RANDOM = 0.3
_STATISTICS = ": BatchNorm takes its statistics from the batch of one rank, SyncBatchNorm from those of all"
_NO_MEAN = ": the loss may not be a mean over samples, or the ranks' batches may differ in size"


def _own(event: Event) -> Vector:
    """Return the rank's own gradients of a step, before averaging and clipping, as one vector."""
    return [value for one in event["parameters"] for value in one["own"] or [0.0] * len(one["value"] or ())]


def _compared(ranks: Recorded, alone: Recorded) -> list[Fit]:
    """Return the ranks' mean gradient as a multiple of one process's, for each step of the first optimizer."""
    several = [step for step in ranks.steps() if step[0]["optimizer"] == 0]
    single = [step for step in alone.steps() if step[0]["optimizer"] == 0]
    return [fit(mean(map(_own, step)), _own(one)) for step, (one, *_) in zip(several, single, strict=False)]


def differs(ranks: Recorded, alone: Recorded) -> bool:
    """Return whether the first gradients differ by more than a factor: a third trial then measures what is random."""
    found = _compared(ranks, alone)
    return bool(found) and not found[0].residual < _NEAR


def one_process_claims(ranks: Recorded, alone: Recorded, other: Recorded | None) -> Iterator[Claim]:
    """Yield the claims of the comparison; ``other`` is one process with other random numbers."""
    if not alone.steps():
        yield still_open(_SUBJECT, "the script makes no step as one process with the samples of all ranks")
        return
    steps, found = ranks.steps(), _compared(ranks, alone)
    if not found or not math.isfinite(found[0].residual):
        yield still_open(_SUBJECT, "its gradients cannot be compared with those of the ranks")
        return
    begun = ranks.first("begin")
    reason = _STATISTICS if begun.get("batch_norm") else _NO_MEAN
    chance = _compared(alone, other)[0].residual if other is not None and other.steps() else 0.0
    limit = max(_ROUNDED if begun.get("autocast") else _NEAR, 3 * chance)
    first, late = found[0], max(one.residual for one in found)
    if chance > _TOO_RANDOM:
        yield still_open(_SUBJECT, f"two runs of it differ by {chance:.0%}: random numbers hide any other difference")
    elif first.residual > limit:
        yield still_open(_SUBJECT, f"the gradients of the first step differ by {first.residual:.1%}{reason}")
    else:
        yield _of_factor(steps[0], first, late)
    yield from _of_rates(steps, alone.steps())


def _of_factor(step: Sequence[Event], first: Fit, late: float) -> Claim:
    """Return the claim for gradients that are a multiple of those of one process."""
    one, world = averaged(step), len(step)
    factor = first.factor * (one.factor if one is not None else 1.0)
    off = f"up to {first.residual:.0e} at the first step, {late:.0e} at any"
    if near(factor, 1):
        return right(_SUBJECT, f"it computes the same gradients from the same samples, {off}")
    for number, times in ((world, f"{world} times"), (1 / world, f"1/{world} of")):
        if near(factor, number):
            return wrong(_SUBJECT, "differs-from-one-process", step[0]["line"], world=world, times=times)
    return still_open(_SUBJECT, f"its gradients are {1 / factor:.3g} times those of the ranks, {off}")


def _of_rates(steps: Sequence[Sequence[Event]], alone: Sequence[Sequence[Event]]) -> Iterator[Claim]:
    """Yield a claim about the learning rates of the ranks and of one process."""
    ratios = [
        a / b
        for several, (one, *_) in zip(steps, alone, strict=False)
        for a, b in zip(several[0]["rates"], one["rates"], strict=False)
        if b
    ]
    if not ratios:
        return
    if max(ratios) - min(ratios) > _NEAR * max(ratios):
        yield still_open("rates", "one process has another schedule: it may depend on the number of ranks or steps")
    elif abs(ratios[0] - 1) < _NEAR:
        yield right("rates", f"the learning rates are those of one process at {count(len(steps), 'step')}")
    else:
        yield right("rates", f"the script itself makes the learning rate {ratios[0]:.3g} times that of one process")
