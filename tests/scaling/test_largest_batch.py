"""Which batch fits: the model of memory, and the search by it, on machines whose memory is a formula."""

from __future__ import annotations

import random

import pytest

from ddplaunch.scaling.largest_batch import Batches, Tried, fastest, largest, modelled, next_batch

MIB = 1 << 20


def search(
    fixed: int, sample: float, limit: int, batches: Batches, headroom: float = 0.1, noise: float = 0.0
) -> list[Tried]:
    """Return all trials where a batch takes ``fixed + sample * batch`` bytes, more or less."""
    chance, tried = random.Random(7), list[Tried]()
    while (batch := next_batch(tried, batches, headroom)) is not None:
        peak = int((fixed + sample * batch) * (1 + chance.uniform(-noise, noise)))
        tried.append(Tried(batch, peak <= limit, peak if peak <= limit else None, limit))
        assert len(tried) <= 12
    return tried


@pytest.mark.parametrize(
    ("fixed", "sample", "limit", "first", "most_trials"),
    [
        (300 * MIB, MIB, 900 * MIB, 8, 5),
        (20 << 30, 1 << 30, 80 << 30, 8, 4),
        (20 << 30, 3 << 30, 80 << 30, 32, 5),  # the first one does not fit
        (100 * MIB, MIB, 4000 * MIB, 1, 5),
        (300 * MIB, MIB / 30, 900 * MIB, 8, 6),  # eight samples are nothing beside the fixed part
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_few_trials_find_the_largest(
    fixed: int, sample: float, limit: int, first: int, most_trials: int, noise: float
) -> None:
    tried = search(fixed, sample, limit, Batches(first), noise=noise)
    best = largest(tried, 0.1)
    assert best is not None
    true = (limit * 0.9 - fixed) / sample
    assert 0.93 * true - 1 <= best.batch <= true * (1 + 3 * noise)
    assert len(tried) <= most_trials + (2 if noise else 0)


def test_an_effective_batch_that_is_kept_has_only_its_divisors() -> None:
    tried = search(300 * MIB, MIB, 900 * MIB, Batches(16, total=96))
    assert [each.batch for each in tried] == [16, 32, 96]
    tried = search(300 * MIB, 10 * MIB, 900 * MIB, Batches(16, total=96))
    best = largest(tried, 0.1)
    assert best is not None and best.batch == 48
    assert all(96 % each.batch == 0 for each in tried)
    assert [Batches(1, total=7).at_most(batch) for batch in (0.5, 6, 7, 99)] == [1, 1, 7, 7]
    assert [Batches(1, total=7, whole=whole).least for whole in (False, True)] == [1, 7]
    assert Tried(8, True, 5).within(0.1) and Tried(8, True, None, 5).within(0.1) and not Tried(8, False).within(0.1)


def test_where_a_search_ends() -> None:
    """With the one batch that there is without accumulation, with one sample, with all data, with the first death."""
    assert [each.batch for each in search(1, MIB, 90 * MIB, Batches(16, total=64, whole=True))] == [64]
    assert largest(search(1, MIB, 60 * MIB, Batches(16, total=64, whole=True)), 0.1) is None
    tried = search(300 * MIB, 700 * MIB, 900 * MIB, Batches(32))
    assert largest(tried, 0.1) is None
    assert tried[-1].batch == 1 and len(tried) <= 4
    tried = search(300 * MIB, MIB, 900 * MIB, Batches(8, most=100))
    assert max(each.batch for each in tried) == 100
    tried = []
    while (batch := next_batch(tried, Batches(8), 0.1)) is not None:
        tried.append(Tried(batch, batch <= 1000))
    best = largest(tried, 0.1)
    assert best is not None and 900 <= best.batch <= 1000


def test_a_larger_batch_that_took_less_misleads_nobody() -> None:
    seen = [Tried(16, True, 628 * MIB, 2000 * MIB), Tried(32, True, 515 * MIB, 2000 * MIB)]
    model = modelled(seen)
    assert model is not None and model.sample_bytes == 0
    assert 64 <= (next_batch(seen, Batches(8), 0.1) or 0) <= 128, "not sixteen times as much"
    seen += [Tried(96, True, 900 * MIB, 2000 * MIB)]
    model = modelled(seen)
    assert model is not None and 3 * MIB < model.sample_bytes < 6 * MIB and model.at(96) <= 1.01 * 900 * MIB


def test_the_model_is_a_line_and_says_how_far_it_is_off() -> None:
    points = [Tried(each, True, 100 * MIB + each * MIB) for each in (10, 20)]
    model = modelled(points)
    assert model is not None and model.off is None
    assert round(model.fixed_bytes / MIB, 6) == 100 and round(model.sample_bytes / MIB, 6) == 1
    more = modelled([*points, Tried(100, True, 220 * MIB)])
    assert more is not None and more.off is not None and 0.01 < more.off < 0.02
    assert modelled(points[:1]) is None and modelled([points[0], points[0]]) is None


def test_the_fastest_is_the_larger_one_of_two_that_are_alike_unless_an_epoch_has_few_steps_then() -> None:
    tried = [Tried(each, True, each, 1000, rate) for each, rate in ((8, 500.0), (64, 900.0), (128, 890.0), (950, 9e9))]
    best = fastest(tried, 0.1)
    assert best is not None and best.batch == 128
    assert fastest([Tried(8, True)], 0.1) is None
    tried = [Tried(batch, True, batch, 10_000, float(batch)) for batch in (8, 64, 1000)]
    for samples, batch in ((1 << 30, 1000), (10_000, 1000), (1000, 64), (80, 8)):
        best = fastest(tried, 0.1, samples)
        assert best is not None and best.batch == batch
    assert fastest(tried, 0.1, 79) is None
