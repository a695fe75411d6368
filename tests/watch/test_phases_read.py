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
    late_host_of_run,
    mean_shares,
    parsed,
    phase_line,
    phase_words,
    phases_path,
    read_phases,
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
    rank(0, 0.1, waits=0.25)


def test_who_is_late_hardly_waits() -> None:
    late, other = rank(1, 0.1, 0.01, 0.05, 0.03, 0.001), rank(0, 0.1, 0.01, 0.01, 0.03, 0.04)
    found = waited_for([other, late])
    assert found is not None and found[0] is late and found[2] == "forward"
    assert waited_for([late]) is None and waited_for([other, rank(2, 0.1, 0.01, 0.01, 0.03, 0.04)]) is None
    moment = [replace(each, steps=6, mean_s=0.005) for each in (other, late)]
    assert waited_for(moment) is None, "30 ms are a moment"
    for longer in ({"mean_s": 0.5, "steps": 2}, {"steps": 10}):
        assert waited_for([replace(each, **longer) for each in moment]) is not None
    assert waited_for([SLOWER, SLOW]) is not None, "though no rank is to be looked at for it"
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


LONELY = rank(0, 0.1, 0.0, 0.02, 0.03, 0.04)
NO_WORKERS = {"loader": {"workers": 0}}
#: Two loaders that are as slow: the rank whose batch comes a moment later hides that of the other, which gets ahead.
AHEAD = [rank(0, 0.037, 0.032, 0.001, 0.002, workers=1), rank(1, 0.037, 0.001, 0.001, 0.002, 0.032, workers=1)]
#: One of two slow loaders is a little slower at any time, and no rank is to be looked at for that.
SLOWER, SLOW = rank(0, 0.0276, 0.0212, 0.0014, 0.0006, 0.003), rank(1, 0.0279, 0.0172, 0.0014, 0.0008, 0.007)
#: Ranks and CPUs, and how what is said of them begins: code, what, fix.
SAID: dict[str, tuple[Sequence[RankPhases], int, tuple[str, str, str] | None]] = {
    "computing": ([rank(n, 0.1, 0.005, 0.03, 0.05, 0.005, 0.005, threads=4) for n in range(2)], 8, None),
    "in a group of one": ([replace(LONELY, facts={**LONELY.facts, "world_size": 1})], 8, None),
    **{f"{workers} workers": ([rank(0, 0.1, 0.06, 0.02, 0.02, workers=workers)], 8, ("input-bound", "", more))
       for workers, more in ((2, "`num_workers=8`"), (8, "`num_workers=16`"), (16, "load cheaper"))},
    # as seen at loads of 15 and 22: ranks with 64 threads each on 2 CPUs, of which now one, now the other is late
    **{code: ([rank(n, 0.1, 0.014, 0.034, 0.006, 0.044, threads=threads) for n in range(2)], 2, (code, "", ""))
       for threads, code in ((64, "threads-exceed-cpus"), (1, "communication-bound"))},
    "late by threads": ([rank(0, 0.1, 0.031, 0.045, 0.0, 0.023, threads=64),
                         rank(1, 0.1, 0.012, 0.027, 0.0, 0.06, threads=64)], 2, ("threads-exceed-cpus", "", "")),
    "workers ahead": (AHEAD, 2, ("input-bound", "the others wait for rank 0, and it waits for data 86 %", "")),
    "no workers": ([replace(one, facts={**one.facts, **NO_WORKERS}) for one in AHEAD], 2, ("rank-late", "", "")),
    "all wait": ([SLOWER, SLOW], 2, ("input-bound", "the ranks wait for data 69 % of the time", "")),
    "one waits longer": ([SLOWER, rank(1, 0.0279, 0.008, 0.0014, 0.0008, 0.016)], 2, ("rank-late", "", "")),
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_what_is_said_of_ranks(case: str) -> None:
    ranks, cpus, expected = SAID[case]
    found = held_back(ranks, cpus)
    if found is None or expected is None:
        assert (found, expected) == (None, None)
        return
    code, what, fix = expected
    assert found.code == code and found.what.startswith(what) and found.fix.startswith(fix)


def test_measuring_that_ended_is_told_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "node-0" / "attempt-0"
    folder.mkdir(parents=True)
    phases_path(folder, 0).write_text('{"schema": 1}\n')
    assert "no optimizer step was seen twice" in phase_words(folder)
    phases_path(folder, 1).write_text('{"broken": "no such hook"}\n')
    assert phase_words(folder) == "phases: measuring ended in rank 1: no such hook\n"
    assert [[*read_phases(folder, ranks)] for ranks in (None, [1, 2])] == [[0, 1], [1]]


def test_a_late_host_is_found_in_the_last_steps_of_the_last_attempt(tmp_path: Path) -> None:
    """It was not late at first, nor in the attempt before; a third host wrote nothing."""
    for node, attempt, own_us in ((0, 0, 90_000), (0, 1, 40_000), (1, 0, 40_000), (1, 1, 90_000)):
        folder = tmp_path / f"node-{node}" / f"attempt-{attempt}"
        folder.mkdir(parents=True)
        for rank in (2 * node, 2 * node + 1):
            steps = [(step, own_us if step > 1000 else 40_000) for step in range(3000)]
            lines = (f"[{at},{at},1,100000,0,{own},0,{100_000 - own},0,8,9,null]\n" for at, own in steps)
            phases_path(folder, rank).write_text("".join(lines))
    (finding,) = late_host_of_run(tmp_path, ("a", "b", "c"))
    assert (finding.code, finding.where) == ("host-late", ("host b",))
    assert finding.what == "the others waited for host b: it works 90 ms in a step, they 40 ms"
    assert late_host_of_run(tmp_path, ("a",)) == ()


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
