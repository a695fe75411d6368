"""Computes all numbers of a launch."""

from __future__ import annotations

import math

from ddplaunch.scaling.batch import EffectiveBatch, resolve_batch, resolve_epoch
from ddplaunch.scaling.numbers import (
    Assumption,
    Numbers,
    NumbersRequest,
    computed,
    format_factor,
    format_lr,
    refuse_impossible,
    round_half_up,
    round_significant,
    where,
)
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import DEFAULT, Resolved, Source, value_of

_GOYAL = Source("default", "Goyal et al. 2017, https://arxiv.org/abs/1706.02677")


def compute(request: NumbersRequest) -> Numbers:
    """Return the numbers of one launch, each with its source.

    Sizes are in samples, warmup and steps in optimizer steps. The formulas and their literature are in
    ``resolve_batch``, ``_resolve_scaling`` and ``resolve_epoch``. Raises UsageError with a finding for each number that
    is out of range, or for numbers that are incomplete or contradict each other.
    """
    refuse_impossible(request)
    batch = resolve_batch(request)
    scaling = _resolve_scaling(request, batch)
    epoch = resolve_epoch(request, batch)
    return Numbers(
        world_size=request.world_size,
        batch_size=batch.batch_size,
        accum=batch.accum,
        global_batch_size=batch.global_batch_size,
        base_lr=request.base_lr,
        base_batch_size=scaling.base_batch_size,
        lr_scaling=scaling.lr_scaling,
        lr_factor=scaling.factor,
        lr=_resolve_lr(request, scaling),
        base_warmup=request.base_warmup,
        warmup_steps=_resolve_warmup(request, scaling),
        dataset_size=request.dataset_size,
        steps_per_epoch=epoch.steps_per_epoch,
        dropped=epoch.dropped,
        padded=epoch.padded,
        assumptions=scaling.assumptions + epoch.assumptions,
    )


@dataclass(frozen=True)
class _Scaling:
    """The scaling rule, the base batch in samples per optimizer step, the factor, and the assumptions made.

    ``factor`` is None if there is nothing to scale.
    """

    lr_scaling: Resolved[str] | None = None
    base_batch_size: Resolved[int] | None = None
    factor: Resolved[float] | None = None
    assumptions: tuple[Assumption, ...] = ()


def _resolve_scaling(request: NumbersRequest, batch: EffectiveBatch) -> _Scaling:
    """Return the factor for ``base_lr`` and ``base_warmup``; no factor if there is nothing to scale.

    linear: effective batch / base batch (Goyal et al. 2017, https://arxiv.org/abs/1706.02677); sqrt: its square
    root (https://arxiv.org/abs/1404.5997, section 5; usual for Adam-like optimizers); none: 1. ``lr_max_factor``
    caps all of them. Without ``base_batch_size`` the base is one GPU with the same per-GPU batch and accumulation, so
    the ratio is the world size.

    Raises UsageError if flags contradict each other or have nothing to scale.
    """
    _refuse_contradictions(request)
    if request.base_lr is None and (request.base_warmup is None or _is_final(request)):
        return _Scaling()
    rule: Resolved[str] = request.lr_scaling or Resolved("linear", DEFAULT)
    if rule.value == "none":
        return _Scaling(rule, request.base_batch_size, _capped(1.0, "none", request))
    base, ratio, fraction = _ratio(request, batch)
    if rule.value == "sqrt":
        factor = _capped(math.sqrt(ratio), f"sqrt({fraction})", request)
    else:
        factor = _capped(ratio, f"linear: {fraction}", request)
    return _Scaling(rule, base, factor, _scaling_assumptions(request, base, factor.value))


def _resolve_lr(request: NumbersRequest, scaling: _Scaling) -> Resolved[float] | None:
    """Return the learning rate: ``--lr`` untouched, or base_lr x factor to 12 significant digits.

    Raises UsageError if the product is too large or too small for a float.
    """
    base = request.base_lr
    return request.lr if base is None else _scaled("--base-lr", base, scaling)


def _scaled(flag: str, base: Resolved[float], scaling: _Scaling) -> Resolved[float]:
    factor = value_of(scaling.factor, 1.0)
    lr = round_significant(base.value * factor)
    formula = f"{format_lr(base.value)} × {format_factor(factor)}"
    if not math.isfinite(lr) or lr <= 0:
        raise usage(
            f"the learning rate {formula} is {format_lr(lr)}, not a finite number above 0",
            why="a double holds about 1e-308 to 1e308",
            fix="give the final value with `--lr`, for example `--lr 0.0003`, in place of `--base-lr`",
            where=where(flag, base),
            code="number-out-of-range",
        )
    return computed(lr, formula)


