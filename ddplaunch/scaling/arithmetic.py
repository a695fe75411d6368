"""All numbers of one launch from what the user said of them; refuses to read anything but its argument."""

from __future__ import annotations

from ddplaunch.scaling.batch import resolve_batch
from ddplaunch.scaling.learning_rate import resolve_lr, resolve_scaling, resolve_warmup
from ddplaunch.scaling.limits import refuse_impossible
from ddplaunch.scaling.numbers import Numbers, NumbersRequest
from ddplaunch.scaling.schedule import resolve_epoch


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
