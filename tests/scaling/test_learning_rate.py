"""Learning rate and warmup: what is computed, where it says it comes from, and what is refused."""

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
from ddplaunch.values.resolved import Resolved, Source

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


@pytest.mark.parametrize(
    ("world", "said", "factor", "warmup", "assumes"),
    [
        (4, {"base_lr": 1e-4}, 4.0, None, "base_lr was tuned for one GPU with the batch that the script uses"),
        (4, {"batch_size": 8, "accum": 2, "base_lr": 1e-4}, 4.0, None, "one GPU with 16 samples per optimizer step"),
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


def test_a_rate_of_the_script_is_not_final() -> None:
    request = replace(ask(4, batch_size=8, base_warmup=100), lr=Resolved(1e-4, Source("script")))
    assert value(compute(request).warmup_steps) == 400


@pytest.mark.parametrize(("name", "said"), [("lr_scaling", "linear"), ("lr_max_factor", 2.0), ("base_batch_size", 32)])
def test_scaling_with_nothing_to_scale_is_refused(name: str, said: object) -> None:
    flag = "--" + name.replace("_", "-")
    assert f"`{flag} {said}`" in refused(ask(4, batch_size=8, **{name: said}), "nothing-to-scale")
    assert "`--lr 0.001` is final" in refused(ask(4, lr=1e-3, **{name: said}), "nothing-to-scale")
    assert compute(ask(4, batch_size=8, base_lr=1e-3, **{name: said})).lr is not None
    assert compute(ask(4, batch_size=8, base_warmup=10, **{name: said})).warmup_steps is not None


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
        (2, {"base_lr": 1e308}, "number-out-of-range", "is inf"),
        (1, {"base_lr": 5e-324, "lr_max_factor": 1e-9}, "number-out-of-range", "is 0,"),
        (0, {"batch_size": 8}, "number-out-of-range", "`NPROC` is 0"),
        (-4, {"batch_size": 8}, "number-out-of-range", "`NPROC` is -4"),
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
