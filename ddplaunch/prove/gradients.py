"""Claims about the gradients of each step, from what the ranks recorded; no reference run is needed.

A rank's own gradient is what autograd computed from its samples. DistributedDataParallel averages these in the backward
pass; a script may do so itself before the step. So the gradient of a step is a factor times the mean over ranks of the
sum over backward passes. The factor shows which division was forgotten or made twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ddplaunch.prove.claims import (
    ROUNDED,
    Claim,
    Vector,
    equal,
    fit,
    mean,
    near,
    norm,
    right,
    still_open,
    wrong,
)
from ddplaunch.prove.recording import Event, Recorded
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import count, listed
from ddplaunch.watch.sharing import UNEQUAL_AFTER_STEP

_STAGES = ("backward", "clip", "step")
_SAME_BITS = 1e-6  # relative tolerance for replicas, which all ranks compute from the same gradients

#: One step as each rank recorded it, in the order of ranks.
Step = Sequence[Event]


@dataclass(frozen=True)
class Averaged:
    """The gradients of one step as ``factor`` times the mean over ranks of the ranks' own gradients.

    ``stage`` is the first stage at which they were that, None if they never were; ``residual`` is that of the fit.
    ``unequal`` are the parameters whose gradients still differ between ranks when the optimizer takes them.
    ``clipped_before`` is True if the script clipped gradients that differed between ranks.
    """

    stage: str | None
    factor: float
    residual: float
    unequal: tuple[str, ...]
    clipped_before: bool


def averaged(step: Step) -> Averaged | None:
    """Return how a step averaged its gradients; None without gradients, or if ranks hold parts of the parameters."""
    numbers = _trained(step)
    if not numbers or not all(event["parameters"][n]["whole"] for event in step for n in numbers):
        return None
    last = "backward" if step[0]["closure"] else "step"
    unequal = [n for n in numbers if not equal([_sketch(event, n, last) for event in step], ROUNDED)]
    names = tuple(step[0]["parameters"][n]["name"] for n in unequal)
    early = [[_sketch(event, n, "clip") for event in step] for n in numbers]
    clipped_before = all(any(map(norm, one)) for one in early) and not all(equal(one, ROUNDED) for one in early)
    for stage in _STAGES:
        fits = [fit(_sketch(step[0], n, stage), mean(_sketch(event, n, "own") for event in step)) for n in numbers]
        usual = median(one.factor for one in fits)
        if usual and all(one.is_by(usual) for one in fits):
            scale = step[0]["scale"] if near(usual * step[0]["scale"], 1) else 1
            return Averaged(stage, usual * scale, max(one.residual for one in fits), names, clipped_before)
    return Averaged(None, 1.0, 0.0, names, clipped_before)


def _trained(step: Step) -> list[int]:
    """Return the parameters that have a gradient on any rank."""
    return [
        n for n in range(len(step[0]["parameters"])) if any(any(event["parameters"][n]["own"] or ()) for event in step)
    ]


def _sketch(event: Event, number: int, key: str) -> Vector:
    """Return a sketch; zeros where there is no gradient."""
    parameter = event["parameters"][number]
    return parameter.get(key) or [0.0] * len(parameter["value"])


def gradient_claims(recorded: Recorded) -> Iterator[Claim]:
    """Yield claims about gradients, rates and the replicas after each step."""
    steps = recorded.steps()
    for number in sorted({step[0]["optimizer"] for step in steps}):
        mine = [step for step in steps if step[0]["optimizer"] == number]
        which = f" of {mine[0][0]['kind']} {number + 1}" if number else ""
        names = {tuple(one["name"] for one in event["parameters"]) for event in mine[0]}
        if len(names) > 1 or mine[0][0]["kind"] in UNEQUAL_AFTER_STEP:
            yield still_open(f"gradients{which}", "the optimizer gives ranks parts of the parameters or averages later")
            continue
        yield (claim := _of_gradients(f"gradients{which}", mine))
        rates = list(_of_rates(mine))
        yield from rates
        if claim.verdict != "wrong" and not rates:  # wrong gradients or rates make replicas differ
            yield _of_replicas(f"replicas{which}", mine)


def _of_gradients(subject: str, steps: Sequence[Step]) -> Claim:
    """Return the one claim about the gradients of an optimizer."""
    for claim in _not_kept(subject, steps):
        return claim
    found = [(step, one) for step in steps if (one := averaged(step)) is not None]
    if not found:
        return still_open(subject, "no gradient was seen, or ranks hold parts of the parameters")
    judged = [claim for step, one in found for claim in _judged(subject, step, one)]
    for claim in sorted(judged, key=lambda claim: claim.verdict == "open"):
        return claim
    residual, passes = max(one.residual for _, one in found), max(len(step[0]["passes"]) for step, _ in found)
    micro = f", each summed over {passes} backward passes" if passes > 1 else ""
    return right(
        subject, f"the mean over {len(steps[0])} ranks at {count(len(found), 'step')}{micro}, up to {residual:.0e}"
    )


def _not_kept(subject: str, steps: Sequence[Step]) -> Iterator[Claim]:
    """Yield a claim if gradients are not cleared, or cleared too early."""
    events = [event for step in steps for event in step if not event["closure"]]
    stale = [event for event in events if any(one["stale"] for one in event["parameters"])]
    if len(stale) * 3 > len(events):
        later = count(len(stale) // len(steps[0]), "later step")
        yield wrong(subject, "gradients-not-cleared", stale[0]["line"], steps=later)
    lost = [event for event in events if event["discarded"] and {*event["discarded"]} <= {*event["passes"]}]
    if lost and len(lost) == len(events):
        passes = f"{len(lost[0]['discarded'])} of {len(lost[0]['discarded']) + 1} backward passes"
        yield wrong(subject, "gradients-cleared-early", lost[0]["line"], lost=passes)
    if events and all(map(_takes_nothing, events)):
        yield wrong(subject, "gradients-cleared-early", events[0]["line"], lost="all backward passes")


def _takes_nothing(event: Event) -> bool:
    trained = _trained([event])
    return bool(trained) and not any(any(_sketch(event, n, "step")) for n in trained)


def _judged(subject: str, step: Step, one: Averaged) -> Iterator[Claim]:
    """Yield what is wrong with a step, or why it cannot be decided."""
    event = step[0]
    if one.unequal:
        which = f" of {listed(one.unequal)}" if len(one.unequal) < len(event["parameters"]) else ""
        yield wrong(subject, "gradients-not-averaged", event["line"], which=which)
    elif one.clipped_before:
        yield wrong(subject, "clipped-before-average", event["line"])
    elif one.stage is None:
        yield still_open(subject, "the same on all ranks, but not a multiple of the mean: the script computes its own")
    else:
        yield from _of_factor(subject, step, one.stage, one.factor)


def _of_factor(subject: str, step: Step, stage: str, factor: float) -> Iterator[Claim]:
    """Yield a claim if the gradients are a wrong multiple of the mean, given what the loss was multiplied by."""
    event, passes, world = step[0], len(step[0]["passes"]), len(step)
    trained = _trained([event])
    last = "clip" if any("clip" in event["parameters"][n] for n in trained) else "step"
    later = [fit(_sketch(event, n, last), _sketch(event, n, stage)) for n in trained]
    rest = median(one.factor for one in later) * event["scale"] if all(one.residual < ROUNDED for one in later) else 1
    is_divided = near(rest, 1 / passes)  # by the script, after accumulation; its other changes are not judged
    rest = rest if is_divided or near(rest, world) or near(rest, 1 / world) else 1
    ratios = {round(ratio, 4) if ratio else None for ratio in event["ratios"]}
    share = ratios.pop() if len(ratios) == 1 else None
    if share is not None and event["forwards"] == passes and len({*event["passes"]}) == 1:
        total = factor * rest * share * passes
    else:
        total = factor if is_divided else factor * rest
    if world == 1 or near(total, 1):
        return
    if near(total, 1 / world):
        yield wrong(subject, "gradients-divided-twice", event["line"], world=world)
    elif share is None and near(total, world):
        yield still_open(subject, f"{world} times the mean: right only if the loss is divided by that number")
    elif near(total, world) and (near(factor, world) or passes != world):
        yield wrong(subject, "gradients-summed", event["line"], is_sure=near(factor, world), world=world)
    elif near(total, passes):
        yield wrong(subject, "gradients-not-divided", event["line"], passes=passes)


def _of_rates(steps: Sequence[Step]) -> Iterator[Claim]:
    """Yield a claim if ranks step at different learning rates."""
    for step in steps:
        if len({tuple(event["rates"]) for event in step}) > 1:
            named = listed((f"{event['rates'][0]:g} on rank {rank}" for rank, event in enumerate(step)))
            yield wrong("rates", "numbers-differ", step[0]["line"], rates=named)
            return


def _of_replicas(subject: str, steps: Sequence[Step]) -> Claim:
    """Return the claim that all ranks have the same parameters after each step."""
    whole = [n for n, one in enumerate(steps[0][0]["parameters"]) if one["whole"]]
    for made, step in enumerate(steps, 1):
        apart = [n for n in whole if not equal([_sketch(event, n, "value") for event in step], _SAME_BITS)]
        if apart:
            names = listed(step[0]["parameters"][n]["name"] for n in apart)
            return wrong(subject, "replicas-differ", step[0]["line"], step=made, names=names)
    return right(subject, f"all ranks have the same parameters after each of {count(len(steps), 'step')}")