def _resolve_warmup(request: NumbersRequest, scaling: _Scaling) -> Resolved[int] | None:
    """Return the warmup in optimizer steps: ``--warmup`` as given, or base_warmup x factor, a half rounded up.

    With a final learning rate, base_warmup is scaled only if a scaling rule was given.
    """
    base = request.base_warmup
    if base is None:
        return request.warmup
    if scaling.factor is None:
        return computed(base.value, f"{base.value}, not scaled: the learning rate is final")
    factor = scaling.factor.value
    return computed(round_half_up(base.value * factor), f"{base.value} × {format_factor(factor)}")


def _is_final(request: NumbersRequest) -> bool:
    """Return whether the user gave a final learning rate and no scaling rule; the warmup is then not scaled either."""
    final = request.lr is not None and request.lr.source.kind != "script"
    return final and request.lr_scaling is None and request.lr_max_factor is None and request.base_batch_size is None


def _refuse_both(request: NumbersRequest) -> None:
    """Raise UsageError if the learning rate or the warmup is given both as final and as to be scaled."""
    for lr, base, flag, verb, code in (
        (request.lr, request.base_lr, "lr", "train with", "lr-given-twice"),
        (request.warmup, request.base_warmup, "warmup", "warm up for", "warmup-given-twice"),
    ):
        if lr is None or base is None:
            continue
        final, scaled = f"--{flag} {format_lr(lr.value)}", f"--base-{flag} {format_lr(base.value)}"
        raise usage(
            f"`{final}` and `{scaled}` are both given",
            why=f"`--{flag}` is final and never scaled, `--base-{flag}` is scaled to the effective batch: both set one "
            "value",
            fix=f"keep `{final}` to {verb} exactly that, or `{scaled}` to have it scaled",
            where=(where(f"--{flag}", lr), where(f"--base-{flag}", base)),
            code=code,
        )


def _refuse_contradictions(request: NumbersRequest) -> None:
    _refuse_both(request)
    if request.base_lr is not None or request.base_warmup is not None:
        return
    for flag, setting in (
        ("--lr-scaling", request.lr_scaling),
        ("--lr-max-factor", request.lr_max_factor),
        ("--base-batch-size", request.base_batch_size),
    ):
        if setting is not None:
            final = f"; `--lr {format_lr(request.lr.value)}` is final" if request.lr is not None else ""
            raise usage(
                f"`{flag} {setting.value}` has nothing to scale: neither `--base-lr` nor `--base-warmup` is given",
                why=f"it only decides what `--base-lr` and `--base-warmup` are multiplied by{final}",
                fix=f"leave `{flag}` out, or add what was tuned, for example `--base-lr 0.0001`",
                where=where(flag, setting),
                code="nothing-to-scale",
            )


def _ratio(request: NumbersRequest, batch: EffectiveBatch) -> tuple[Resolved[int] | None, float, str]:
    """Return the base batch, the ratio effective batch / base batch, and that fraction as text."""
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


def _scaling_assumptions(request: NumbersRequest, base: Resolved[int] | None, factor: float) -> tuple[Assumption, ...]:
    if factor == 1:
        return ()
    tuned = ["base_lr"] * (request.base_lr is not None) + ["base_warmup"] * (request.base_warmup is not None)
    names, was = " and ".join(tuned), "were" if len(tuned) == 2 else "was"
    assumptions = []
    if request.lr_scaling is None:
        text = f"{names} scaled linearly, as for SGD with warmup; for Adam-like optimizers `--lr-scaling sqrt` is usual"
        assumptions.append(Assumption(text, _GOYAL))
    if base is None:
        text = f"{names} {was} tuned for one rank with the batch that the script uses, so the ratio is the world size"
        assumptions.append(Assumption(f"{text}; change it with `--batch-size` or `--base-batch-size`", DEFAULT))
    elif base.source.kind == "computed":  # the default base
        text = f"{names} {was} tuned for one rank with {base.value} samples per optimizer step"
        assumptions.append(Assumption(f"{text}; change it with `--base-batch-size`", DEFAULT))
    return tuple(assumptions)
