"""Batch, epoch, learning rate and warmup: each from the others, where it says it comes from, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplaunch.scaling.compute import compute
from ddplaunch.scaling.numbers import Numbers, NumbersRequest, format_lr, round_half_up
from ddplaunch.values.finding import ExitStatus, UsageError
from ddplaunch.values.resolved import DEFAULT, Resolved, Source

counts = st.integers(1, 5000)


def ask(world_size: int, **said: Any) -> NumbersRequest:
    """Return the request of somebody who typed every one of ``said`` as a flag."""
    flags: dict[str, Any] = {
        name: Resolved(value, Source("flag", "--" + name.replace("_", "-"))) for name, value in said.items()
    }
    return NumbersRequest(Resolved(world_size, Source("flag", "NPROC")), **flags)


def value(resolved: Resolved[Any] | None) -> Any:
    assert resolved is not None
    return resolved.value


def refused(request: NumbersRequest, code: str) -> str:
    """Return the only finding's what, why and fix as one text."""
    with pytest.raises(UsageError) as caught:
        compute(request)
    assert caught.value.status == ExitStatus.USAGE
    (finding,) = caught.value.findings
    assert finding.code == code
    assert "\n" not in finding.what
    return f"{finding.what} | {finding.why} | {finding.fix}"


def texts(numbers: Numbers) -> str:
    return " | ".join(f"{assumption.text} [{assumption.source}]" for assumption in numbers.assumptions)


# The effective batch, the batch of a GPU and accumulation


def test_nothing_said_gives_nothing_but_the_world_size() -> None:
    request = ask(4)
    assert compute(request) == Numbers(world_size=request.world_size)
    alone = compute(ask(4, accum=2))
    assert value(alone.accum) == 2 and alone.global_batch_size is None
    assert compute(ask(2, batch_size=8)).accum == compute(ask(2, global_batch_size=8)).accum == Resolved(1, DEFAULT)


@pytest.mark.parametrize(
    ("said", "batch", "accum", "formula"),
    [
        ({}, 16, 1, "64 / 4"),
        ({"batch_size": 8}, 8, 2, "64 / (8 × 4)"),
        ({"accum": 8}, 2, 8, "64 / (8 × 4)"),
        ({"batch_size": 4, "accum": 4}, 4, 4, None),
    ],
)
def test_global_batch_finds_what_was_not_said(
    said: dict[str, int], batch: int, accum: int, formula: str | None
) -> None:
    request = ask(4, global_batch_size=64, **said)
    numbers = compute(request)
    assert (value(numbers.batch_size), value(numbers.accum)) == (batch, accum)
    assert numbers.global_batch_size == request.global_batch_size
    computed = [r.source.detail for r in (numbers.batch_size, numbers.accum) if r and r.source.kind == "computed"]
    assert computed == ([formula] if formula else [])


@pytest.mark.parametrize(
    ("world", "said", "named", "not_named"),
    [
        (3, {"global_batch_size": 16}, ["`--global-batch-size 15` or `--global-batch-size 18`"], []),
        (
            6,
            {"global_batch_size": 100, "batch_size": 4},
            ["96`", "120`", "6 processes × `--batch-size 4` = 24"],
            ["--accum"],
        ),
        (4, {"global_batch_size": 20, "accum": 2}, ["16`", "24`", "× `--accum 2` = 8"], []),
        (4, {"global_batch_size": 3}, ["`--global-batch-size 4`"], ["size 0"]),
        (1, {"global_batch_size": 5, "batch_size": 3}, ["1 process ", "3`", "6`"], ["processes", "world size"]),
    ],
)
def test_a_batch_that_does_not_divide_names_what_does(
    world: int, said: dict[str, int], named: list[str], not_named: list[str]
) -> None:
    text = refused(ask(world, **said), "batch-does-not-divide")
    assert [words for words in named if words not in text] == []
    assert [words for words in not_named if words in text] == []


# Steps per epoch, dropped and padded samples, held against torch itself


def numbers_of(size: int, world: int, batch: int, accum: int) -> tuple[int, int, int]:
    numbers = compute(ask(world, batch_size=batch, accum=accum, dataset_size=size))
    return value(numbers.steps_per_epoch), value(numbers.dropped), value(numbers.padded)


