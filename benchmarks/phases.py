"""What measuring the phases of every step costs a rank, in turns with one alone: ``python -m benchmarks.phases``.

A rank with DistributedDataParallel and a DataLoader makes steps of some 20 ms, most of which it spins; what a step
takes beside that is compared, in CPU time of the thread that trains, so that other programs count little. Prints a
table and writes benchmarks/results/phases.json and phases.md. With ``--check`` a missed target is exit status 1.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.publishing import parser, publish
from benchmarks.timing import busy, machine
from ddplaunch.agent.rank_site import taking_part
from ddplaunch.watch.phases import read_phases

STEP_MAX, STEP_MS, STEPS = 1.01, 20.0, 300
TRAIN = f"""
import os, statistics, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
taken, ended = [], time.thread_time()
for (batch,) in DataLoader(TensorDataset(torch.randn(4 * {STEPS}, 8)), batch_size=4):
    began, cpu = time.perf_counter(), time.thread_time()
    while time.perf_counter() - began < {STEP_MS / 1000}:
        pass
    spun = time.thread_time() - cpu
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    now = time.thread_time()
    taken.append(now - ended - spun)
    ended = now
print("STEP", statistics.median(taken[20:]), loss.item().hex(), flush=True)
os._exit(0)
"""


def beside_ms(python: tuple[str, ...], folder: Path) -> tuple[float, str]:
    """Return the milliseconds of a median step beside its spinning, and the last loss."""
    done = subprocess.run((*python, "train.py"), cwd=folder, capture_output=True, text=True, check=True)
    taken, loss = done.stdout.split("STEP")[1].split()
    return float(taken) * 1000, loss


def main() -> None:
    """Measure, print, write, judge."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    args = arguments.parse_args()
    noise = busy()
    found: dict[str, list[tuple[float, str]]] = {"alone": [], "measured": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        bare = {key: value for key, value in os.environ.items() if not key.startswith(("DDPLAUNCH", "PYTHON"))}
        path = folder / "rank-0.phases.jsonl"
        inside = taking_part(bare, DDPLAUNCH_PHASES=path)
        python = {
            "alone": ("env", "DDPLAUNCH=", sys.executable, "-W", "ignore"),
            "measured": ("env", *(f"{key}={value}" for key, value in inside.items()), sys.executable, "-W", "ignore"),
        }
        for number in range(args.rounds):
            for how in python if number % 2 == 0 else reversed(python):
                path.unlink(missing_ok=True)
                found[how].append(beside_ms(python[how], folder))
                lines = len(read_phases(folder, [0])[0].lines) if how == "measured" else STEPS - 1
    medians = {how: statistics.median(ms for ms, _ in each) for how, each in found.items()}
    ratio = (STEP_MS + medians["measured"]) / (STEP_MS + medians["alone"])
    about = machine()
    told = [f"{', '.join(f'{key} {value}' for key, value in about.items())}; others used {noise:.0%} of the CPUs", ""]
    told += ["| ms of a 20 ms step, median | alone | measured | the step takes |", "|---|---|---|---|"]
    told += [
        f"| beside the spinning | {medians['alone']:.3f} | {medians['measured']:.3f} | {ratio:.4f} times as long |"
    ]
    publish(
        "phases", "\n".join(told) + "\n", {"machine": about, "ms": medians, "ratio": ratio}, write=not args.no_write
    )
    missed = [f"a step takes {ratio:.4f} times as long, not {STEP_MAX} at most"] * (ratio > STEP_MAX)
    missed += ["the losses differ"] * (len({loss for each in found.values() for _, loss in each}) > 1)
    missed += [f"{lines} of {STEPS - 1} steps are on disk"] * (lines < STEPS - 30)
    print("\n".join(missed) or "all targets are met")
    sys.exit(1 if args.check and missed else 0)


if __name__ == "__main__":
    main()
