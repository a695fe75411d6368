"""Per-GPU batch, accumulation and effective batch, from whichever are given; refuses to round a batch."""

from __future__ import annotations

from collections.abc import Iterable

from ddplaunch.scaling.numbers import NumbersRequest, where
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import DEFAULT, Resolved, Source

NEIGHBOURHOOD = 4096
"""How far from the asked world size or accumulation a better one is looked for, so that the search stays instant."""


@dataclass(frozen=True)
class Batch:
    """Samples per rank and micro-batch, micro-batches per optimizer step, samples per optimizer step."""

    batch_size: Resolved[int] | None
    accum: Resolved[int] | None
    global_batch_size: Resolved[int] | None


def resolve_batch(request: NumbersRequest) -> Batch:
    """Return the batch such that global_batch_size = batch_size x accum x world_size, in samples.

    Every rank must take the same whole number of samples in each micro-batch: DDP averages gradients over
    ranks with equal weight (https://docs.pytorch.org/docs/stable/notes/ddp.html), so uneven ones would count
    some samples more than others. Accumulation is 1 unless given or implied. With neither ``batch_size`` nor
    ``global_batch_size`` only ``accum`` is passed on.

    Raises UsageError ``batch-does-not-divide`` when the effective batch does not split evenly and
    ``batch-disagrees`` when all three are given and do not multiply up.
    """
    asked, batch, accum = request.global_batch_size, request.batch_size, request.accum
    if asked is not None:
        return _from_global(request, asked)
    if batch is None:
        return Batch(None, accum, None)
    accum = accum or Resolved(1, DEFAULT)
    factors = (batch.value, accum.value, request.world_size.value)
    return Batch(batch, accum, Resolved(factors[0] * factors[1] * factors[2], _times(*factors)))


def _from_global(request: NumbersRequest, asked: Resolved[int]) -> Batch:
    batch, accum, world = request.batch_size, request.accum, request.world_size.value
    if batch is not None and accum is not None:
        product = batch.value * accum.value * world
        if product != asked.value:
            raise _disagrees(asked, batch.value, accum.value, world)
        return Batch(batch, accum, asked)
    given = batch or accum
    if given is None:
        quotient = _quotient(request, asked, world, str(world))
        return Batch(quotient, Resolved(1, DEFAULT), asked)
    quotient = _quotient(request, asked, given.value * world, f"({given.value} × {world})")
    return Batch(batch, quotient, asked) if accum is None else Batch(quotient, accum, asked)


def _quotient(request: NumbersRequest, asked: Resolved[int], unit: int, divisor: str) -> Resolved[int]:
    if asked.value % unit:
        raise _does_not_divide(request, asked, unit)
    return Resolved(asked.value // unit, Source("computed", f"{asked.value} / {divisor}"))


def _times(*factors: int) -> Source:
    return Source("computed", " × ".join(str(factor) for factor in factors))


def _disagrees(asked: Resolved[int], batch: int, accum: int, world: int) -> UsageError:
    product = batch * accum * world
    return usage(
        f"`--global-batch-size` is {asked.value}, but {batch} × {accum} × {world} is {product}",
        why="effective batch = `--batch-size` × `--accum` × world size; any two of the flags decide the third",
        fix=f"`--global-batch-size {product}`, or leave one of the three flags out",
        where=where("--global-batch-size", asked),
        code="batch-disagrees",
    )


def _does_not_divide(request: NumbersRequest, asked: Resolved[int], unit: int) -> UsageError:
    world = request.world_size.value
    share = f"{world} processes" if world > 1 else "1 process"
    if request.batch_size is not None:
        share += f" × `--batch-size {request.batch_size.value}`"
    elif request.accum is not None:
        share += f" × `--accum {request.accum.value}`"
    if unit != world:
        share += f" = {unit}"
    below = asked.value // unit * unit
    neighbours = [f"`--global-batch-size {size}`" for size in (below, below + unit) if size]
    return usage(
        f"`--global-batch-size {asked.value}` does not divide by {share}: {asked.value % unit} left over",
        why="every rank must take equally many samples per optimizer step: DDP weighs all ranks alike",
        fix="; or ".join([" or ".join(neighbours), *_other_ways(request, asked.value)]),
        where=where("--global-batch-size", asked),
        code="batch-does-not-divide",
    )


def _other_ways(request: NumbersRequest, asked: int) -> list[str]:
    """Return what else makes ``asked`` divide: another accumulation, another number of processes."""
    world, ways = request.world_size.value, []
    if request.accum is not None and asked % world == 0:
        accums = _nearest(request.accum.value, unit=world, asked=asked)
        ways += [" or ".join(f"`--accum {accum}`" for accum in accums)] if accums else []
    given = request.batch_size or request.accum
    worlds = _nearest(world, unit=given.value if given else 1, asked=asked)
    ways += [f"a world size of {' or '.join(map(str, worlds))}"] if worlds else []
    return ways


def _nearest(middle: int, *, unit: int, asked: int) -> list[int]:
    """Return the nearest numbers below and above ``middle``, within a factor of two, that divide ``asked``."""

    def first(candidates: Iterable[int]) -> list[int]:
        return next(([n] for n in candidates if asked % (n * unit) == 0), [])

    reach = min(middle, NEIGHBOURHOOD)
    down = range(middle - 1, max(middle // 2, middle - reach, 1) - 1, -1)
    return [*first(down), *first(range(middle + 1, middle + reach + 1))]