def test_formulas_carry_the_real_numbers() -> None:
    assert numbers_of(309, 9, 7, 5) == (1, 309, 6)
    numbers = compute(ask(4, batch_size=4, dataset_size=5602))
    assert numbers.steps_per_epoch == Resolved(351, Source("computed", "ceil(5602 / 16)"))
    assert numbers.dropped == Resolved(2, Source("computed", "5602 - 350 × 16"))
    assert numbers.padded == Resolved(2, Source("computed", "1401 × 4 - 5602"))
    assert "with drop_last=True an epoch has 350" in texts(numbers)
    numbers = compute(ask(4, batch_size=4, dataset_size=10))
    assert "10 samples is smaller than the effective batch of 16" in texts(numbers)
    assert "smaller than" not in texts(compute(ask(4, batch_size=4, dataset_size=16)))


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


# Learning rate and warmup


@pytest.mark.parametrize(
    ("said", "factor", "detail"),
    [
        ({}, 8, "linear: 512 / 64"),
        ({"base_batch_size": 256}, 2, "linear: 512 / 256"),
        ({"lr_scaling": "sqrt"}, math.sqrt(8), "sqrt(512 / 64)"),
        ({"lr_scaling": "none"}, 1, "none"),
        ({"lr_max_factor": 4.0}, 4, "linear: 512 / 64 = 8, capped at 4"),
        ({"lr_max_factor": 4.0, "lr_scaling": "sqrt"}, math.sqrt(8), "sqrt(512 / 64) within the cap of 4"),
    ],
)
def test_factor(said: dict[str, Any], factor: float, detail: str) -> None:
    numbers = compute(ask(8, batch_size=16, accum=4, base_lr=5e-5, base_warmup=5000, **said))
    assert numbers.lr_factor == Resolved(factor, Source("computed", detail))
    assert isinstance(value(numbers.lr_factor), float)
    assert value(numbers.lr) == pytest.approx(5e-5 * factor, rel=1e-11)
    assert value(numbers.warmup_steps) == round_half_up(5000 * factor)


def test_computed_values_show_the_numbers_they_came_from() -> None:
    numbers = compute(ask(8, batch_size=16, base_lr=1e-4, base_warmup=500))
    assert str(value(numbers.lr)) == "0.0008"
    assert numbers.lr is not None and numbers.lr.source == Source("computed", "0.0001 × 8")
    assert numbers.warmup_steps == Resolved(4000, Source("computed", "500 × 8"))
    assert numbers.base_batch_size == Resolved(16, Source("computed", "16 × 1 × 1"))
    effective = compute(ask(8, batch_size=16, accum=4)).global_batch_size
    assert effective == Resolved(512, Source("computed", "16 × 4 × 8"))


@pytest.mark.parametrize(
    ("world", "said", "factor", "warmup", "assumes"),
    [
        (4, {"base_lr": 1e-4}, 4.0, None, "base_lr was tuned for one rank with the batch that the script uses"),
        (4, {"batch_size": 8, "accum": 2, "base_lr": 1e-4}, 4.0, None, "one rank with 16 samples per optimizer step"),
        (4, {"batch_size": 8, "base_lr": 1e-4}, 4.0, None, "Goyal et al. 2017"),
        (4, {"batch_size": 8, "base_lr": 1e-4}, 4.0, None, "for Adam-like optimizers `--lr-scaling sqrt` is usual"),
        (1, {"batch_size": 8, "base_lr": 1e-4}, 1.0, None, ""),  # nothing is scaled
        (4, {"batch_size": 8, "base_lr": 1e-4, "base_batch_size": 32, "lr_scaling": "linear"}, 1.0, None, ""),
        (4, {"batch_size": 8, "lr": 3e-4, "base_warmup": 100}, None, 100, ""),  # not scaled beside a final rate
        (4, {"batch_size": 8, "lr": 3e-4, "base_warmup": 100, "lr_scaling": "linear"}, 4.0, 400, "base_warm"),
        (4, {"batch_size": 8, "base_lr": 1e-4, "warmup": 100}, 4.0, 100, "base_lr was tuned"),
        (4, {"warmup": 0}, None, 0, ""),
        (1, {"batch_size": 5, "base_batch_size": 2, "base_warmup": 5}, 2.5, 13, "base_warmup scaled"),  # 12.5: up
        (8, {"base_warmup": 0}, 8.0, 0, "base_warmup was tuned"),
        (4, {"base_warmup": 100, "lr_scaling": "sqrt"}, 2.0, 200, "base_warmup was tuned"),
    ],
)
def test_what_is_scaled_and_assumed(
    world: int, said: dict[str, Any], factor: float | None, warmup: int | None, assumes: str
) -> None:
    numbers = compute(ask(world, **said))
    assert (numbers.lr_factor and numbers.lr_factor.value) == factor
    assert (numbers.warmup_steps and numbers.warmup_steps.value) == warmup
    assert assumes in texts(numbers) and bool(numbers.assumptions) == bool(assumes), texts(numbers)
    assert (numbers.base_warmup is not None) == ("base_warmup" in said)
    assert numbers.lr is None or "lr" not in said or numbers.lr.value == said["lr"]


