"""The worked examples of five public training guides, each by name; where a guide rounds or errs, the name says so.

The numbers are the guides' own: UniRef50, Crowd-BT, retriever distillation, underwater images, QuantumGrav.
"""

from __future__ import annotations

from typing import Any

import pytest

from ddplaunch.scaling.compute import compute
from tests.scaling.test_learning_rate import ask, value

# Tuned on one GPU: with 16 × 4 = 64 samples per step; with batch 16; with batch 64.
UNIREF50 = {"batch_size": 16, "accum": 4, "base_lr": 5e-5, "base_warmup": 5000}
CROWD_BT = {"batch_size": 16, "base_lr": 1e-4}
RETRIEVER = {"batch_size": 64, "base_lr": 2e-5}
# 5602 images; 64 samples on each of 3 GPUs, 80,000 samples in the log.
UNDERWATER = {"batch_size": 4, "dataset_size": 5602}
QUANTUMGRAV = {"batch_size": 64, "dataset_size": 80_000}
SQRT, NONE = {"lr_scaling": "sqrt"}, {"lr_scaling": "none"}
FORMULA = {"base_batch_size": 16}


@pytest.mark.parametrize(
    ("guide", "gpus", "said", "batch", "rate", "steps"),
    [
        ("uniref50 linear table", 1, UNIREF50, 64, 5e-5, 5000),
        ("uniref50 linear table", 2, UNIREF50, 128, 1e-4, 10000),
        ("uniref50 linear table", 4, UNIREF50, 256, 2e-4, 20000),
        ("uniref50 linear table, also 2 nodes of 4", 8, UNIREF50, 512, 4e-4, 40000),
        ("uniref50 batch 12 of base 64", 8, UNIREF50 | {"batch_size": 12, "base_batch_size": 64}, 384, 3e-4, 30000),
        ("uniref50 square root", 2, UNIREF50 | SQRT, 128, 7.07106781187e-05, 7071),
        ("uniref50 square root, its advice of 1e-4 on 4", 4, UNIREF50 | SQRT, 256, 1e-4, 10000),
        ("uniref50 square root", 8, UNIREF50 | SQRT, 512, 0.000141421356237, 14142),
        ("uniref50 min(GPUs, 4)", 2, UNIREF50 | {"lr_max_factor": 4.0}, 128, 1e-4, 10000),
        ("uniref50 min(GPUs, 4)", 16, UNIREF50 | {"lr_max_factor": 4.0}, 1024, 2e-4, 20000),
        ("uniref50 advice of 1e-4 on 4, by a cap", 4, UNIREF50 | {"lr_max_factor": 2.0}, 256, 1e-4, 10000),
        ("uniref50 unscaled", 8, UNIREF50 | NONE, 512, 5e-5, 5000),
        (
            "uniref50 longer warmup follows no rule: both are final",
            4,
            {"batch_size": 16, "accum": 4, "lr": 1e-4, "base_warmup": 25000} | NONE,
            256,
            1e-4,
            25000,
        ),
        ("uniref50 out of memory", 4, {"batch_size": 8, "accum": 4}, 128, None, None),
        ("crowd-bt worked example", 4, CROWD_BT | FORMULA, 64, 4e-4, None),
        ("crowd-bt small, by the GPUs whatever the batch", 2, CROWD_BT | {"batch_size": 32}, 64, 2e-4, None),
        ("crowd-bt large, by the GPUs whatever the batch", 4, CROWD_BT | {"batch_size": 8}, 32, 4e-4, None),
        ("crowd-bt full", 8, CROWD_BT | FORMULA, 128, 8e-4, None),
        ("crowd-bt small by its formula; it has 2e-4", 2, CROWD_BT | FORMULA | {"batch_size": 32}, 64, 4e-4, None),
        ("crowd-bt large by its formula; it has 4e-4", 4, CROWD_BT | FORMULA | {"batch_size": 8}, 32, 2e-4, None),
        ("crowd-bt quick start is final", 2, {"lr": 5e-5}, None, 5e-5, None),
        ("retriever, 4e-5 by no rule but a cap", 8, RETRIEVER | {"lr_max_factor": 2.0}, 512, 4e-5, None),
        ("retriever linear", 8, RETRIEVER, 512, 1.6e-4, None),
        ("retriever square root", 8, RETRIEVER | SQRT, 512, 5.65685424949e-05, None),
        ("retriever 2x GPUs 2x lr", 2, RETRIEVER | {"base_lr": 5e-6}, 128, 1e-5, None),
        ("underwater table", 4, {"batch_size": 16}, 64, None, None),
        ("quantumgrav config is final", 3, {"batch_size": 64, "lr": 0.001}, 192, 0.001, None),
    ],
)
def test_worked_examples(
    guide: str, gpus: int, said: dict[str, Any], batch: int | None, rate: float | None, steps: int | None
) -> None:
    """The rate is the literal to the last bit."""
    numbers = compute(ask(gpus, **said))
    found = (numbers.global_batch_size, numbers.lr, numbers.warmup_steps)
    assert tuple(each and each.value for each in found) == (batch, rate, steps), guide


@pytest.mark.parametrize(
    ("gpus", "said", "steps", "dropped", "padded"),
    [
        (1, UNDERWATER, 1400, 2, 0),
        (2, UNDERWATER, 700, 2, 0),
        (4, UNDERWATER, 350, 2, 2),  # 1401 images per GPU; the guide rounds 1400.5 down
        (3, QUANTUMGRAV, 416, 128, 1),
    ],
)
def test_steps_of_the_guides_are_those_of_drop_last_and_torchs_default_has_one_more(
    gpus: int, said: dict[str, int], steps: int, dropped: int, padded: int
) -> None:
    numbers = compute(ask(gpus, **said))
    assert (value(numbers.dropped), value(numbers.padded)) == (dropped, padded)
    assert (said["dataset_size"] - dropped) // value(numbers.global_batch_size) == steps
    assert value(numbers.steps_per_epoch) == steps + 1


def test_underwater_same_total_batch_of_16_on_1_and_4_gpus() -> None:
    columns = [compute(ask(size, global_batch_size=16)) for size in (1, 4)]
    assert [value(c.batch_size) for c in columns] == [16, 4]
