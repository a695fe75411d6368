"""Steps per epoch, dropped and padded samples, held against a count by hand and against torch itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplaunch.scaling.compute import compute
from ddplaunch.values.resolved import Resolved, Source
from tests.scaling.test_learning_rate import ask, refused, texts, value


def numbers_of(size: int, world: int, batch: int, accum: int) -> tuple[int, int, int]:
    numbers = compute(ask(world, batch_size=batch, accum=accum, dataset_size=size))
    return value(numbers.steps_per_epoch), value(numbers.dropped), value(numbers.padded)


def test_formulas_carry_the_real_numbers() -> None:
    numbers = compute(ask(4, batch_size=4, dataset_size=5602))
    assert numbers.steps_per_epoch == Resolved(351, Source("computed", "ceil(5602 / 16)"))
    assert numbers.dropped == Resolved(2, Source("computed", "5602 - 350 × 16"))
    assert numbers.padded == Resolved(2, Source("computed", "1401 × 4 - 5602"))
    assert "with drop_last=True an epoch has 350" in texts(numbers)


@pytest.mark.parametrize(
    ("gpus", "batch", "size", "steps", "dropped", "padded"),
    [(1, 4, 5602, 1401, 2, 0), (4, 4, 5602, 351, 2, 2), (3, 64, 80_000, 417, 128, 1)],
)
def test_the_guides_data_sets(gpus: int, batch: int, size: int, steps: int, dropped: int, padded: int) -> None:
    """5602 images on 4 GPUs are 1401 for each, where the guide rounds 1400.5 down."""
    assert numbers_of(size, gpus, batch, 1) == (steps, dropped, padded)


def test_a_data_set_below_the_effective_batch_is_one_incomplete_step() -> None:
    numbers = compute(ask(4, batch_size=4, dataset_size=10))
    assert (value(numbers.steps_per_epoch), value(numbers.dropped), value(numbers.padded)) == (1, 10, 2)
    assert "10 samples is smaller than the effective batch of 16" in texts(numbers)
    assert numbers_of(64, 4, 4, 2) == (2, 0, 0)
    assert "smaller than" not in texts(compute(ask(4, batch_size=4, dataset_size=16)))


def test_a_data_set_below_the_world_size_is_refused() -> None:
    text = refused(ask(4, batch_size=1, dataset_size=3), "dataset-smaller-than-world")
    assert "`--dataset-size 3` is smaller than the world size 4" in text
    assert "at most 3 processes" in text
    assert numbers_of(4, 4, 1, 1) == (1, 0, 0)


def test_steps_need_a_batch() -> None:
    assert "--batch-size 8" in refused(ask(4, dataset_size=100), "batch-unknown")


def by_hand(size: int, world: int, batch: int, accum: int) -> tuple[int, int, int]:
    """Deal samples out one by one, as rank 0 sees it, instead of dividing."""
    padded = 0
    while (size + padded) % world:
        padded += 1
    steps = micro_batches = in_batch = kept = whole = 0
    for sample in range(0, size + padded, world):
        if in_batch == 0:
            micro_batches += 1
            steps += (micro_batches - 1) % accum == 0
        in_batch = (in_batch + 1) % batch
        if sample + world <= size:
            whole += 1
            kept = whole * world if whole % (batch * accum) == 0 else kept
    return steps, size - kept, padded


cases = {
    "world": st.integers(1, 9),
    "batch": st.integers(1, 7),
    "accum": st.integers(1, 5),
    "more": st.integers(0, 300),
}


@given(**cases)
def test_epoch_agrees_with_dealing_samples_out(world: int, batch: int, accum: int, more: int) -> None:
    size = world + more
    assert numbers_of(size, world, batch, accum) == by_hand(size, world, batch, accum)


@pytest.mark.slow
@settings(max_examples=60)
@given(**cases)
def test_epoch_agrees_with_torchs_sampler_and_loader(world: int, batch: int, accum: int, more: int) -> None:
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    size = world + more
    data = list(range(size))

    def epoch(rank: int, drop_last: bool) -> list[list[int]]:
        sampler: DistributedSampler[int] = DistributedSampler(data, world, rank, drop_last=drop_last)  # type: ignore[arg-type]
        loader: DataLoader[int] = DataLoader(data, batch, sampler=sampler, drop_last=drop_last)  # type: ignore[arg-type]
        return [micro_batch.tolist() for micro_batch in loader]

    steps, dropped, padded = numbers_of(size, world, batch, accum)
    seen = 0
    for rank in range(world):
        micro_batches = epoch(rank, drop_last=False)
        assert len(range(0, len(micro_batches), accum)) == steps
        seen += sum(map(len, micro_batches))
    assert seen - size == padded

    trained: set[int] = set()
    for rank in range(world):
        micro_batches = epoch(rank, drop_last=True)
        whole_steps = len(micro_batches) // accum
        assert whole_steps == size // (batch * accum * world)
        trained.update(sample for micro_batch in micro_batches[: whole_steps * accum] for sample in micro_batch)
    assert size - len(trained) == dropped
