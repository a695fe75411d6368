"""What the phases of ranks mean: settled steps, shares, who is late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.ui.speech import findings_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.watch.phases import (
    RankPhases,
    StepLine,
    held_back,
    mean_shares,
    parsed,
    phase_line,
    phases_path,
    settled,
    summed,
    waited_for,
)
from ddplaunch.watch.step_rate import FollowedPhases
from tests.conftest import Golden


def line(step: int, wall: float, *times: float | None, samples: int | None = 8) -> StepLine:
    data, forward, backward, comm, optimizer = (*times, *(0.0,) * 5)[:5]
    return StepLine(step, 100.0 + step, 1, wall, data, forward, backward, comm, optimizer, samples, 1 << 20)


def rank(
    number: int, wall: float, *times: float | None, threads: int = 1, workers: int = 0, waits: float | None = None
) -> RankPhases:
    facts = {
        "device": "cpu",
        "threads": threads,
        "gradient_bytes": 4 << 20,
        "loader": {"workers": workers, "batch_size": 8},
    }
    lines = [line(step, wall, *times) for step in range(20)]
    if waits is not None:  # as seen now and then
        lines = [each._replace(waited_s=7 + waits * each.step) if each.step % 3 else each for each in lines]
    found = summed(number, facts, lines)
    assert found is not None and found.waits == (None if waits is None else pytest.approx(waits))
    return found


def test_what_no_rank_writes_is_left_out() -> None:
    texts = [
        b'{"schema": 1, "rank": 0}',
        b"[1,1.5,1,null,null,null,null,null,null,null,null,null]",
        b"[2,2.5,1,20000,null,1000,2000,0,500,8,1024,250000]",
        b"[3,3.5,1,20000]",
        b"[3,3.5,0,20000,1,1,1,1,1,1,1,1]",
        b"[3,-3.5,1,20000,1,1,1,1,1,1,1,1]",
        b"[true,3.5,1,20000,1,1,1,1,1,1,1,1]",
        b"[3,3.5,1,1e999,1,1,1,1,1,1,1,1]",
        b"[" * 5000,
        b"torn",
    ]
    facts, lines = parsed(texts)
    assert facts == {"schema": 1, "rank": 0} and [each.step for each in lines] == [1, 2]
    assert lines[0].wall_s is None and lines[1].wall_s == 0.02 and lines[1].data_s is None


def test_steps_settle_where_two_looks_are_alike() -> None:
    first = line(0, 0.0)._replace(wall_s=None)
    warm = [line(step, wall) for step, wall in enumerate((0.9, 0.5, 0.4, 0.3, 0.25), 1)]
    steady = [line(step, 0.1 + 0.002 * (step % 3)) for step in range(6, 30)]
    at = settled([first, *warm, *steady])
    assert at is not None and 3 <= at <= 6, at
    assert settled([first, *warm, *steady], least=12) == 12
    assert settled([first, *warm, *steady[:3]]) is None


def test_shares_are_of_the_time_and_unknown_where_ranks_cannot_tell() -> None:
    one = rank(0, 0.1, 0.04, None, 0.03, 0.02, 0.005)
    assert one.shares["forward"] is None and one.shares["data"] == pytest.approx(0.4)
    assert one.shares["rest"] == pytest.approx(0.05) and one.own_s == pytest.approx(0.08)
    assert one.samples_per_s == pytest.approx(80) and one.step_s == one.fastest_s == one.slowest_s == 0.1
    assert mean_shares([one, rank(1, 0.1, 0.0)])["forward"] is None
    text = phase_line([one])
    assert text == (
        "phases: 20 steps of 100 ms: waiting for data 40 %, backward 30 %, communication 20 %, optimizer 5 %, "
        "the rest 5 %; unknown: forward"
    )
    assert summed(0, {}, [line(1, 0.0)]) is None


def test_who_is_late_hardly_waits() -> None:
    late, other = rank(1, 0.1, 0.01, 0.05, 0.03, 0.001), rank(0, 0.1, 0.01, 0.01, 0.03, 0.04)
    found = waited_for([other, late])
    assert found is not None and found[0] is late and found[2] == "forward"
    assert waited_for([late]) is None and waited_for([other, rank(2, 0.1, 0.01, 0.01, 0.03, 0.04)]) is None
    moment = [replace(each, steps=6, mean_s=0.005) for each in (other, late)]
    assert waited_for(moment) is None, "30 ms are a moment"
    assert waited_for([replace(each, mean_s=5.0) for each in moment]) is not None
    unknown = rank(1, 0.1, 0.01, 0.05, 0.03, None)
    assert waited_for([other, unknown]) is None


#: Ranks and CPUs, and what holds them back.
HELD = {
    "rank-late": ([rank(0, 0.1, 0.01, 0.02, 0.02, 0.05), rank(1, 0.1, 0.06, 0.02, 0.02)], 8),
    "input-bound": ([rank(0, 0.1, 0.06, 0.02, 0.02), rank(1, 0.1, 0.06, 0.02, 0.015, 0.005)], 8),
    "threads-exceed-cpus": ([rank(0, 0.1, 0.0, 0.04, 0.05, threads=8), rank(1, 0.1, 0.0, 0.04, 0.05, threads=8)], 8),
    "communication-bound": ([rank(0, 0.1, 0.0, 0.02, 0.03, 0.04), rank(1, 0.1, 0.0, 0.02, 0.03, 0.04)], 8),
}


@pytest.mark.parametrize("expected", HELD)
def test_what_holds_ranks_back(expected: str, golden: Golden) -> None:
    ranks, cpus = HELD[expected]
    found = held_back(ranks, cpus)
    assert found is not None and found.code == expected
    golden(f"phases-{expected}", findings_text((found,), Terminal(80)) + "\n")


def code(ranks: Sequence[RankPhases], cpus: int) -> str | None:
    found = held_back(ranks, cpus)
    return None if found is None else found.code


def test_many_threads_come_before_the_late_rank_that_they_make() -> None:
    """As seen at loads of 15 and 22: ranks with 64 threads each on 2 CPUs, of which now one, now the other is late."""
    for threads, expected in ((64, "threads-exceed-cpus"), (1, "communication-bound")):
        assert code([rank(n, 0.1, 0.014, 0.034, 0.006, 0.044, threads=threads) for n in range(2)], 2) == expected
    late = [rank(0, 0.1, 0.031, 0.045, 0.0, 0.023, threads=64), rank(1, 0.1, 0.012, 0.027, 0.0, 0.06, threads=64)]
    assert code(late, 2) == "threads-exceed-cpus"


def test_nothing_is_said_of_ranks_that_compute() -> None:
    healthy = [rank(number, 0.1, 0.005, 0.03, 0.05, 0.005, 0.005, threads=4) for number in range(2)]
    assert held_back(healthy, 8) is None
    assert held_back(healthy[:1], 8) is None
    lonely = rank(0, 0.1, 0.0, 0.02, 0.03, 0.04)
    assert held_back([replace(lonely, facts={**lonely.facts, "world_size": 1})], 8) is None, "there is no other"
    for workers, more in ((2, "`num_workers=8`"), (8, "`num_workers=16`"), (16, "load cheaper")):
        found = held_back([rank(0, 0.1, 0.06, 0.02, 0.02, workers=workers)], 8)
        assert found is not None and found.fix.startswith(more), "two on each CPU are enough"


def test_workers_of_other_ranks_get_ahead_while_these_wait_for_one() -> None:
    """Two loaders that are as slow: the rank whose batch comes a moment later hides that of the other."""
    one, other = rank(0, 0.037, 0.032, 0.001, 0.002, workers=1), rank(1, 0.037, 0.001, 0.001, 0.002, 0.032, workers=1)
    found = held_back([one, other], 2)
    assert found is not None and found.code == "input-bound"
    assert found.what.startswith("the others wait for rank 0, and it waits for data in 86 % of the time")
    alone = [replace(each, facts={**each.facts, "loader": {"workers": 0}}) for each in (one, other)]
    assert code(alone, 2) == "rank-late", "without workers each rank's loading shows"


def test_ranks_that_all_wait_for_data_are_not_late() -> None:
    """One of two slow loaders is a little slower at any time, and no rank is to be looked at for that."""
    slower, slow = rank(0, 0.0276, 0.0212, 0.0014, 0.0006, 0.003), rank(1, 0.0279, 0.0172, 0.0014, 0.0008, 0.007)
    assert waited_for([slower, slow]) is not None
    found = held_back([slower, slow], 2)
    assert found is not None and found.what.startswith("the ranks wait for data in 69 % of the time")
    fast = rank(1, 0.0279, 0.008, 0.0014, 0.0008, 0.016)
    assert code([slower, fast], 2) == "rank-late", "the other loads twice as fast"


def test_files_are_followed_while_they_grow(tmp_path: Path) -> None:
    followed = FollowedPhases(tmp_path, [0, 1])
    assert followed.progress(100.0) == {}
    path = phases_path(tmp_path, 0)
    path.write_text('{"schema": 1}\n[1,100.0,1,null,null,null,null,null,null,null,null,null]\n')
    assert followed.progress(100.0) == {}
    with path.open("a") as file:
        file.write("[2,100.5,1,500000,250000,100000,100000,0,5000,8,9,null]\n[3,101.0,1,5000")
    progress = followed.progress(101.0)[0]
    assert progress.step == 2 and progress.rate == 2
    assert progress.phases == {"data": 50, "forward": 20, "backward": 20, "comm": 0, "optimizer": 1}
    with path.open("a") as file:
        file.write("00,null,100000,100000,0,5000,8,9,null]\n")
    assert followed.progress(101.0)[0].step == 3
    assert followed.progress(200.0)[0].rate == 0, "it stands still"
