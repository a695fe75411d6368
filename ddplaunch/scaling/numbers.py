"""The numbers of a launch as the user gave them and as they are resolved, with their ranges and formats."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from ddplaunch.values.finding import Finding, UsageError, error
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source

T = TypeVar("T")
_LARGEST_COUNT = 2**63 - 1  # torch keeps sizes in signed 64-bit integers


@dataclass(frozen=True)
class NumbersRequest:
    """The numbers that the user gave; ``None`` means "not given". Sizes are in samples, lr is dimensionless.

    ``base_batch_size`` is the *effective* batch (samples per optimizer step) that ``base_lr`` was tuned for.
    """

    world_size: Resolved[int]
    batch_size: Resolved[int] | None = None
    accum: Resolved[int] | None = None
    global_batch_size: Resolved[int] | None = None
    base_lr: Resolved[float] | None = None
    base_batch_size: Resolved[int] | None = None
    lr: Resolved[float] | None = None
    lr_scaling: Resolved[str] | None = None
    lr_max_factor: Resolved[float] | None = None
    base_warmup: Resolved[int] | None = None
    warmup: Resolved[int] | None = None
    dataset_size: Resolved[int] | None = None


@dataclass(frozen=True)
class Assumption:
    """An assumption of the arithmetic, in words, and its source."""

    text: str
    source: Source


@dataclass(frozen=True)
class Numbers:
    """The resolved numbers of one launch; ``None`` means neither given nor computed.

    ``global_batch_size`` is per optimizer step: batch_size x accum x world_size. ``lr_factor`` multiplies base_lr
    and base_warmup. ``dropped`` is samples lost per epoch with ``drop_last=True``, ``padded`` samples repeated without.
    """

    world_size: Resolved[int]
    batch_size: Resolved[int] | None = None
    accum: Resolved[int] | None = None
    global_batch_size: Resolved[int] | None = None
    base_lr: Resolved[float] | None = None
    base_batch_size: Resolved[int] | None = None
    lr_scaling: Resolved[str] | None = None
    lr_factor: Resolved[float] | None = None
    lr: Resolved[float] | None = None
    base_warmup: Resolved[int] | None = None
    warmup_steps: Resolved[int] | None = None
    dataset_size: Resolved[int] | None = None
    steps_per_epoch: Resolved[int] | None = None
    dropped: Resolved[int] | None = None
    padded: Resolved[int] | None = None
    assumptions: tuple[Assumption, ...] = ()


def computed(value: T, formula: str) -> Resolved[T]:
    """Return ``value`` with ``formula`` as its source."""
    return Resolved(value, Source("computed", formula))


def round_significant(x: float) -> float:
    """Return ``x`` rounded to 12 significant digits.

    Nobody tunes a learning rate to more digits, and errors of a double only show from the 15th on: 0.0004, not
    0.00039999999999999996.
    """
    return float(f"{x:.12g}")


def round_half_up(x: float) -> int:
    """Return ``x`` >= 0 rounded to the nearest whole number, halves up (Python's ``round`` takes halves to even)."""
    return math.floor(round_significant(x) + 0.5)


def format_lr(x: float) -> str:
    """Return the shortest text that ``float()`` reads back as exactly ``x``: ``0.0004``, ``1e-05``, ``2``."""
    return repr(float(x)).removesuffix(".0")


def format_factor(x: float) -> str:
    """Return ``x`` with six significant digits, for formulas shown to people: ``2.82843``."""
    return f"{x:.6g}"


def where(flag: str, resolved: Resolved[Any]) -> str:
    """Return a value's ``Finding.where``: the flag as typed, or the flag and the source of its value."""
    return resolved.source.detail or flag if resolved.source.kind == "flag" else f"{flag} ({resolved.source})"


#: The smallest allowed value of each count; 0 warmup steps means no warmup, as in Hugging Face's default.
_LEAST = {
    **dict.fromkeys(("world_size", "batch_size", "accum", "global_batch_size", "base_batch_size", "dataset_size"), 1),
    **dict.fromkeys(("base_warmup", "warmup"), 0),
}


def refuse_impossible(request: NumbersRequest) -> None:
    """Raise one UsageError with a finding for every number that is out of range."""
    findings = []
    for name, least in _LEAST.items():
        count = getattr(request, name)
        if count is not None and not least <= count.value <= _LARGEST_COUNT:
            flag = where("NPROC", count) if name == "world_size" else _flag(name)
            allowed = f"a whole number from {least} to 2^63 - 1"
            findings.append(_out_of_range(flag, count, str(count.value), allowed))
    rates = [(_flag(name), getattr(request, name)) for name in ("lr", "base_lr", "lr_max_factor")]
    for flag, rate in rates:
        if rate is not None and not (math.isfinite(rate.value) and rate.value > 0):
            findings.append(_out_of_range(flag, rate, format_lr(rate.value), "a finite number above 0"))
    if findings:
        raise UsageError(*findings)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _out_of_range(flag: str, number: Resolved[Any], text: str, allowed: str) -> Finding:
    return error(
        "number-out-of-range",
        f"`{flag}` is {text}, not {allowed}",
        why="the batch or the rate that follows from it would be zero, negative, infinite, or too large for torch",
        fix=f"give {allowed}",
        where=where(flag, number),
    )
