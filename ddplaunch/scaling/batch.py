"""Samples per rank, per optimizer step and per epoch, from whichever of these numbers are given."""

from __future__ import annotations

from ddplaunch.scaling.numbers import Assumption, NumbersRequest, computed, where
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import DEFAULT, Resolved, Source
from ddplaunch.values.words import count

_ONE = Resolved(1, DEFAULT)
_SAMPLER = Source(
    "default", "PyTorch, https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler"
)


@dataclass(frozen=True)
class EffectiveBatch:
    """Samples per rank and micro-batch, micro-batches per optimizer step, samples per optimizer step."""

    batch_size: Resolved[int] | None
    accum: Resolved[int] | None
    global_batch_size: Resolved[int] | None


@dataclass(frozen=True)
class Epoch:
    """One pass over the data: its optimizer steps, and the samples that ``drop_last`` drops or padding repeats."""

    steps_per_epoch: Resolved[int] | None = None
    dropped: Resolved[int] | None = None
    padded: Resolved[int] | None = None
    assumptions: tuple[Assumption, ...] = ()


def resolve_batch(request: NumbersRequest) -> EffectiveBatch:
    """Return the batch sizes, in samples, for which global_batch_size = batch_size x accum x world_size.

    Every rank must take the same whole number of samples in each micro-batch: DDP weighs all ranks alike when it
    averages gradients (https://docs.pytorch.org/docs/stable/notes/ddp.html), so uneven batches would count some samples
    more than others. Accumulation is 1 unless given or implied. Without ``batch_size`` and ``global_batch_size``, only
    ``accum`` is passed on.

    Raises UsageError ``batch-does-not-divide`` if the effective batch does not split evenly, and ``batch-disagrees`` if
    all three are given and contradict each other.
    """
    total, batch, accum, world = request.global_batch_size, request.batch_size, request.accum, request.world_size.value
    if batch is None and total is None:
        return EffectiveBatch(None, accum, None)
    if batch is not None and (total is None or accum is not None):
        accum = accum or _ONE
        product, formula = batch.value * accum.value * world, f"{batch.value} × {accum.value} × {world}"
        if total is not None and product != total.value:
            raise _disagrees(total, formula, product)
        return EffectiveBatch(batch, accum, total or computed(product, formula))
    assert total is not None
    divisor_given = batch or accum
    unit = divisor_given.value * world if divisor_given else world
    if total.value % unit:
        raise _does_not_divide(request, total, unit)
    divisor = f"({divisor_given.value} × {world})" if divisor_given else str(world)
    quotient = computed(total.value // unit, f"{total.value} / {divisor}")
    return EffectiveBatch(batch, quotient, total) if batch else EffectiveBatch(quotient, accum or _ONE, total)


def _disagrees(total: Resolved[int], formula: str, product: int) -> UsageError:
    return usage(
        f"`--global-batch-size` is {total.value}, but {formula} is {product}",
        why="effective batch = `--batch-size` × `--accum` × world size; any two of the flags decide the third",
        fix=f"`--global-batch-size {product}`, or leave one of the three flags out",
        where=where("--global-batch-size", total),
        code="batch-disagrees",
    )


def _does_not_divide(request: NumbersRequest, total: Resolved[int], unit: int) -> UsageError:
    world = request.world_size.value
    share = count(world, "process")
    if request.batch_size is not None:
        share += f" × `--batch-size {request.batch_size.value}`"
    elif request.accum is not None:
        share += f" × `--accum {request.accum.value}`"
    if unit != world:
        share += f" = {unit}"
    below = total.value // unit * unit
    neighbours = [f"`--global-batch-size {size}`" for size in (below, below + unit) if size]
    return usage(
        f"`--global-batch-size {total.value}` does not divide by {share}: {total.value % unit} left over",
        why="every rank must take equally many samples per optimizer step: DDP weighs all ranks alike",
        fix=" or ".join(neighbours),
        where=where("--global-batch-size", total),
        code="batch-does-not-divide",
    )


def resolve_epoch(request: NumbersRequest, batch: EffectiveBatch) -> Epoch:
    """Return one epoch of ``dataset_size`` = N samples over W ranks; an empty Epoch without ``dataset_size``.

    With torch's defaults (``drop_last=False`` in DistributedSampler and DataLoader), per-GPU batch b, accumulation a:

    - samples per rank = ceil(N / W); the sampler repeats W x ceil(N / W) - N samples (``padded``);
    - micro-batches per rank = ceil(samples per rank / b), the last one possibly smaller;
    - steps_per_epoch = ceil(micro-batches / a), the last step possibly with fewer micro-batches.

    Nested ceilings of integer divisions collapse, so steps_per_epoch = ceil(N / G) with G = b x a x W.

    With ``drop_last=True`` in both, and no step for an incomplete accumulation, all three are floors: an epoch has
    floor(N / G) steps and drops N - G x floor(N / G) samples (``dropped``).

    Raises UsageError ``batch-unknown`` without a batch, and ``dataset-smaller-than-world`` if N < W.
    """
    size, effective, world = request.dataset_size, batch.global_batch_size, request.world_size.value
    if size is None:
        return Epoch()
    if size.value < world:
        raise usage(
            f"`--dataset-size {size.value}` is smaller than the world size {world}",
            why="DistributedSampler would hand the same samples to several ranks, or none at all with drop_last=True",
            fix=f"run on at most {count(size.value, 'process')}, or correct `--dataset-size`",
            where=where("--dataset-size", size),
            code="dataset-smaller-than-world",
        )
    if effective is None:
        raise usage(
            f"`--dataset-size {size.value}` gives no steps per epoch: no batch size is known",
            why="steps per epoch = data set size / effective batch",
            fix="add `--batch-size 8` with your own per-GPU batch, or leave `--dataset-size` out",
            where=where("--dataset-size", size),
            code="batch-unknown",
        )
    n, g = size.value, effective.value
    whole_steps, per_rank = n // g, -(-n // world)
    return Epoch(
        computed(-(-n // g), f"ceil({n} / {g})"),
        computed(n - whole_steps * g, f"{n} - {whole_steps} × {g}"),
        computed(per_rank * world - n, f"{per_rank} × {world} - {n}"),
        _sampler_assumptions(n, g, whole_steps),
    )


def _sampler_assumptions(size: int, effective: int, whole_steps: int) -> tuple[Assumption, ...]:
    defaults = Assumption(
        "steps per epoch count an incomplete last batch and accumulation: DistributedSampler and DataLoader with "
        f"their default drop_last=False; with drop_last=True an epoch has {whole_steps}",
        _SAMPLER,
    )
    if whole_steps:
        return (defaults,)
    small = f"the data set of {size} samples is smaller than the effective batch of {effective}"
    return (defaults, Assumption(f"{small}: the only step of an epoch is incomplete", _SAMPLER))
