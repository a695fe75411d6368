"""The worked examples of five public training guides, each by name; where a guide rounds or errs, the name says so.

The numbers are the guides' own: UniRef50, Crowd-BT, retriever distillation, underwater images, QuantumGrav.
"""

from __future__ import annotations

from typing import Any

import pytest

from ddplaunch.scaling.compute import compute
from tests.scaling.test_learning_rate import ask, value


def effective(world_size: int, **said: Any) -> int:
    """Return the effective batch in samples."""
    batch: int = value(compute(ask(world_size, **said)).global_batch_size)
    return batch


def lr(world_size: int, **said: Any) -> float:
    """Return the learning rate, which has to be the literal to the last bit."""
    rate: float = value(compute(ask(world_size, **said)).lr)
    return rate


def warmup(world_size: int, **said: Any) -> int:
    """Return the warmup in optimizer steps."""
    steps: int = value(compute(ask(world_size, **said)).warmup_steps)
    return steps


# UniRef50: tuned on one GPU with 16 × 4 = 64 samples per step, lr 5e-5, 5000 warmup steps

UNIREF50 = {"batch_size": 16, "accum": 4, "base_lr": 5e-5, "base_warmup": 5000}


@pytest.mark.parametrize(
    ("gpus", "batch", "rate", "steps"),
    [(1, 64, 5e-5, 5000), (2, 128, 1e-4, 10000), (4, 256, 2e-4, 20000), (8, 512, 4e-4, 40000)],
)
def test_uniref50_linear_table(gpus: int, batch: int, rate: float, steps: int) -> None:
    assert (effective(gpus, **UNIREF50), lr(gpus, **UNIREF50), warmup(gpus, **UNIREF50)) == (batch, rate, steps)


def test_uniref50_linear_table_side_by_side() -> None:
    columns = [compute(ask(size, **UNIREF50)) for size in (1, 2, 4, 8)]
    assert [value(c.global_batch_size) for c in columns] == [64, 128, 256, 512]
    assert [value(c.lr) for c in columns] == [5e-5, 1e-4, 2e-4, 4e-4]
    assert [value(c.warmup_steps) for c in columns] == [5000, 10000, 20000, 40000]


def test_uniref50_8_gpu_config_with_batch_12_is_factor_6_of_base_64() -> None:
    numbers = compute(ask(8, **UNIREF50 | {"batch_size": 12}, base_batch_size=64))
    assert value(numbers.global_batch_size) == 384
    assert value(numbers.lr_factor) == 6
    assert value(numbers.lr) == 3e-4
    assert value(numbers.warmup_steps) == 30000


@pytest.mark.parametrize(
    ("gpus", "rate", "steps"),
    [(2, 7.07106781187e-05, 7071), (4, 1e-4, 10000), (8, 0.000141421356237, 14142)],
)
def test_uniref50_square_root_scaling_of_lr_and_warmup(gpus: int, rate: float, steps: int) -> None:
    assert lr(gpus, **UNIREF50, lr_scaling="sqrt") == rate
    assert warmup(gpus, **UNIREF50, lr_scaling="sqrt") == steps


@pytest.mark.parametrize(("gpus", "rate"), [(1, 5e-5), (2, 1e-4), (4, 2e-4), (8, 2e-4), (16, 2e-4)])
def test_uniref50_conservative_scaling_is_min_of_num_gpus_and_4(gpus: int, rate: float) -> None:
    assert lr(gpus, **UNIREF50, lr_max_factor=4.0) == rate


def test_uniref50_unscaled() -> None:
    assert lr(8, **UNIREF50, lr_scaling="none") == 5e-5
    assert warmup(8, **UNIREF50, lr_scaling="none") == 5000


def test_uniref50_convergence_advice_1e_4_instead_of_2e_4_on_4_gpus_is_factor_2_by_root_or_cap() -> None:
    assert lr(4, **UNIREF50) == 2e-4
    assert lr(4, **UNIREF50, lr_scaling="sqrt") == 1e-4
    assert lr(4, **UNIREF50, lr_max_factor=2.0) == 1e-4


def test_uniref50_convergence_advice_longer_warmup_of_25000_follows_no_rule_so_both_are_given_as_final() -> None:
    said = {"batch_size": 16, "accum": 4, "lr": 1e-4, "base_warmup": 25000, "lr_scaling": "none"}
    assert (lr(4, **said), warmup(4, **said)) == (1e-4, 25000)


def test_uniref50_out_of_memory_advice_of_batch_8_halves_the_effective_batch() -> None:
    assert effective(4, batch_size=8, accum=4) == 128


def test_uniref50_slurm_2_nodes_of_4_equal_8_gpus() -> None:
    assert (effective(2 * 4, **UNIREF50), lr(2 * 4, **UNIREF50)) == (512, 4e-4)


# Crowd-BT: tuned on one GPU with batch 16, lr 1e-4


def test_crowd_bt_effective_batch_of_16_on_4_gpus_is_64() -> None:
    assert effective(4, batch_size=16) == 64


