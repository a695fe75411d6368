"""All numbers of one launch from what the user said of them; refuses to read anything but its argument.

The same launch at several world sizes, side by side; refuses to move the base that it compares against.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddplaunch.scaling.batch import resolve_batch
from ddplaunch.scaling.learning_rate import resolve_epoch, resolve_lr, resolve_scaling, resolve_warmup
from ddplaunch.scaling.numbers import Numbers, NumbersRequest, refuse_impossible
from ddplaunch.values.resolved import Resolved, Source


def compute(request: NumbersRequest) -> Numbers:
    """Return the numbers of one launch, each with its source; what nobody asked for stays None.

    Sizes are samples, warmup and steps are optimizer steps. The formulas and their literature stand at
    ``resolve_batch``, ``resolve_scaling`` and ``resolve_epoch``. Raises UsageError with a finding for whatever
    is impossible, contradictory or incomplete; numbers that are wrong on their own are all reported at once.
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

    Per-GPU batch and accumulation are kept, so the effective batch grows with the world size. Where
    ``global_batch_size`` was asked, that one is kept and the accumulation (with ``batch_size`` given) or the per-GPU
    batch follows; the base is then the one that ``request`` has at its own world size, so that equal effective
    batches get equal learning rates.

    Raises UsageError as ``compute`` does, also when one of the world sizes cannot hold the effective batch.
    """
    kept = _keep_global(request) if request.global_batch_size is not None else request
    return tuple(compute(replace(kept, world_size=_world(request, size))) for size in world_sizes)


def _keep_global(request: NumbersRequest) -> NumbersRequest:
    base = compute(request).base_batch_size
    accum = request.accum if request.batch_size is None else None  # all three agree at one world size only
    return replace(request, base_batch_size=base, accum=accum)


def _world(request: NumbersRequest, size: int) -> Resolved[int]:
    if size == request.world_size.value:
        return request.world_size
    return Resolved(size, Source("flag", "--compare"))
