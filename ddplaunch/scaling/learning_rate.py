"""The learning rate and warmup of a launch, scaled from those that were tuned for another batch."""

from __future__ import annotations

import math

from ddplaunch.scaling.batch import EffectiveBatch
from ddplaunch.scaling.numbers import (
    Assumption,
    LrScaling,
    NumbersRequest,
    computed,
    format_factor,
    format_lr,
    round_half_up,
    round_significant,
    where,
)
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import DEFAULT, Resolved, Source

_GOYAL = Source("default", "Goyal et al. 2017, https://arxiv.org/abs/1706.02677")
_DDP_NOTES = Source("default", "PyTorch, https://docs.pytorch.org/docs/stable/notes/ddp.html")


@dataclass(frozen=True)
class Scaling:
    """The rule, the base in samples per optimizer step, the factor, and what they take for granted."""

    lr_scaling: Resolved[LrScaling]
    base_batch_size: Resolved[int] | None
    factor: Resolved[float]
    assumptions: tuple[Assumption, ...]


def resolve_scaling(request: NumbersRequest, batch: EffectiveBatch) -> Scaling | None:
    """Return the factor for ``base_lr`` and ``base_warmup``, or None where neither was given.

    linear: effective batch / base batch (Goyal et al. 2017, https://arxiv.org/abs/1706.02677); sqrt: its square
    root (https://arxiv.org/abs/1404.5997, section 5; usual for Adam-like optimizers); none: 1. ``lr_max_factor``
    caps all of them. Without ``base_batch_size`` the base is one GPU with the same per-GPU batch and accumulation,
    so the ratio is the world size.

    Raises UsageError if flags contradict each other or have nothing to scale.
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
    return Scaling(rule, base, factor, _scaling_assumptions(request, batch, base, factor.value))


def resolve_lr(request: NumbersRequest, scaling: Scaling | None) -> Resolved[float] | None:
    """Return the learning rate: ``--lr`` untouched, or base_lr x factor to 12 significant digits.

    Raises UsageError if the product is too large or too small for a float.
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
    return computed(lr, formula)


def resolve_warmup(request: NumbersRequest, scaling: Scaling | None) -> Resolved[int] | None:
    """Return the warmup in optimizer steps: base_warmup x factor, a half rounded up."""
    base = request.base_warmup
    if base is None or scaling is None:
        return None
    factor = scaling.factor.value
    return computed(round_half_up(base.value * factor), f"{base.value} × {format_factor(factor)}")


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
    for flag, given in (
        ("--lr-scaling", request.lr_scaling),
        ("--lr-max-factor", request.lr_max_factor),
        ("--base-batch-size", request.base_batch_size),
    ):
        if given is not None:
            final = f"; `--lr {format_lr(request.lr.value)}` is final" if request.lr is not None else ""
            raise usage(
                f"`{flag} {given.value}` has nothing to scale: neither `--base-lr` nor `--base-warmup` is given",
                why=f"it only decides what `--base-lr` and `--base-warmup` are multiplied by{final}",
                fix=f"leave `{flag}` out, or add what was tuned, for example `--base-lr 0.0001`",
                where=where(flag, given),
                code="nothing-to-scale",
            )


def _ratio(request: NumbersRequest, batch: EffectiveBatch) -> tuple[Resolved[int] | None, float, str]:
    """Return the base, the ratio effective batch / base, and that fraction as text."""
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
        base = computed(per_gpu * accum, f"{per_gpu} × {accum} × 1")
    return base, effective.value / base.value, f"{effective.value} / {base.value}"


def _capped(factor: float, formula: str, request: NumbersRequest) -> Resolved[float]:
    if request.lr_max_factor is None:
        return computed(factor, formula)
    cap = float(request.lr_max_factor.value)
    limited = f"= {format_factor(factor)}, capped at" if factor > cap else "within the cap of"
    return computed(min(factor, cap), f"{formula} {limited} {format_factor(cap)}")


def _scaling_assumptions(
    request: NumbersRequest, batch: EffectiveBatch, base: Resolved[int] | None, factor: float
) -> tuple[Assumption, ...]:
    tuned = [name for name in ("base_lr", "base_warmup") if getattr(request, name) is not None]
    names, scale, was = (" and ".join(tuned), *(("scale", "were") if len(tuned) == 2 else ("scales", "was")))
    assumptions = []
    if request.lr_scaling is None:
        text = f"{names} {scale} linearly with the effective batch (SGD with warmup); for Adam-like optimizers"
        assumptions.append(Assumption(f"{text} the square root is the usual rule: `--lr-scaling sqrt`", _GOYAL))
    if base is None:
        text = f"{names} {was} tuned for one GPU with the batch that the script uses, so the ratio is the world size"
        assumptions.append(Assumption(f"{text}; `--batch-size` and `--base-batch-size` say otherwise", DEFAULT))
    elif base.source.kind == "computed":  # the default base; compare() passes it on as it is
        text = f"{names} {was} tuned for one GPU with the same per-GPU batch and accumulation, {base.value} samples"
        assumptions.append(Assumption(f"{text} per optimizer step; `--base-batch-size` says otherwise", DEFAULT))
    if request.base_lr is not None and factor != 1:
        text = "DDP averages gradients over ranks, so a larger effective batch does not enlarge the gradient by itself"
        if batch.accum is not None and batch.accum.value > 1:
            text += f"; the script averages over its {batch.accum.value} accumulated micro-batches in the same way"
        assumptions.append(Assumption(text, _DDP_NOTES))
    return tuple(assumptions)
