"""What goes into the arithmetic of batch and learning rate and what comes out; refuses to calculate."""

from __future__ import annotations

from typing import Literal

from ddplaunch.frozen import dataclass
from ddplaunch.values import Resolved, Source

LrScaling = Literal["linear", "sqrt", "none"]


@dataclass(frozen=True)
class NumbersRequest:
    """What the user said about the numbers; ``None`` is "not said". Sizes are samples, lr is dimensionless.

    ``base_batch_size`` is the *effective* batch (samples per optimizer step) that ``base_lr`` was tuned for.
    """

    world_size: Resolved[int]
    batch_size: Resolved[int] | None = None
    accum: Resolved[int] | None = None
    global_batch_size: Resolved[int] | None = None
    base_lr: Resolved[float] | None = None
    base_batch_size: Resolved[int] | None = None
    lr: Resolved[float] | None = None
    lr_scaling: Resolved[LrScaling] | None = None
    lr_max_factor: Resolved[float] | None = None
    base_warmup: Resolved[int] | None = None
    dataset_size: Resolved[int] | None = None


@dataclass(frozen=True)
class Assumption:
    """Something that was taken for granted, in words, and who says so."""

    text: str
    source: Source


@dataclass(frozen=True)
class Numbers:
    """The arithmetic of one launch; a number that nobody asked for is ``None``.

    ``global_batch_size`` is per optimizer step: batch_size x accum x world_size. ``lr_factor`` is what base_lr
    and base_warmup were multiplied by. ``dropped`` and ``padded`` are samples per epoch with
    ``drop_last=True`` and with padding respectively.
    """

    world_size: Resolved[int]
    batch_size: Resolved[int] | None = None
    accum: Resolved[int] | None = None
    global_batch_size: Resolved[int] | None = None
    base_lr: Resolved[float] | None = None
    base_batch_size: Resolved[int] | None = None
    lr_scaling: Resolved[LrScaling] | None = None
    lr_factor: Resolved[float] | None = None
    lr: Resolved[float] | None = None
    base_warmup: Resolved[int] | None = None
    warmup_steps: Resolved[int] | None = None
    dataset_size: Resolved[int] | None = None
    steps_per_epoch: Resolved[int] | None = None
    dropped: Resolved[int] | None = None
    padded: Resolved[int] | None = None
    assumptions: tuple[Assumption, ...] = ()