@pytest.mark.parametrize(("name", "said"), [("lr_scaling", "linear"), ("lr_max_factor", 2.0), ("base_batch_size", 32)])
def test_scaling_with_nothing_to_scale_is_refused(name: str, said: object) -> None:
    flag = "--" + name.replace("_", "-")
    assert f"`{flag} {said}`" in refused(ask(4, batch_size=8, **{name: said}), "nothing-to-scale")
    assert "`--lr 0.001` is final" in refused(ask(4, lr=1e-3, **{name: said}), "nothing-to-scale")
    assert compute(ask(4, batch_size=8, base_lr=1e-3, **{name: said})).lr is not None
    assert compute(ask(4, batch_size=8, base_warmup=10, **{name: said})).warmup_steps is not None


def test_a_rate_of_the_script_is_not_final() -> None:
    request = replace(ask(4, batch_size=8, base_warmup=100), lr=Resolved(1e-4, Source("script")))
    assert value(compute(request).warmup_steps) == 400


@settings(max_examples=40)
@given(st.floats(1e-12, 1e3), st.integers(1, 4096), counts, counts, st.sampled_from(["linear", "sqrt", "none"]))
def test_lr_is_the_product_to_12_digits(lr: float, world: int, batch: int, base: int, rule: str) -> None:
    numbers = compute(ask(world, batch_size=batch, base_lr=lr, base_batch_size=base, lr_scaling=rule))
    ratio = batch * world / base
    exact = lr * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[rule]
    assert math.isclose(value(numbers.lr), exact, rel_tol=5.1e-12)
    assert len(format_lr(value(numbers.lr)).split("e")[0].replace(".", "").strip("0")) <= 12


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *((name, n) for name in ("batch_size", "accum", "global_batch_size") for n in (0, -1, 2**63)),
        *((name, n) for name in ("base_batch_size", "dataset_size") for n in (0, -5)),
        ("base_warmup", -1),
        *((name, x) for name in ("lr", "base_lr", "lr_max_factor") for x in (0.0, -1e-4, math.nan, math.inf)),
    ],
)
def test_an_impossible_number_names_its_flag(name: str, wrong: float) -> None:
    assert "`--" + name.replace("_", "-") in refused(ask(2, **{name: wrong}), "number-out-of-range")


@pytest.mark.parametrize(
    ("world", "said", "code", "words"),
    [
        (4, {"lr": 4e-4, "base_lr": 1e-4}, "lr-given-twice", "`--lr 0.0004` and `--base-lr 0.0001`"),
        (4, {"warmup": 100, "base_warmup": 50}, "warmup-given-twice", "`--warmup 100` and `--base-warmup 50`"),
        (4, {"base_lr": 1e-4, "base_batch_size": 64}, "batch-unknown", "--batch-size 8"),
        (4, {"dataset_size": 100}, "batch-unknown", "--batch-size 8"),
        (4, {"batch_size": 1, "dataset_size": 3}, "dataset-smaller-than-world", "is smaller than the world size 4"),
        (4, {"batch_size": 1, "dataset_size": 3}, "dataset-smaller-than-world", "at most 3 processes"),
        (4, {"global_batch_size": 64, "batch_size": 8, "accum": 4}, "batch-disagrees", "8 × 4 × 4 is 128"),
        (4, {"global_batch_size": 64, "batch_size": 8, "accum": 4}, "batch-disagrees", "`--global-batch-size 128`"),
        (2, {"base_lr": 1e308}, "number-out-of-range", "is inf"),
        (1, {"base_lr": 5e-324, "lr_max_factor": 1e-9}, "number-out-of-range", "is 0,"),
        (0, {"batch_size": 8}, "number-out-of-range", "`NPROC` is 0"),
    ],
)
def test_what_cannot_be_computed_is_refused(world: int, said: dict[str, float], code: str, words: str) -> None:
    assert words in refused(ask(world, **said), code)


def test_all_impossible_numbers_are_told_at_once_with_their_source() -> None:
    request = ask(2, batch_size=0, base_lr=math.nan)
    request = replace(request, accum=Resolved(-1, Source("profile", "ddplaunch.toml [big]")))
    with pytest.raises(UsageError) as caught:
        compute(request)
    assert [finding.where for finding in caught.value.findings] == [
        ("--batch-size",),
        ("--accum (profile: ddplaunch.toml [big])",),
        ("--base-lr",),
    ]
