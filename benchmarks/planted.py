"""Whether `scale` names a planted bottleneck, run after run: ``python -m benchmarks.planted``.

A script with one of six faults, or without one, is measured in turns at whatever load the machine has, which is told
beside. Prints a table and writes benchmarks/results/planted.json and planted.md after each round. With ``--check`` a
bottleneck that was not named in every run is exit status 1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.publishing import parser, publish
from benchmarks.timing import machine
from tests.hosts.launching import ANYWHERE, clean_environment, ddplaunch

#: A model that sleeps is as fast on a busy machine as on an idle one; what is planted is what a rank really does.
PLANTED = """
import argparse, os, time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
parser = argparse.ArgumentParser()
parser.add_argument("--planted", default="nothing")
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--steps", type=int, default=100000)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--out-dir", default="out")
arguments = parser.parse_args()
planted = arguments.planted
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(16 if planted == "threads" else 1)

class Samples(Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, index):
        if planted == "input":
            time.sleep(0.02)
        return torch.ones(8)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        wide = 6_000_000 if planted == "communication" else 8
        self.wide = torch.nn.Parameter(torch.zeros(wide))
        self.square = torch.ones(512, 512)
        self.large = torch.nn.Linear(1024, 1024) if planted == "threads" else None
        self.one = torch.nn.Linear(8, 1)
    def forward(self, batch):
        if planted == "threads":
            return self.large(torch.ones(2048, 1024)).sum() + self.one(batch).sum() + self.wide.sum()
        if planted == "cpus":
            torch.mm(self.square, self.square)
        elif planted == "saving" and rank == 0:
            time.sleep(0.03)
        elif planted not in ("communication", "input"):
            time.sleep(0.08 if planted == "late" and rank == 1 else 0.03)
        return self.one(batch).sum() + self.wide[0] * 0.0

model = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=100)
optimizer = torch.optim.SGD(model.parameters(), arguments.lr)
os.makedirs(arguments.out_dir, exist_ok=True)
open(os.path.join(arguments.out_dir, f"rank-{rank}"), "w").close()
loader = DataLoader(Samples(), arguments.batch_size)
for done, batch in enumerate(loader):
    if done == arguments.steps:
        break
    optimizer.zero_grad(set_to_none=False)
    model(batch).backward()
    optimizer.step()
    if planted == "saving" and rank == 0:
        time.sleep(0.06)  # it logs, or saves, while the others wait
dist.barrier()
os._exit(0)
"""
#: What is planted, and the verdict on it.
CODES = {
    "input": "input-bound",
    "communication": "communication-bound",
    "late": "rank-late",
    "saving": "rank-late",
    "threads": "threads-exceed-cpus",
    "cpus": "cpus-used-up",
    "nothing": None,
}
#: More ranks than CPUs, each with one thread.
SIZE_OF = {"cpus": str(2 * (os.cpu_count() or 1))}
DEADLINE_S = 300


def named(planted: str) -> str:
    """Return the code of the verdict on a script, "none" where nothing holds it back, or how `scale` failed."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "train.py").write_text(PLANTED)
        size = SIZE_OF.get(planted, "2")
        argv = ddplaunch("scale", size, *ANYWHERE, "--steps", "25", "--json", "--", "train.py", "--planted", planted)
        done = subprocess.run(
            argv, cwd=name, env=clean_environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        if done.returncode != 0:
            return f"exit status {done.returncode}"
        (one,) = json.loads(done.stdout)["sizes"]
        finding = one["verdict"]["finding"]
        return "none" if finding is None else str(finding["code"])


def table(found: dict[str, list[str]], loads: list[float]) -> str:
    """Return how often each was named, and what else was."""
    lines = [f"{', '.join(machine().values())}; load {min(loads):.0f} to {max(loads):.0f}", ""]
    lines += ["| planted | verdict wanted | named | instead |", "|---|---|---|---|"]
    for planted, answers in found.items():
        wanted = CODES[planted] or "none"
        others = ", ".join(sorted({each for each in answers if each != wanted}))
        lines.append(f"| {planted} | {wanted} | {answers.count(wanted)} of {len(answers)} | {others} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Measure and write."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=10)
    asked = arguments.parse_args()
    found: dict[str, list[str]] = {planted: [] for planted in CODES}
    loads = []
    for _ in range(asked.rounds):
        for planted, answers in found.items():
            loads.append(os.getloadavg()[0])
            answers.append(named(planted))
        value = {"named": found, "load": [min(loads), max(loads)]}
        publish("planted", table(found, loads), value, write=not asked.no_write)
    wrong = [each for planted, answers in found.items() for each in answers if each != (CODES[planted] or "none")]
    return int(asked.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
