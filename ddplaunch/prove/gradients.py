"""Claims about the gradients of each step, from what the ranks recorded; no reference run is needed.

A rank's own gradient is what autograd computed from its samples. DistributedDataParallel averages these in the backward
pass; a script may do so itself before the step. So the gradient of a step is a factor times the mean over ranks of the
sum over backward passes. The factor shows which division was forgotten or made twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import median

from ddplaunch.prove.claims import ROUNDED, Claim, Vector, equal, fit, mean, near, wrong
from ddplaunch.prove.recording import Event, Recorded
from ddplaunch.values.words import count, listed
from ddplaunch.watch.sharing import UNEQUAL_AFTER_STEP

#: One step as each rank recorded it, in the order of ranks.
Step = Sequence[Event]


def _trained(step: Step) -> list[tuple[Event, ...]]:
    """Return what the ranks recorded of each parameter with a gradient; none if ranks hold parts of the parameters."""
    every = zip(*(event["parameters"] for event in step), strict=True)
    trained = [ones for ones in every if any(one["own"] for one in ones)]
    return trained if all(one["whole"] for one in chain(*trained)) else []


def averaged(step: Step) -> float:
    """Return the gradients of a step as a multiple of the mean over ranks of the ranks' own; 0 if they are not.

    It is taken before they are clipped, or else when the optimizer takes them; if the script changes them to
    something else, after the backward pass.
    """
    for stage in ("clip", "backward" if step[0]["closure"] else "step", "backward"):
        fits = [fit(gradient(ones[0], stage), mean(gradient(one, "own") for one in ones)) for ones in _trained(step)]
        usual = median(one.factor for one in fits) if fits else 0.0
        if usual and all(one.residual < ROUNDED and near(one.factor, usual) for one in fits):
            return usual
    return 0.0


def gradient(parameter: Event, stage: str) -> Vector:
    """Return the sketch of a gradient; zeros where there is none."""
    return parameter.get(stage) or [0.0] * len(parameter["value"])


def gradient_claims(recorded: Recorded) -> Iterator[Claim]:
    """Yield claims about gradients, rates and the replicas after each step."""
    steps = recorded.steps()
    if not steps or len(steps[0]) < 2:
        yield Claim("gradients", "no step of an optimizer of torch was seen on several ranks, all on one node")
        return
    for number in sorted({step[0]["optimizer"] for step in steps}):
        mine = [step for step in steps if step[0]["optimizer"] == number]
        which = f" of {mine[0][0]['kind']} {number + 1}" if number else ""
        yield from (rates := [*_of_settings(mine)])
        names = {tuple(one["name"] for one in event["parameters"]) for event in mine[0]}
        if len(names) > 1 or mine[0][0]["kind"] in UNEQUAL_AFTER_STEP:
            yield Claim(f"gradients{which}", "the optimizer gives ranks parts of the parameters or averages later")
            continue
        claim, replicas = _of_gradients(f"gradients{which}", mine), _of_replicas(f"replicas{which}", mine)
        code = claim.finding and claim.finding.code
        if code == "gradients-not-averaged" and len(mine) > 1 and replicas.verdict == "right":
            claim = Claim(f"gradients{which}", "they differ between ranks, but something makes the parameters alike")
        yield claim
        if claim.verdict != "wrong" and not rates:  # wrong gradients or rates make replicas differ
            yield replicas


def _of_gradients(subject: str, steps: Sequence[Step]) -> Claim:
    """Return the one claim about the gradients of an optimizer."""
    found = [step for step in steps if _trained(step)]
    claims = chain(_not_kept(subject, steps), *(_judged(subject, step) for step in found))
    for claim in sorted(claims, key=lambda claim: claim.verdict == "open"):
        return claim
    if not found:
        return Claim(subject, "no gradient was seen, or ranks hold parts of the parameters")
    return Claim(subject, f"the mean over {len(steps[0])} ranks at {count(len(found), 'step')}", "right")


def _not_kept(subject: str, steps: Sequence[Step]) -> Iterator[Claim]:
    """Yield a claim if gradients are not cleared, or cleared too early."""
    events = [event for event, *_ in steps if not event["closure"]]
    stale = [event for event in events if any(one["stale"] for one in event["parameters"])]
    if len(stale) * 4 > len(events):
        yield wrong(subject, "gradients-not-cleared", stale[0]["line"])
    later = events[1:] or events  # the first step may come after one pass: `if step % accum == 0`
    lost = [event for event in later if event["discarded"] and {*event["discarded"]}.issuperset(event["passes"])]
    if lost and lost == later:
        yield wrong(subject, "gradients-cleared-early", lost[0]["line"], lost=len(lost[0]["discarded"]))


def _judged(subject: str, step: Step) -> Iterator[Claim]:
    """Yield what is wrong with a step, or why it cannot be decided."""
    event, world, factor = step[0], len(step), averaged(step)

    def unequal(stage: str) -> list[str]:
        return [
            ones[0]["name"] for ones in _trained(step) if not equal([gradient(one, stage) for one in ones], ROUNDED)
        ]

    # a closure computes what the optimizer takes
    if names := unequal("backward" if event["closure"] else "step"):
        yield wrong(subject, "gradients-not-averaged", event["line"], names=listed(names))
    elif unequal("clip"):
        yield wrong(subject, "clipped-before-average", event["line"])
    elif not factor:
        yield Claim(subject, "the same on all ranks, but not a multiple of the mean: the script computes its own")
    elif (
        event["kind"] == "SGD"  # others are hardly changed by a factor
        and near(factor, 1)
        and len(event["passes"]) > len({*event["passes"]}) == 1
        and all("Loss" in function or "Mean" in function for _, function in event["losses"])
    ):
        yield wrong(subject, "passes-summed", event["line"], passes=len(event["passes"]))
    elif near(factor, 1 / len(event["passes"])):  # 1, or divided by the script after accumulation
        return
    elif abs(factor * world - 1) < ROUNDED / 10:  # clipping by hand may come near it
        yield wrong(subject, "gradients-divided-twice", event["line"], world=world)
    elif near(factor, world):
        yield Claim(subject, f"{world} times the mean: right only if the loss is divided by that number")


def _of_settings(steps: Sequence[Step]) -> Iterator[Claim]:
    """Yield a claim if the optimizers of ranks step with different numbers, as their learning rates."""
    for step in steps:
        for groups in zip(*(event["settings"] for event in step), strict=False):
            for name in groups[0]:
                values = [group.get(name) for group in groups]
                if len({*values}) > 1:
                    named = listed(f"{value} on rank {rank}" for rank, value in enumerate(values))
                    yield wrong("rates", "numbers-differ", step[0]["line"], name=name, values=named)
                    return


def _of_replicas(subject: str, steps: Sequence[Step]) -> Claim:
    """Return the claim that all ranks have the same parameters before each step."""
    for made, step in enumerate(steps, 1):
        # all ranks compute their values from the same gradients
        every = zip(*(event["parameters"] for event in step), strict=True)
        if apart := [ones[0]["name"] for ones in every if not equal([one["value"] for one in ones], 1e-6)]:
            return wrong(subject, "replicas-differ", step[0]["line"], step=made, names=listed(apart))
    return Claim(subject, f"all ranks have the same parameters before each of {count(len(steps), 'step')}", "right")
