"""How much larger than the tuned ones the learning rate and warmup become; refuses to touch a final `--lr`.

Optimizer steps per epoch, and which samples an epoch drops or repeats; refuses to guess a data set's size.
"""

from __future__ import annotations

import math

from ddplaunch.scaling.batch import Batch
from ddplaunch.scaling.numbers import (
    Assumption,
    LrScaling,
    NumbersRequest,
    format_factor,
    format_lr,
    round_half_up,
    round_significant,
    where,
)
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import DEFAULT, Resolved, Source

GOYAL = Source("default", "Goyal et al. 2017, https://arxiv.org/abs/1706.02677")
DDP_NOTES = Source("default", "PyTorch, https://docs.pytorch.org/docs/stable/notes/ddp.html")


@dataclass(frozen=True)
class Scaling:
    """The rule, the base in samples per optimizer step, the factor, and what was taken for granted."""

    lr_scaling: Resolved[LrScaling]
    base_batch_size: Resolved[int] | None
    factor: Resolved[float]
    assumptions: tuple[Assumption, ...]


def resolve_scaling(request: NumbersRequest, batch: Batch) -> Scaling | None:
    """Return the factor for ``base_lr`` and ``base_warmup``, or None where neither was given.

    linear: effective batch / base batch (Goyal et al. 2017, https://arxiv.org/abs/1706.02677); sqrt: its square
    root (https://arxiv.org/abs/1404.5997, section 5; usual for Adam-like optimizers); none: 1. ``lr_max_factor``
    caps all of them. Without ``base_batch_size`` the base is one GPU with the same per-GPU batch and accumulation,
    so the ratio is the world size.

    Raises UsageError when flags contradict each other or lack what they act on.
    """
    _refuse_contradictions(request)
    if request.base_lr is None and request.base_warmup is None:
        return None
    rule: Resolved[LrScaling] = request.lr_scaling or Resolved("linear", DEFAULT)
    if rule.value == "none":
        factor = _capped(1.0, "none", request)
        return Scaling(rule, request.base_batch_size, factor, ())
    base, ratio, fraction = _ratio(request, batch)
    if rule.value == "sqrt":
        factor = _capped(math.sqrt(ratio), f"sqrt({fraction})", request)
    else:
        factor = _capped(ratio, f"linear: {fraction}", request)
    return Scaling(rule, base, factor, _assumptions(request, batch, base, factor.value))


def resolve_lr(request: NumbersRequest, scaling: Scaling | None) -> Resolved[float] | None:
    """Return the learning rate: ``--lr`` untouched, or base_lr x factor to 12 significant digits.

    Raises UsageError when the product is too large or too small for a float.
    """
    base = request.base_lr
    if base is None or scaling is None:
        return request.lr
    factor = scaling.factor.value
    lr = round_significant(base.value * factor)
    formula = f"{format_lr(base.value)} × {format_factor(factor)}"
    if not math.isfinite(lr) or lr <= 0:
        raise usage(
            f"the learning rate {formula} is {format_lr(lr)}, not a finite number above 0",
            why="a double holds about 1e-308 to 1e308",
            fix="give the final value with `--lr`, for example `--lr 0.0003`, in place of `--base-lr`",
            where=where("--base-lr", base),
            code="number-out-of-range",
        )
    return Resolved(lr, Source("computed", formula))


def resolve_warmup(request: NumbersRequest, scaling: Scaling | None) -> Resolved[int] | None:
    """Return the warmup in optimizer steps: base_warmup x factor, a half rounded up."""
    base = request.base_warmup
    if base is None or scaling is None:
        return None
    factor = scaling.factor.value
    return Resolved(round_half_up(base.value * factor), Source("computed", f"{base.value} × {format_factor(factor)}"))


def _refuse_contradictions(request: NumbersRequest) -> None:
    if request.lr is not None and request.base_lr is not None:
        lr, base = format_lr(request.lr.value), format_lr(request.base_lr.value)
        raise usage(
            f"`--lr {lr}` and `--base-lr {base}` are both given",
            why="`--lr` is final and never scaled, `--base-lr` is scaled to the effective batch: both set one value",
            fix=f"keep `--lr {lr}` to train with exactly that, or `--base-lr {base}` to have it scaled",
            where=(where("--lr", request.lr), where("--base-lr", request.base_lr)),
            code="lr-given-twice",
        )
    if request.base_lr is not None or request.base_warmup is not None:
        return
    for flag, said in (
        ("--lr-scaling", request.lr_scaling),
        ("--lr-max-factor", request.lr_max_factor),
        ("--base-batch-size", request.base_batch_size),
    ):
        if said is not None:
            final = f"; `--lr {format_lr(request.lr.value)}` is final" if request.lr is not None else ""
            raise usage(
                f"`{flag} {said.value}` has nothing to scale: neither `--base-lr` nor `--base-warmup` is given",
                why=f"it only decides what `--base-lr` and `--base-warmup` are multiplied by{final}",
                fix=f"leave `{flag}` out, or add what was tuned, for example `--base-lr 0.0001`",
                where=where(flag, said),
                code="nothing-to-scale",
            )


