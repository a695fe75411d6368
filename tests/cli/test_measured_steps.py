"""Which steps of a trial are measured: as many as are asked for, of every rank, once their times settle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddplaunch.cli.trials.measured_steps import FollowedSteps, Measure


def write(record: Path, rank: int, walls_s: Sequence[float | None], samples: int = 8) -> None:
    """Append steps of these lengths to what a rank has written; None is a step of which only the end is known."""
    attempt = record / "node-0" / "attempt-0"
    attempt.mkdir(parents=True, exist_ok=True)
    path = attempt / f"rank-{rank}.phases.jsonl"
    begun = len(path.read_text().splitlines()) if path.exists() else 0
    with path.open("a") as file:
        for number, wall_s in enumerate(walls_s, begun + 1):
            wall = None if wall_s is None else wall_s * 1e6
            times = [wall, *[None if wall is None else wall / 5] * 5]
            file.write(json.dumps([number, 1e9 + number, 1, *times, samples, 1 << 20, None]) + "\n")


def followed(record: Path, ranks: int = 1) -> FollowedSteps:
    steps = FollowedSteps(record, ranks)
    steps.look()
    return steps


STEADY = [None, *[0.1] * 200]


@pytest.mark.parametrize("asked", [3, 20, 100])
def test_as_many_steps_as_are_asked_for_are_measured(tmp_path: Path, asked: int) -> None:
    write(tmp_path, 0, STEADY)
    steps, measure = followed(tmp_path), Measure(steps=asked, seconds=None)
    assert steps.are_enough(measure) and [rank.steps for rank in steps.measured(measure).ranks] == [asked]
    assert steps.made == 201


def test_seconds_are_measured_and_ten_steps_at_least(tmp_path: Path) -> None:
    write(tmp_path, 0, STEADY)
    (fast,) = followed(tmp_path).measured(Measure(seconds=5.0)).ranks
    assert fast.steps in (50, 51) and fast.samples_per_s == pytest.approx(80)
    write(tmp_path / "slow", 0, [None, *[3.0] * 30])
    (slow,) = followed(tmp_path / "slow").measured(Measure(seconds=5.0)).ranks
    assert slow.steps == 10


def test_every_rank_is_waited_for(tmp_path: Path) -> None:
    write(tmp_path, 0, STEADY)
    steps, measure = followed(tmp_path, 2), Measure(steps=20)
    assert not steps.complete and not steps.are_enough(measure)
    assert steps.measured(measure).ranks == () and steps.measured(measure).samples_per_s is None
    write(tmp_path, 1, STEADY[:12])
    steps.look()
    assert steps.complete and not steps.are_enough(measure) and steps.made == 12
    write(tmp_path, 1, STEADY[1:40])
    steps.look()
    assert steps.are_enough(measure)
    assert steps.measured(measure).samples_per_s == pytest.approx(160) and steps.measured(measure).settled


def test_steps_that_do_not_settle_are_measured_all_the_same_and_said(tmp_path: Path) -> None:
    moving = [None, *[0.1 * 1.2 ** (number // 2) for number in range(60)]]
    write(tmp_path, 0, moving[:60])
    steps, measure = followed(tmp_path), Measure(seconds=2.0)
    assert not steps.are_enough(measure), "too few to know that they do not settle"
    (over,) = steps.measured(measure).ranks
    assert over.steps == 10 and over.step_s == pytest.approx(0.228, abs=1e-3), "what follows the warm-up of a run"
    write(tmp_path, 0, moving[60:])
    steps.look()
    assert steps.are_enough(measure) and not steps.measured(measure).settled


def test_epochs_without_a_batch_count_until_there_is_a_step(tmp_path: Path) -> None:
    write(tmp_path, 0, [])
    (tmp_path / "node-0" / "attempt-0" / "rank-0.phases.jsonl").write_text('{"empty_epochs": 3}\n')
    steps = followed(tmp_path)
    assert steps.empty_epochs == steps.measured(Measure()).empty_epochs == 3
    write(tmp_path, 0, STEADY)
    steps.look()
    assert steps.empty_epochs == 0


def test_nothing_is_measured_of_less_than_five_steps_after_the_warmup(tmp_path: Path) -> None:
    assert followed(tmp_path).measured(Measure()).ranks == () and followed(tmp_path).made == 0
    write(tmp_path, 0, STEADY[:10])
    measured = followed(tmp_path).measured(Measure())
    assert measured.ranks == () and measured.steps == 10 and measured.peak_bytes == 1 << 20
    write(tmp_path, 0, STEADY[10:11])
    assert [rank.steps for rank in followed(tmp_path).measured(Measure()).ranks] == [5]
