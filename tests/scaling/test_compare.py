"""One launch at several world sizes: what is kept, what follows."""

from __future__ import annotations

import pytest

from ddplaunch.scaling.compute import compare_sizes, compute
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source
from tests.scaling.test_learning_rate import ask, texts, value


def test_per_gpu_batch_is_kept_and_the_base_stays_that_of_one_gpu() -> None:
    columns = compare_sizes(ask(4, batch_size=16, accum=4, base_lr=5e-5, base_warmup=5000), (1, 2, 4, 8))
    assert [value(c.batch_size) for c in columns] == [16] * 4
    assert [value(c.base_batch_size) for c in columns] == [64] * 4
    assert [value(c.global_batch_size) for c in columns] == [64, 128, 256, 512]
    assert [value(c.lr) for c in columns] == [5e-5, 1e-4, 2e-4, 4e-4]
    assert [value(c.warmup_steps) for c in columns] == [5000, 10000, 20000, 40000]


def test_the_own_world_size_is_what_compute_says() -> None:
    for request in (ask(4, batch_size=8, base_lr=1e-4), ask(4, global_batch_size=64, base_lr=1e-4)):
        assert compare_sizes(request, [4]) == (compute(request),)


def test_a_global_batch_is_kept_and_the_learning_rate_with_it() -> None:
    columns = compare_sizes(ask(4, global_batch_size=64, base_lr=1e-4), (1, 2, 4, 8))
    assert [value(c.global_batch_size) for c in columns] == [64] * 4
    assert [value(c.batch_size) for c in columns] == [64, 32, 16, 8]
    assert [value(c.lr) for c in columns] == [4e-4] * 4
    assert all("tuned for one GPU" in texts(c) for c in columns)


def test_a_global_batch_with_a_per_gpu_batch_changes_the_accumulation() -> None:
    request = ask(2, global_batch_size=64, batch_size=8, accum=4)
    assert [(value(c.batch_size), value(c.accum)) for c in compare_sizes(request, (1, 2, 8))] == [
        (8, 8),
        (8, 4),
        (8, 1),
    ]


def test_order_and_sources_are_kept() -> None:
    columns = compare_sizes(ask(4, batch_size=8), (8, 4, 8))
    assert [c.world_size for c in columns] == [
        Resolved(8, Source("flag", "--compare")),
        Resolved(4, Source("flag", "NPROC")),
        Resolved(8, Source("flag", "--compare")),
    ]
    assert compare_sizes(ask(4, batch_size=8), ()) == ()


def test_a_world_size_that_cannot_hold_the_batch_is_named() -> None:
    with pytest.raises(UsageError, match="does not divide by 3 processes"):
        compare_sizes(ask(4, global_batch_size=64), (1, 3))
    with pytest.raises(UsageError, match="`--compare` is 0"):
        compare_sizes(ask(4, batch_size=8), (0,))
