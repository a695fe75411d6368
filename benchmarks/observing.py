"""What looking at the first optimizer steps costs a rank, in pairs with one alone: ``python -m benchmarks.observing``.

The start of an interpreter, the import of torch with what is looked at, the first four optimizer steps, and the steps
after them. Each pair is one rank alone and one that is observed, in turns which of them comes first. What is told is
the median of the pairs' differences, in CPU time and beside it in wall time; where the quartiles lie on both sides of
0, the difference is smaller than the noise. CPU time is judged: whoever else uses the machine adds a few percent to
it, and to wall time whatever they take. Prints a table and writes benchmarks/results/observing.json and observing.md.
With ``--check`` a missed target is exit status 1.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import quantiles

from benchmarks.publishing import parser, publish
from benchmarks.timing import busy, machine
from ddplaunch.agent.rank_site import taking_part

START_MAX_MS, STEP_MAX = 5.0, 1.01
#: The CPU and the wall time of one rank, in milliseconds.
Taken = tuple[float, float]
#: Steps of the same work each, some 20 ms, timed from inside.
TRAIN = """
import statistics, time
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
taken = []
for _ in range(15):
    for (batch,) in DataLoader(TensorDataset(torch.randn(16, 8)), batch_size=4):
        began = time.process_time(), time.perf_counter()
        for _ in range(3000):
            model(batch)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        taken.append((time.process_time() - began[0], time.perf_counter() - began[1]))
first, later = zip(*taken[:4]), zip(*taken[4:])
print("STEPS", *(sum(each) * 1000 for each in first), *(statistics.median(each) * 1000 for each in later))
"""
IMPORTS = "import torch.utils.data, torch.nn.parallel"


def process(argv: Sequence[str], folder: Path) -> list[Taken]:
    """Return what a command took to its end. Raises RuntimeError if it fails: its time would mean nothing."""
    began = time.perf_counter()
    child = subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{argv[-1]} ended with status {child.returncode}")
    return [((usage.ru_utime + usage.ru_stime) * 1000, wall * 1000)]


def steps(argv: Sequence[str], folder: Path) -> list[Taken]:
    """Return what the first four steps of ``TRAIN`` took together, and one of the others."""
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True)
    cpu, wall, later_cpu, later_wall = map(float, done.stdout.split("STEPS")[1].split())
    return [(cpu, wall), (later_cpu, later_wall)]


def pairs(
    take: Callable[[Sequence[str], Path], list[Taken]],
    alone: Sequence[str],
    observed: Sequence[str],
    rounds: int,
    folder: Path,
) -> list[list[tuple[Taken, Taken]]]:
    """Return, for each thing that ``take`` times, ``rounds`` pairs of one alone and one observed.

    Every second pair begins with the other one; one more pair before them does not count.
    """
    found: list[list[tuple[Taken, Taken]]] = []
    for number in range(rounds + 1):
        order = (alone, observed) if number % 2 else (observed, alone)
        both = [take(argv, folder) for argv in order]
        found.append(list(zip(*(both if number % 2 else reversed(both)), strict=True)))
    return [list(each) for each in zip(*found[1:], strict=True)]


def summed_up(taken: Sequence[tuple[Taken, Taken]]) -> dict[str, float]:
    """Return the medians alone and observed, the median and quartiles of the differences, of CPU and wall time."""
    known = {}
    for index, what in enumerate(("cpu", "wall")):
        alone, observed = ([pair[which][index] for pair in taken] for which in (0, 1))
        known[f"{what}_alone"], known[f"{what}_observed"] = statistics.median(alone), statistics.median(observed)
        more = [b - a for a, b in zip(alone, observed, strict=True)]
        known[f"{what}_more_low"], known[f"{what}_more"], known[f"{what}_more_high"] = quantiles(more, n=4)
        known[f"{what}_ratio"] = statistics.median(b / a for a, b in zip(alone, observed, strict=True))
    return known


def table(figures: dict[str, dict[str, float]]) -> str:
    """Lay the figures out, in milliseconds."""
    lines = ["| ms | CPU alone | CPU more, median of pairs | its quartiles | wall alone | wall more |"]
    lines += ["|---|---|---|---|---|---|"]
    for what, one in figures.items():
        shown = f"{one['cpu_alone']:.2f} | {one['cpu_more']:+.2f} ({one['cpu_ratio'] - 1:+.2%}) | "
        shown += f"{one['cpu_more_low']:+.2f} to {one['cpu_more_high']:+.2f} | "
        shown += f"{one['wall_alone']:.2f} | {one['wall_more']:+.2f}"
        lines.append(f"| {what} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write, judge."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=20)
    args = arguments.parse_args()
    noise = busy()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        bare = {key: value for key, value in os.environ.items() if not key.startswith(("DDPLAUNCH", "PYTHON"))}
        inside = taking_part(bare, DDPLAUNCH_OBSERVE=folder / "note.json")
        rank = ("env", "-i", f"PATH={bare.get('PATH', '')}", "RANK=0", "WORLD_SIZE=1")
        others = taking_part(bare)  # what a rank takes part in even if it is not observed
        alone = (*rank, *(f"{key}={value}" for key, value in others.items()), sys.executable)
        seen = (*rank, *(f"{key}={value}" for key, value in inside.items()), sys.executable)

        def taken(
            take: Callable[[Sequence[str], Path], list[Taken]], words: Sequence[str], rounds: int
        ) -> list[list[tuple[Taken, Taken]]]:
            return pairs(take, (*alone, *words), (*seen, *words), rounds, folder)

        (start,) = taken(process, ("-c", "pass"), args.rounds * 5)
        (imports,) = taken(process, ("-c", IMPORTS), args.rounds)
        first, later = taken(steps, ("train.py",), max(5, args.rounds // 2))
        noted = (folder / "note.json").exists()
    kinds = {"start": start, "start and torch": imports, "first four steps": first, "a later step": later}
    figures = {what: summed_up(each) for what, each in kinds.items()}
    about = machine()
    head = f"{', '.join(f'{key} {value}' for key, value in about.items())}; others used {noise:.0%} of the CPUs before"
    value = {"machine": about, "others_use": round(noise, 3), "rounds": args.rounds, "ms": figures}
    publish("observing", f"{head}\n\n{table(figures)}\n", value, write=not args.no_write)
    more_ms, ratio = figures["start"]["cpu_more"], figures["a later step"]["cpu_ratio"]
    missed = [f"the start takes {more_ms:.1f} ms more, not {START_MAX_MS} at most"] * (more_ms > START_MAX_MS)
    missed += [f"a step takes {ratio:.4f} times as long, not {STEP_MAX} at most"] * (ratio > STEP_MAX)
    missed += ["nothing was noted"] * (not noted)
    print("\n".join(missed) or "all targets are met")
    sys.exit(1 if args.check and missed else 0)


if __name__ == "__main__":
    main()
