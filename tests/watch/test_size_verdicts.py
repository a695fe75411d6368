"""Speed-up, efficiency and verdicts of sizes that were measured, and how they are shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import Finding, error, warning
from ddplaunch.watch.phases import RankPhases
from ddplaunch.watch.scale_view import progress_text, scale_json, scale_text
from ddplaunch.watch.size_verdicts import SizeMeasured, base_of, noise, speed_up, verdict
from tests.conftest import Golden

HEALTHY = {"data": 0.02, "forward": 0.3, "backward": 0.55, "comm": 0.08, "optimizer": 0.04, "rest": 0.01}


def rank(number: int, step_s: float = 0.1, spread: float = 1.1, **more: Any) -> RankPhases:
    shares, waits = more.pop("shares", HEALTHY), more.pop("waits", None)
    facts = {"device": "cuda", "threads": 1, "gradient_bytes": 1 << 28, **more}
    times = (step_s, step_s / spread, step_s * spread, step_s)
    return RankPhases(number, 100, *times, shares, 8 / step_s, 30 << 30, facts, waits)


def size(processes: int, step_s: float = 0.1, **more: Any) -> SizeMeasured:
    of_ranks = {
        name: more.pop(name) for name in ("shares", "spread", "device", "threads", "backend", "waits") if name in more
    }
    ranks = more.pop("ranks", tuple(rank(number, step_s, **of_ranks) for number in range(processes)))
    return SizeMeasured(
        processes=processes,
        ranks=ranks,
        samples_per_s=more.pop("samples_per_s", 8 * processes / step_s),
        effective_batch=8 * processes,
        lr=f"{processes * 1e-4:g}",
        cpus=more.pop("cpus", 64),
        **more,
    )


def test_what_ranks_do_beside_their_speed_is_told() -> None:
    apart = warning("no-process-group", "these are 2 separate trainings", why="no group", fix="make one")
    undivided = warning("data-not-divided", "each of 2 ranks trains on all samples", why="twice", fix="divide")
    sizes = [size(1), size(2, observed=(undivided,)), size(4, observed=(apart, undivided))]
    speeds = [speed_up(one, sizes[0], strong=False) for one in sizes]
    assert speeds[1] is not None and speeds[2] is None, "samples of separate trainings are no speed-up"
    found = verdict(sizes[2], sizes[0], strong=False)
    assert found is apart
    text = scale_text(sizes, Terminal(width=80), strong=False)
    assert text.count("data-not-divided") == 1 and text.count("no-process-group") == 1
    assert "2 processes: scaling as it should" in text
    assert speed_up(sizes[1], sizes[2], strong=False) is None


def test_speed_up_weak_and_strong() -> None:
    one, four = size(1), size(4, 0.125)
    assert base_of([four, one]) is one and base_of([SizeMeasured(1)]) is None
    weak = speed_up(four, one, strong=False)
    assert weak is not None and weak.speed_up == pytest.approx(3.2) and weak.efficiency == pytest.approx(0.8)
    unknown = [size(1, samples_per_s=None), size(4, 0.125, samples_per_s=None)]
    weak = speed_up(unknown[1], unknown[0], strong=False)
    assert weak is not None and weak.speed_up == pytest.approx(3.2)
    strong = speed_up(size(4, 0.05, samples_per_s=None), unknown[0], strong=True)
    assert strong is not None and strong.speed_up == pytest.approx(2.0) and strong.efficiency == pytest.approx(0.5)
    assert speed_up(SizeMeasured(2), one, strong=False) is speed_up(four, SizeMeasured(1), strong=False) is None
    assert speed_up(four, None, strong=False) is None
    two = size(2)
    assert speed_up(two, two, strong=False) is None and speed_up(size(1), size(1), strong=False) is not None
    assert "efficiency" not in scale_text([two], Terminal(width=80), strong=False)
    both = scale_json([two, size(4)], strong=False)["sizes"]
    assert both[0]["efficiency"] is None and both[1]["efficiency"] == 1


def changed(**more: float) -> dict[str, float]:
    return {**HEALTHY, **more}


LATE = rank(0, 0.2, shares=changed(comm=0.02, rest=0.3))
#: Size, and the code of its verdict beside a healthy size 1.
CASES = {
    "healthy": (size(4, 0.125), None),
    "input": (size(4, 0.2, shares=changed(data=0.5, forward=0.15, backward=0.2)), "input-bound"),
    "communication": (size(4, 0.2, shares=changed(comm=0.5, forward=0.15, backward=0.25)), "communication-bound"),
    "late": (size(4, 0.2, ranks=(LATE, *(rank(n, 0.2, shares=changed(comm=0.5)) for n in (1, 2, 3)))), "rank-late"),
    "threads": (size(4, 0.2, device="cpu", threads=64), "threads-exceed-cpus"),
    "too many": (size(4, 0.2, device="cpu", threads=1, cpus=2), "cpus-used-up"),
    "computes longer": (size(4, 0.2, device="cpu", threads=1), "cpus-used-up"),
    "gpus": (size(4, 0.2), "speed-up-low"),
    "low": (size(4, 0.14, shares=changed(comm=0.24, forward=0.2, backward=0.35)), "speed-up-low"),
}


@pytest.mark.parametrize("case", CASES)
def test_verdicts(case: str) -> None:
    one, code = CASES[case]
    found = verdict(one, size(1), strong=False)
    if code is None:
        assert found == "scaling as it should: 80 % of the ideal"
    else:
        assert isinstance(found, Finding) and found.code == code
        assert ("; a rank computes " in found.what) is (case in ("computes longer", "gpus"))


def test_what_is_unsure() -> None:
    assert noise(size(2)) == size(2, cpus=1, waits=0.3).disturbed == "", "they wait for each other"
    found, lacked = verdict(size(2, cpus=4, waits=0.3), size(1), strong=False), size(1, cpus=4, waits=0.3)
    assert isinstance(found, str) and found.startswith(
        "not judged: ranks waited 30 % of the time for CPUs used by others"
    ), found
    assert speed_up(size(2), lacked, strong=False) is speed_up(lacked, lacked, strong=False) is None
    assert "steps took from" in noise(size(2, spread=1.5)) and "still moved" in noise(size(2, settled=False))


FAILED = error("trial-failed", "it failed after 3 steps: boom", why="it raised", fix="`ddplaunch explain x`")
SIZES = [
    size(1),
    size(2, 0.105, spread=1.4),
    size(4, 0.2, shares=changed(comm=0.5, forward=0.15, backward=0.25)),
    SizeMeasured(8, problem=FAILED),
    size(16, 0.2, shares=changed(data=0.5, forward=0.15, backward=0.2)),
]


@pytest.mark.parametrize("width", [80, 40])
def test_the_answer(golden: Golden, width: int) -> None:
    shown = scale_text(SIZES, Terminal(width=width), strong=False)
    golden(f"scale-{width}", shown)
    assert max(map(len, shown.splitlines())) <= width or "`" in shown
    assert progress_text(SIZES[0], 3, Terminal(80)) == "1 process: 100 steps of 100 ms, 80 samples/s (3.0 s)\n"
    assert progress_text(SIZES[3], 3, Terminal(80)) == "8 processes: it failed after 3 steps: boom (3.0 s)\n"


def test_the_json() -> None:
    found = json.loads(json.dumps(scale_json(SIZES, strong=False)))
    assert found["schema"] == 2 and [each["processes"] for each in found["sizes"]] == [1, 2, 4, 8, 16]
    assert found["sizes"][2]["verdict"]["finding"]["code"] == "communication-bound"
    assert found["sizes"][3]["problem"]["code"] == "trial-failed" and found["sizes"][3]["verdict"] is None
    assert found["sizes"][1]["speed_up"] == 1.9048


@pytest.mark.parametrize(
    ("computes", "waiting", "code"),
    [
        (0.2, None, "cpus-used-up"),
        (0.05, None, "communication-bound"),
        (0.05, 0.1, "communication-bound"),
        (0.05, 0.4, "cpus-used-up"),
    ],
)
def test_ranks_without_a_cpu_are_not_taken_for_slow_links(computes: float, waiting: float | None, code: str) -> None:
    shares = {"data": 0.0, "forward": computes, "backward": 0.0, "comm": 0.55, "optimizer": 0.0, "rest": 0.4 - computes}
    crowded = size(4, cpus=2, device="cpu", shares=shares, waits=waiting)
    found = verdict(crowded, None, strong=False)
    assert isinstance(found, Finding) and found.code == code
    assert ("each waits for one 40 % of the time" in found.what) is (waiting == 0.4)


def test_more_workers_are_typed_as_the_script_takes_them() -> None:
    waits = changed(data=0.5, forward=0.15, backward=0.2)
    for typed, words in (("", "`num_workers=32` in the DataLoader"), ("--num-workers {}", "`--num-workers 32` of the")):
        found = verdict(size(2, shares=waits, workers=typed), None, strong=False)
        assert isinstance(found, Finding)
        assert found.code == "input-bound" and found.fix.startswith(words), found.fix
