"""What each number may be on its own; refuses to compare one number with another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import get_args

from ddplaunch.errors import UsageError
from ddplaunch.finding import Finding, error
from ddplaunch.scaling.numbers import LrScaling, NumbersRequest
from ddplaunch.scaling.rounding import format_lr
from ddplaunch.values import Resolved

LARGEST_COUNT = 2**63 - 1
"""torch keeps sizes in a signed 64-bit integer."""


def where(flag: str, resolved: Resolved[int] | Resolved[float] | Resolved[LrScaling]) -> str:
    """Return where a value came from, for ``Finding.where``: the flag that was typed, or the flag and its source."""
    return resolved.source.detail or flag if resolved.source.kind == "flag" else f"{flag} ({resolved.source})"


def refuse_impossible(request: NumbersRequest) -> None:
    """Raise one UsageError with a finding for every number that no launch can have."""
    findings = (*_counts(request), *_rates(request), *_rule(request))
    if findings:
        raise UsageError(*findings)


def _counts(request: NumbersRequest) -> Iterator[Finding]:
    counts = (
        (where("NPROC", request.world_size), request.world_size, 1, "4", "processes"),
        ("--batch-size", request.batch_size, 1, "--batch-size 8", "samples"),
        ("--accum", request.accum, 1, "--accum 1", "micro-batches"),
        ("--global-batch-size", request.global_batch_size, 1, "--global-batch-size 64", "samples"),
        ("--base-batch-size", request.base_batch_size, 1, "--base-batch-size 64", "samples"),
        # 0 optimizer steps of warmup is a schedule without warmup, which is Hugging Face's default too.
        ("--base-warmup", request.base_warmup, 0, "--base-warmup 0", "optimizer steps"),
        ("--dataset-size", request.dataset_size, 1, "--dataset-size 50000", "samples"),
    )
    for flag, count, smallest, example, unit in counts:
        if count is None or smallest <= count.value <= LARGEST_COUNT:
            continue
        yield error(
            "number-out-of-range",
            f"`{flag}` is {count.value}, outside {smallest} to {LARGEST_COUNT} {unit}",
            why=f"it counts {unit}, and torch holds such a count in a signed 64-bit integer",
            fix=f"give a whole number from {smallest} on, for example `{example}`",
            where=where(flag, count),
        )


def _rates(request: NumbersRequest) -> Iterator[Finding]:
    rates = (
        ("--lr", request.lr, "0.0003"),
        ("--base-lr", request.base_lr, "0.0001"),
        ("--lr-max-factor", request.lr_max_factor, "4"),
    )
    for flag, rate, example in rates:
        if rate is None or (math.isfinite(rate.value) and rate.value > 0):
            continue
        yield error(
            "number-out-of-range",
            f"`{flag}` is {format_lr(rate.value)}, not a finite number above 0",
            why="every learning rate made from it would be zero, negative, infinite or not a number",
            fix=f"give a finite number above 0, for example `{flag} {example}`",
            where=where(flag, rate),
        )


def _rule(request: NumbersRequest) -> Iterator[Finding]:
    rules = get_args(LrScaling)
    # A profile's text arrives here too, so the type alone does not hold it.
    if request.lr_scaling is not None and request.lr_scaling.value not in rules:
        yield error(
            "unknown-lr-scaling",
            f"`--lr-scaling` is {request.lr_scaling.value!r}, not one of {', '.join(rules)}",
            why="only these rules are defined for how the learning rate follows the effective batch",
            fix="`--lr-scaling linear`, `--lr-scaling sqrt` or `--lr-scaling none`",
            where=where("--lr-scaling", request.lr_scaling),
        )
