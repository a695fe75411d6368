"""The numbers family."""

from __future__ import annotations

from typing import Any

import pytest

from ddplaunch.checks.script import CHECKS
from ddplaunch.launch.launch import Launch
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.values.resolved import Resolved
from tests.checks.healthy import FLAG, healthy_launch
from tests.checks.outcome_of import found, silent_when_healthy


def launch(**numbers: Any) -> Launch:
    resolved: dict[str, Any] = {name: Resolved(value, FLAG) for name, value in numbers.items()}
    return healthy_launch(8, numbers=Numbers(world_size=Resolved(8, FLAG), **resolved))


def test_healthy() -> None:
    silent_when_healthy(CHECKS)


def test_dataset_smaller_than_batch() -> None:
    finding = found(CHECKS, "dataset-smaller-than-batch", launch=launch(dataset_size=100, global_batch_size=256))
    assert finding and finding.what == "the dataset has 100 samples, one effective batch 256"
    assert "`--batch-size 12 --accum 1` makes one step of 96 samples" in finding.fix
    tiny = found(CHECKS, "dataset-smaller-than-batch", launch=launch(dataset_size=3, global_batch_size=256))
    assert tiny and "at most 3 processes" in tiny.fix


@pytest.mark.parametrize(
    "numbers", [{"dataset_size": 256, "global_batch_size": 256}, {"dataset_size": 1}, {"global_batch_size": 256}]
)
def test_dataset_large_enough_or_unknown(numbers: dict[str, int]) -> None:
    assert found(CHECKS, "dataset-smaller-than-batch", launch=launch(**numbers)) is None


LARGE = {"lr": 0.8, "base_lr": 0.1, "lr_factor": 8.0, "lr_scaling": "linear"}


def test_lr_factor_large() -> None:
    finding = found(CHECKS, "lr-factor-large", launch=launch(**LARGE))
    assert finding and finding.what == "the learning rate is 8 times the base one, 0.8, with no warmup"


@pytest.mark.parametrize(
    "change", [{"lr_factor": 4.0}, {"lr_scaling": "sqrt"}, {"base_warmup": 500}], ids=lambda change: next(iter(change))
)
def test_lr_factor_with_a_remedy(change: dict[str, Any]) -> None:
    assert found(CHECKS, "lr-factor-large", launch=launch(**{**LARGE, **change})) is None


def test_lr_that_is_final_is_not_judged() -> None:
    assert found(CHECKS, "lr-factor-large", launch=launch(lr=0.8)) is None
