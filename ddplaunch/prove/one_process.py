"""Compares the ranks with one process that got all their samples and rank 0's parameters, and makes claims of that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ddplaunch.prove.claims import Claim, Fit, Vector, combined, fit, mean, near, right, still_open, wrong
from ddplaunch.prove.gradients import Step, averaged
from ddplaunch.prove.recording import Event, Recorded
from ddplaunch.values.words import count, listed

_SUBJECT = "one process"
_NEAR, _ROUNDED = 1e-3, 3e-2
_RANDOM = 0.3  # a factor of the number of ranks is seen in spite of random numbers that change gradients by less
_REASONS = (
    "its loss may not be a mean over samples, BatchNorm takes statistics from one rank's batch, "
    "the script may draw random numbers as it trains, or samples that come from no DataLoader"
)


def _own(event: Event) -> Vector:
    """Return the rank's own gradients of a step, before averaging and clipping, as one vector."""
    return [value for one in event["parameters"] for value in one["own"] or [0.0] * len(one["value"])]


def one_process_claims(ranks: Recorded, alone: Recorded) -> Iterator[Claim]:
    """Yield the claims of the comparison."""
    pairs = [(step, single) for step, (single, *_) in zip(ranks.steps(), alone.steps(), strict=False)]
    compared = [
        fit(mean(map(_own, step)), _own(one)) for step, one in pairs if step[0]["optimizer"] == one["optimizer"] == 0
    ]
    if not compared or not math.isfinite(compared[0].residual):
        yield still_open(_SUBJECT, "the script makes no step of the same model with the samples of all ranks")
        return
    yield _of_gradients(*pairs[0], compared)
    yield from _of_rates(pairs)


def _of_gradients(step: Step, single: Event, compared: Sequence[Fit]) -> Claim:
    """Return the claim about the gradients of the first step; ``compared`` has the ranks' by those of one process."""
    limit = _ROUNDED if step[0]["autocast"] else _NEAR
    first, late = compared[0], max(one.residual for one in compared)
    world, line = len(step), step[0]["line"]
    mine, its = (made.factor or 1.0 if (made := averaged(one)) is not None else 1.0 for one in (step, [single]))
    factor = first.factor * mine / its
    for number, times in ((world, f"{world} times"), (1 / world, f"1/{world} of")):
        if first.residual < _RANDOM and abs(factor / number - 1) < max(limit, first.residual):
            return wrong(_SUBJECT, "differs-from-one-process", line, world=world, times=times)
    if first.residual > limit:
        shares, rest = combined(_own(single), [*map(_own, step)])
        if rest < limit and near(sum(shares), 1) and min(shares) > _NEAR and not step[0]["weighed"]:
            of_ranks = listed(f"{share:.3f} of rank {rank}'s" for rank, share in enumerate(shares))
            return wrong(_SUBJECT, "ranks-count-alike", line, shares=of_ranks)
        return still_open(_SUBJECT, f"the gradients of the first step differ by {first.residual:.1%}: {_REASONS}")
    off = f"up to {first.residual:.0e} at the first step, {late:.0e} at any"
    if near(factor, 1):
        return right(_SUBJECT, f"it computes the same gradients from the same samples, {off}")
    return still_open(_SUBJECT, f"its gradients are {1 / factor:.3g} times those of the ranks, {off}")


def _of_rates(pairs: Sequence[tuple[Step, Event]]) -> Iterator[Claim]:
    """Yield a claim about the learning rates of the ranks and of one process."""
    groups = [both for step, one in pairs for both in zip(step[0]["settings"], one["settings"], strict=False)]
    ratios = [several["lr"] / one["lr"] for several, one in groups if one.get("lr")]
    if not ratios:
        return
    step, one = pairs[-1]
    speeds = {a / b for a, b in zip(step[0]["schedules"], one["schedules"], strict=False) if b}
    world = len(step)
    if speeds == {world} and not step[0]["accelerate"]:  # which does so for schedules that count one process's steps
        yield wrong("rates", "schedule-too-fast", step[0]["line"], world=world)
    elif max(ratios) - min(ratios) > _NEAR * max(ratios):
        yield still_open("rates", "one process has another schedule: it may depend on the number of ranks or steps")
    else:
        times = "" if near(ratios[0], 1) else f"{ratios[0]:.3g} times "
        yield right("rates", f"the learning rates are {times}those of one process at {count(len(pairs), 'step')}")