def test_crowd_bt_worked_example_1e_4_times_64_over_16_is_4e_4() -> None:
    numbers = compute(ask(4, batch_size=16, base_lr=1e-4, base_batch_size=16))
    assert value(numbers.lr) == 4e-4
    assert numbers.lr_factor is not None and numbers.lr_factor.source.detail == "linear: 64 / 16"
    assert lr(4, batch_size=16, base_lr=1e-4) == 4e-4


@pytest.mark.parametrize(
    ("name", "gpus", "batch", "rate"),
    [("small", 2, 32, 2e-4), ("large", 4, 8, 4e-4), ("full", 8, 16, 8e-4)],
)
def test_crowd_bt_example_configurations_scale_by_gpus_whatever_the_per_gpu_batch(
    name: str, gpus: int, batch: int, rate: float
) -> None:
    assert lr(gpus, batch_size=batch, base_lr=1e-4) == rate, name


def test_crowd_bt_small_and_large_configurations_differ_from_its_own_formula_with_base_16() -> None:
    assert lr(2, batch_size=32, base_lr=1e-4, base_batch_size=16) == 4e-4  # the guide has 2e-4
    assert lr(4, batch_size=8, base_lr=1e-4, base_batch_size=16) == 2e-4  # the guide has 4e-4
    assert lr(8, batch_size=16, base_lr=1e-4, base_batch_size=16) == 8e-4  # as in the guide


def test_crowd_bt_quick_start_lr_5e_5_is_final() -> None:
    assert lr(2, lr=5e-5) == 5e-5


# Retriever distillation: tuned on one GPU with batch 64, lr 2e-5


def test_retriever_effective_batch_of_64_on_8_gpus_is_512() -> None:
    assert effective(8, batch_size=64) == 512


def test_retriever_lr_4e_5_on_8_gpus_is_neither_linear_nor_square_root_but_a_factor_capped_at_2() -> None:
    said = {"batch_size": 64, "base_lr": 2e-5}
    assert lr(8, **said, lr_max_factor=2.0) == 4e-5
    assert lr(8, **said) == 1.6e-4
    assert lr(8, **said, lr_scaling="sqrt") == 5.65685424949e-05


def test_retriever_best_practice_2x_gpus_2x_lr() -> None:
    assert lr(2, batch_size=64, base_lr=2e-5) == 4e-5
    assert lr(2, batch_size=64, base_lr=5e-6) == 1e-5


@pytest.mark.parametrize(("gpus", "batch", "whole"), [(4, 128, 512), (8, 32, 256)])
def test_retriever_other_batches(gpus: int, batch: int, whole: int) -> None:
    assert effective(gpus, batch_size=batch) == whole


# Underwater images: 5602 images, 256 px


@pytest.mark.parametrize(("gpus", "batch", "total"), [(4, 4, 16), (4, 8, 32), (4, 16, 64), (2, 16, 32)])
def test_underwater_total_batch_table(gpus: int, batch: int, total: int) -> None:
    assert effective(gpus, batch_size=batch) == total


@pytest.mark.parametrize(("gpus", "steps"), [(1, 1400), (2, 700), (4, 350)])
def test_underwater_steps_per_epoch_of_the_guide_are_those_of_drop_last_and_torchs_default_has_one_more(
    gpus: int, steps: int
) -> None:
    numbers = compute(ask(gpus, batch_size=4, dataset_size=5602))
    assert value(numbers.dropped) == 2
    assert (5602 - value(numbers.dropped)) // value(numbers.global_batch_size) == steps
    assert value(numbers.steps_per_epoch) == steps + 1


@pytest.mark.parametrize(
    ("gpus", "padded", "images_per_gpu"),
    [(1, 0, 5602), (2, 0, 2801), (4, 2, 1401)],  # the guide rounds 1400.5 down to 1400
)
def test_underwater_images_per_gpu_with_torchs_padding(gpus: int, padded: int, images_per_gpu: int) -> None:
    numbers = compute(ask(gpus, batch_size=4, dataset_size=5602))
    assert value(numbers.padded) == padded
    assert (5602 + padded) / gpus == images_per_gpu


def test_underwater_same_total_batch_of_16_on_1_and_4_gpus() -> None:
    columns = [compute(ask(size, global_batch_size=16)) for size in (1, 4)]
    assert [value(c.batch_size) for c in columns] == [16, 4]


# QuantumGrav: batch 64 per GPU on GPUs 3, 4 and 5, lr 0.001, drop_last, 80,000 training samples in its log


def test_quantumgrav_total_batch_of_64_on_3_gpus_is_192() -> None:
    assert effective(3, batch_size=64) == 192


def test_quantumgrav_lr_of_the_config_is_final() -> None:
    assert lr(3, batch_size=64, lr=0.001) == 0.001


def test_quantumgrav_80000_samples_with_drop_last_are_416_steps_and_128_dropped() -> None:
    numbers = compute(ask(3, batch_size=64, dataset_size=80_000))
    assert value(numbers.dropped) == 128
    assert (80_000 - 128) // 192 == 416
    assert value(numbers.steps_per_epoch) == 417
