"""The same launch at several world sizes, side by side; refuses to move the base that it compares against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddplaunch.scaling.arithmetic import compute
from ddplaunch.scaling.numbers import Numbers, NumbersRequest
from ddplaunch.values import Resolved, Source


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
