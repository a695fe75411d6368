"""Launches of every launcher with several numbers of ranks, in turns, and what is said of them.

A ratio is the median over rounds of both sides' figures in one round: they ran within a minute of each other.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.launchers import COLD, TORCHRUN, WARM, Launcher
from benchmarks.launches import FIGURES, measure
from benchmarks.timing import Command, once

READY_MAX, MEMORY_MAX, END_MAX = {2: 0.50, 8: 0.22}, 0.25, 0.5
FURTHER_RANK_MAX_S = 0.040
FLOOR = "python -c 'import torch.distributed.run'"


@dataclass(frozen=True)
class Target:
    """One promise: what was measured, and the most that it may be."""

    name: str
    measured: float
    most: float
    unit: str = ""

    @property
    def kept(self) -> bool:
        """Whether the promise holds."""
        return self.measured <= self.most


@dataclass(frozen=True)
class Launches:
    """What was measured. ``taken``: by ranks, launcher and figure, one value for each round; times in seconds."""

    taken: dict[int, dict[str, dict[str, list[float]]]]
    missing: dict[str, str]
    floor: list[float]

    def ratio(self, ranks: int, figure: str, name: str, to: str = TORCHRUN) -> float:
        """Return the median over rounds of ``name``'s figure / that of ``to``."""
        return statistics.median(self.ratios(ranks, figure, name, to))

    def ratios(self, ranks: int, figure: str, name: str, to: str = TORCHRUN) -> list[float]:
        """Return that of every round."""
        here = self.taken[ranks]
        return [mine / its for mine, its in zip(here[name][figure], here[to][figure], strict=True)]

    def further_rank_s(self, name: str) -> float:
        """Return the median over rounds of what each rank beyond the first adds until all are ready (least squares)."""
        counts = sorted(self.taken)
        rounds = zip(*(self.taken[ranks][name]["ready"] for ranks in counts), strict=True)
        return statistics.median(statistics.linear_regression(counts, each).slope for each in rounds)


def measure_launches(
    ways: Sequence[Launcher], counts: Sequence[int], rounds: int, environ: Mapping[str, str]
) -> Launches:
    """Launch everything once unmeasured, then ``rounds`` times, every second round backwards. Raises RuntimeError."""
    here = [way for way in ways if way.missing is None]
    taken: dict[int, dict[str, dict[str, list[float]]]] = {
        ranks: {way.name: {figure: [] for figure in FIGURES} for way in here if ranks >= way.least} for ranks in counts
    }
    floor_of = Command(FLOOR, (sys.executable, "-uc", "import torch.distributed.run; print()"), until_line=True)
    floor = []
    for way in here:
        measure(way, max(2, way.least), environ)
    for number in range(rounds):
        floor.append(once(floor_of, Path.cwd(), environ))
        for ranks in counts:
            for way in here if number % 2 == 0 else reversed(here):
                if ranks >= way.least:
                    for figure, value in measure(way, ranks, environ).items():
                        taken[ranks][way.name][figure].append(value)
    return Launches(taken, {way.name: way.missing for way in ways if way.missing is not None}, floor)


def judge_launches(launches: Launches) -> list[Target]:
    """Return every target of a warm start, and of the end of a job, that was measured."""
    counts = sorted(launches.taken)
    targets = []
    for ranks, most in READY_MAX.items():
        if ranks in counts:
            targets += [
                Target(f"warm, {ranks} ranks, {figure} / torchrun", launches.ratio(ranks, figure, WARM), most)
                for figure in ("ready", "wall")
            ]
    if 8 in counts:
        targets.append(Target("warm, 8 ranks, memory / torchrun", launches.ratio(8, "pss_mib", WARM), MEMORY_MAX))
    if len(counts) > 1:
        targets.append(Target("warm, each further rank", launches.further_rank_s(WARM), FURTHER_RANK_MAX_S, " s"))
    for name in (COLD, WARM):
        ends = statistics.median(ratio for ranks in counts for ratio in launches.ratios(ranks, "end", name))
        targets.append(Target(f"`{name}`, end of the job / torchrun", ends, END_MAX))
    return targets


def launches_text(launches: Launches) -> list[str]:
    """Return lines of Markdown: a table for each number of ranks, the floor, and how near to it a warm start is."""
    lines = [
        "Launches of a script that does one gloo all-reduce and ends; medians, ratios to torchrun in the same round.",
        "`ready`: the last rank has finished its all-reduce. `wall`: the prompt is back. `end`: from the end of the",
        "last rank's process to the prompt. CPU: seconds of all processes. Memory: PSS of all processes when ready.",
    ]
    for ranks, by_name in sorted(launches.taken.items()):
        lines += [
            "",
            f"| {ranks} rank{'s' * (ranks > 1)} | ready | wall | end | CPU | memory |",
            "|---|---|---|---|---|---|",
        ]
        for name, figures in by_name.items():
            cells = [
                _cell(launches, ranks, figure, name, figures[figure]) for figure in ("ready", "wall", "end", "cpu")
            ]
            memory = _cell(launches, ranks, "pss_mib", name, figures["pss_mib"], "{:.0f} MiB")
            lines.append(f"| `{name}` | {' | '.join(cells)} | {memory} |")
        for name, why in launches.missing.items():
            lines.append(f"| `{name}` | {why} | | | | |")
    floor = statistics.median(launches.floor)
    lines += ["", f"The floor, `{FLOOR}` until it is imported: {floor:.2f} s."]
    for ranks in sorted(launches.taken):
        if ranks in READY_MAX:
            ready = statistics.median(launches.taken[ranks][WARM]["ready"])
            lines += ["", f"Warm with {ranks} ranks: ready after {ready / floor:.2f} times the floor."]
    return lines


def _cell(launches: Launches, ranks: int, figure: str, name: str, values: list[float], shape: str = "{:.2f} s") -> str:
    text = shape.format(statistics.median(values))
    return text if name == TORCHRUN else f"{text} ({launches.ratio(ranks, figure, name):.2f})"