def _ratio(request: NumbersRequest, batch: Batch) -> tuple[Resolved[int] | None, float, str]:
    """Return the base, effective batch / base, and that fraction as text."""
    base, effective = request.base_batch_size, batch.global_batch_size
    if effective is None or batch.batch_size is None or batch.accum is None:
        if base is not None:
            raise usage(
                f"`--base-batch-size {base.value}` has no effective batch to compare with",
                why="the factor is the effective batch over the base batch, and no batch size is known",
                fix=f"add `--batch-size 8` (per GPU) or `--global-batch-size {base.value}`, with your own number",
                where=where("--base-batch-size", base),
                code="batch-unknown",
            )
        world = request.world_size.value
        return None, float(world), f"{world} / 1 GPU"
    if base is None:
        per_gpu, accum = batch.batch_size.value, batch.accum.value
        base = Resolved(per_gpu * accum, Source("computed", f"{per_gpu} × {accum} × 1"))
    return base, effective.value / base.value, f"{effective.value} / {base.value}"


def _capped(factor: float, formula: str, request: NumbersRequest) -> Resolved[float]:
    if request.lr_max_factor is None:
        return Resolved(factor, Source("computed", formula))
    cap = float(request.lr_max_factor.value)
    verdict = f"= {format_factor(factor)}, capped at" if factor > cap else "within the cap of"
    return Resolved(min(factor, cap), Source("computed", f"{formula} {verdict} {format_factor(cap)}"))


def _assumptions(
    request: NumbersRequest, batch: Batch, base: Resolved[int] | None, factor: float
) -> tuple[Assumption, ...]:
    said = []
    tuned = " and ".join(
        name
        for name, value in (("base_lr", request.base_lr), ("base_warmup", request.base_warmup))
        if value is not None
    )
    verb = "were" if " and " in tuned else "was"
    if request.lr_scaling is None:
        text = f"{tuned} scales linearly with the effective batch (SGD with warmup); for Adam-like optimizers"
        text = text.replace("scales", "scale") if verb == "were" else text
        said.append(Assumption(f"{text} the square root is the usual rule: `--lr-scaling sqrt`", GOYAL))
    if base is None:
        text = f"{tuned} {verb} tuned for one GPU with the batch that the script uses, so the ratio is the world size"
        said.append(Assumption(f"{text}; `--batch-size` and `--base-batch-size` say otherwise", DEFAULT))
    elif base.source.kind == "computed":  # ours, not said by the user; compare() hands it on as it is
        text = f"{tuned} {verb} tuned for one GPU with the same per-GPU batch and accumulation, {base.value} samples"
        said.append(Assumption(f"{text} per optimizer step; `--base-batch-size` says otherwise", DEFAULT))
    if request.base_lr is not None and factor != 1:
        text = "DDP averages gradients over ranks, so a larger effective batch does not enlarge the gradient by itself"
        if batch.accum is not None and batch.accum.value > 1:
            text += f"; the script averages over its {batch.accum.value} accumulated micro-batches in the same way"
        said.append(Assumption(text, DDP_NOTES))
    return tuple(said)


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
        _schedule_assumptions(size.value, effective.value, whole_steps),
    )


def _computed(value: int, formula: str) -> Resolved[int]:
    return Resolved(value, Source("computed", formula))


def _schedule_assumptions(size: int, effective: int, whole_steps: int) -> tuple[Assumption, ...]:
    defaults = Assumption(
        "steps per epoch count an incomplete last batch and accumulation: DistributedSampler and DataLoader with "
        f"their default drop_last=False; with drop_last=True an epoch has {whole_steps}",
        SAMPLER,
    )
    if whole_steps:
        return (defaults,)
    small = f"the data set of {size} samples is smaller than the effective batch of {effective}"
    return (defaults, Assumption(f"{small}: the only step of an epoch is incomplete", SAMPLER))
