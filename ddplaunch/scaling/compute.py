"""All numbers of a launch, and of the same launch at other world sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddplaunch.scaling.batch import resolve_batch, resolve_epoch
from ddplaunch.scaling.learning_rate import resolve_lr, resolve_scaling, resolve_warmup
from ddplaunch.scaling.numbers import Numbers, NumbersRequest, refuse_impossible
from ddplaunch.values.resolved import Resolved, Source


def compute(request: NumbersRequest) -> Numbers:
    """Return the numbers of one launch, each with its source.

    Sizes are samples, warmup and steps are optimizer steps. ``resolve_batch``, ``resolve_scaling`` and
    ``resolve_epoch`` hold the formulas and their literature. Raises UsageError with a finding for each number that is
    out of range, or for numbers that contradict each other or are incomplete.
    """
    refuse_impossible(request)
    batch = resolve_batch(request)
    scaling = resolve_scaling(request, batch)
    epoch = resolve_epoch(request, batch)
    return Numbers(
        world_size=request.world_size,
        batch_size=batch.batch_size,
        accum=batch.accum,
        global_batch_size=batch.global_batch_size,
        base_lr=request.base_lr,
        base_batch_size=scaling.base_batch_size if scaling else None,
        lr_scaling=scaling.lr_scaling if scaling else None,
        lr_factor=scaling.factor if scaling else None,
        lr=resolve_lr(request, scaling),
        base_warmup=request.base_warmup,
        warmup_steps=resolve_warmup(request, scaling),
        dataset_size=request.dataset_size,
        steps_per_epoch=epoch.steps_per_epoch if epoch else None,
        dropped=epoch.dropped if epoch else None,
        padded=epoch.padded if epoch else None,
        assumptions=(scaling.assumptions if scaling else ()) + (epoch.assumptions if epoch else ()),
    )


def compare(request: NumbersRequest, world_sizes: Sequence[int]) -> tuple[Numbers, ...]:
    """Return the numbers of ``request`` at each of ``world_sizes``, in that order.

    The per-GPU batch and the accumulation stay the same, so the effective batch grows with the world size. A given
    ``global_batch_size`` stays the same instead, and the accumulation (if ``batch_size`` is given) or the per-GPU batch
    follows from it; the base is then that of ``request`` at its own world size, so that equal effective batches get
    equal learning rates.

    Raises UsageError as ``compute`` does, also if one of the world sizes cannot hold the effective batch.
    """
    if request.global_batch_size is not None:
        accum = request.accum if request.batch_size is None else None  # all three agree at one world size only
        request = replace(request, base_batch_size=compute(request).base_batch_size, accum=accum)
    own = request.world_size
    sizes = (own if size == own.value else Resolved(size, Source("flag", "--compare")) for size in world_sizes)
    return tuple(compute(replace(request, world_size=size)) for size in sizes)
