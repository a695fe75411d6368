"""Steps per epoch, dropped and padded samples, held against torch itself."""

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
    ("gpus", "batch", "accum", "size", "expected"),
    [
        (1, 4, 1, 5602, (1401, 2, 0)),
        (4, 4, 2, 64, (2, 0, 0)),
        (2, 3, 2, 13, (2, 1, 1)),
        (9, 7, 5, 309, (1, 309, 6)),
        (3, 2, 4, 50, (3, 2, 1)),
    ],
)
def test_data_sets(gpus: int, batch: int, accum: int, size: int, expected: tuple[int, int, int]) -> None:
    assert numbers_of(size, gpus, batch, accum) == expected


def test_a_data_set_below_the_effective_batch_is_one_incomplete_step() -> None:
    numbers = compute(ask(4, batch_size=4, dataset_size=10))
    assert "10 samples is smaller than the effective batch of 16" in texts(numbers)
    assert "smaller than" not in texts(compute(ask(4, batch_size=4, dataset_size=16)))


def test_a_data_set_below_the_world_size_is_refused() -> None:
    text = refused(ask(4, batch_size=1, dataset_size=3), "dataset-smaller-than-world")
    assert "`--dataset-size 3` is smaller than the world size 4" in text
    assert "at most 3 processes" in text


def test_steps_need_a_batch() -> None:
    assert "--batch-size 8" in refused(ask(4, dataset_size=100), "batch-unknown")


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(1, 9), st.integers(1, 7), st.integers(1, 5), st.integers(0, 300))
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
