"""Compares the ranks with one process that got all their samples and rank 0's parameters, and makes claims of that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import fmean

from ddplaunch.prove.claims import ROUNDED, Claim, Fit, Vector, combined, equal, fit, mean, near, wrong
from ddplaunch.prove.gradients import Step, averaged, gradient
from ddplaunch.prove.recording import Event, Recorded
from ddplaunch.values.words import count, listed

_SUBJECT = "one process"


def _own(event: Event, stage: str = "own") -> Vector:
    """Return the rank's own gradients of a step, or of its first pass, before averaging and clipping, as one vector."""
    return [*chain(*(gradient(one, stage) for one in event["parameters"]))]


def one_process_claims(ranks: Recorded, alone: Recorded) -> Iterator[Claim]:
    """Yield the claims of the comparison."""
    pairs = [(step, one) for step, (one, *_) in zip(ranks.steps(), alone.steps(), strict=False)]
    for step, single in pairs[:1]:
        first = fit(mean(map(_own, step)), _own(single))
        if math.isfinite(first.residual):
            yield _of_gradients(step, single, first)
            yield _of_rates(pairs)
            return
    yield Claim(_SUBJECT, "the script makes no step of the same model with the samples of all ranks")


def _of_gradients(step: Step, single: Event, first: Fit) -> Claim:
    """Return the claim about the gradients of the first step; ``first`` has the ranks' by those of one process."""
    world, line = len(step), step[0]["line"]
    mine, its = averaged(step), averaged([single])
    if its > mine == 0 and len(step[0]["passes"]) > 1 and equal([_own(one, "step") for one in step], ROUNDED):
        return wrong(_SUBJECT, "passes-unequal", line)
    factor = first.factor * (mine or 1) / (its or 1)
    for number, times in ((world, f"{world} times"), (1 / world, f"1/{world} of")):
        # seen in spite of random numbers that change gradients by less
        if first.residual < 0.3 and abs(factor / number - 1) < max(ROUNDED, first.residual):
            return wrong(_SUBJECT, "differs-from-one-process", line, world=world, times=times)
    if first.residual > ROUNDED:
        # of one pass, as ranks have other shares of the tokens of each
        shares, rest = combined(_own(single, "first"), [_own(one, "first") for one in step])
        uneven = 1e-3 < min(shares) < 0.99 / world
        if rest < ROUNDED and near(sum(shares), 1) and uneven and not step[0]["weighed"]:
            of_ranks = listed(f"{share:.3f} of rank {rank}'s" for rank, share in enumerate(shares))
            return wrong(_SUBJECT, "ranks-count-alike", line, shares=of_ranks)
        *losses, its_loss = (sum(loss for loss, _ in event["losses"]) for event in (*step, single))
        if math.isclose(fmean(losses), its_loss, rel_tol=1e-5) and not math.isclose(*losses[:2], rel_tol=1e-3):
            return wrong(_SUBJECT, "gradient-cut", line)
    if first.residual < ROUNDED and near(factor, 1):
        return Claim(
            _SUBJECT, f"its first gradients from the same samples are the same, up to {first.residual:.0e}", "right"
        )
    if near(mine, world):
        return wrong(_SUBJECT, "gradients-summed", line, world=world)
    return Claim(
        _SUBJECT,
        f"its gradients are {1 / factor:.3g} times those of the ranks, but for {first.residual:.1%}: "
        "its loss may not be a mean over samples, BatchNorm takes statistics from one rank's batch, "
        "the script may draw random numbers as it trains, or samples that come from no DataLoader",
    )


def _of_rates(pairs: Sequence[tuple[Step, Event]]) -> Claim:
    """Return the claim about the learning rates of the ranks and of one process, which has more batches an epoch."""
    step = pairs[0][0]
    world = len(step)
    here, alone = _rates([made[0] for made, _ in pairs]), _rates([single for _, single in pairs])
    speeds = [speed for speed in (1, world, world * world) if speed < len(alone)]
    speed = min(speeds, key=lambda speed: abs(here[1] - alone[speed]), default=1)
    if speed == world * world:
        return wrong("rates", "schedule-too-fast", step[0]["line"], world=world)
    if speed > 1:
        return Claim("rates", "one process has another schedule: it may depend on the number of ranks or steps")
    return Claim("rates", f"the learning rates follow those of one process over {count(len(pairs), 'step')}", "right")


def _rates(events: Sequence[Event]) -> list[float]:
    """Return the learning rates as parts of the one that their schedule began with."""
    groups = [event["settings"][0] for event in events]
    base = float(groups[0].get("initial_lr") or groups[0].get("lr") or 1)
    return [group.get("lr", 0.0) / base for group in groups]
