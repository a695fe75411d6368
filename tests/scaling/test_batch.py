"""Effective batch, per-GPU batch and accumulation: each from the others, and what is told when they do not fit."""

from __future__ import annotations

import pytest

from ddplaunch.scaling.compute import compute
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.values.resolved import DEFAULT, Resolved, Source
from tests.scaling.test_learning_rate import ask, refused, value


def test_effective_batch_says_its_formula() -> None:
    found = compute(ask(8, batch_size=16, accum=4)).global_batch_size
    assert found == Resolved(512, Source("computed", "16 × 4 × 8"))


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


def test_three_that_disagree_are_refused_with_the_product() -> None:
    text = refused(ask(4, global_batch_size=64, batch_size=8, accum=4), "batch-disagrees")
    assert "8 × 4 × 4 is 128" in text
    assert "`--global-batch-size 128`" in text
