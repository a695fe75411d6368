"""Optimizer steps per epoch, and which samples an epoch drops or repeats; refuses to guess a data set's size."""

from __future__ import annotations

from ddplaunch.errors import usage
from ddplaunch.frozen import dataclass
from ddplaunch.scaling.batch import Batch
from ddplaunch.scaling.limits import where
from ddplaunch.scaling.numbers import Assumption, NumbersRequest
from ddplaunch.values import Resolved, Source

SAMPLER = Source(
    "default", "PyTorch, https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler"
)


@dataclass(frozen=True)
class Epoch:
    """One pass over the data: optimizer steps, and samples dropped with or repeated without ``drop_last``."""

    steps_per_epoch: Resolved[int]
    dropped: Resolved[int]
    padded: Resolved[int]
    assumptions: tuple[Assumption, ...]


def resolve_epoch(request: NumbersRequest, batch: Batch) -> Epoch | None:
    """Return what an epoch of ``dataset_size`` = N samples is over W ranks, or None where N is not given.

    With torch's defaults, ``drop_last=False`` in DistributedSampler and in DataLoader, per-GPU batch b, accumulation a:

    - samples per rank = ceil(N / W); the sampler repeats W x ceil(N / W) - N samples (``padded``);
    - micro-batches per rank = ceil(samples per rank / b), the last one possibly smaller;
    - steps_per_epoch = ceil(micro-batches / a), the last step possibly of fewer micro-batches.

    Nested ceilings of whole divisors collapse, so steps_per_epoch = ceil(N / G) with G = b x a x W.

    With ``drop_last=True`` in both, and no step for an incomplete accumulation, all three become floors, an epoch has
    floor(N / G) steps and loses N - G x floor(N / G) samples (``dropped``).

    Raises UsageError ``batch-unknown`` without a batch and ``dataset-smaller-than-world`` when N < W.
    """
    size, effective, world = request.dataset_size, batch.global_batch_size, request.world_size.value
    if size is None:
        return None
    if size.value < world:
        raise usage(
            f"`--dataset-size {size.value}` is smaller than the world size {world}",
            why="DistributedSampler would hand the same samples to several ranks, or none at all with drop_last=True",
            fix=f"run on at most {size.value} process{'es' if size.value > 1 else ''}, or correct `--dataset-size`",
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
    whole_steps = size.value // effective.value
    per_rank = -(-size.value // world)
    return Epoch(
        _computed(-(-size.value // effective.value), f"ceil({size.value} / {effective.value})"),
        _computed(size.value - whole_steps * effective.value, f"{size.value} - {whole_steps} × {effective.value}"),
        _computed(per_rank * world - size.value, f"{per_rank} × {world} - {size.value}"),
        _assumptions(size.value, effective.value, whole_steps),
    )


def _computed(value: int, formula: str) -> Resolved[int]:
    return Resolved(value, Source("computed", formula))


def _assumptions(size: int, effective: int, whole_steps: int) -> tuple[Assumption, ...]:
    defaults = Assumption(
        "steps per epoch count an incomplete last batch and accumulation: DistributedSampler and DataLoader with "
        f"their default drop_last=False; with drop_last=True an epoch has {whole_steps}",
        SAMPLER,
    )
    if whole_steps:
        return (defaults,)
    small = f"the data set of {size} samples is smaller than the effective batch of {effective}"
    return (defaults, Assumption(f"{small}: the only step of an epoch is incomplete", SAMPLER))
