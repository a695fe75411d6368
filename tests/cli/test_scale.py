"""`ddplaunch scale` on real ranks: each planted bottleneck is named, and what cannot be measured is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import runs_in
from tests.agent.guarded import until
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
_FINISH_S = 400
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PLANTED)
    return tmp_path


def words(sizes: str, *more: str, script: tuple[str, ...] = ()) -> list[str]:
    return ddplaunch("scale", sizes, *ANYWHERE, "--steps", "25", *more, "--", "train.py", *script)


def scale(folder: Path, command: list[str], status: int = 0) -> tuple[str, str]:
    environ = clean_environment(XDG_CACHE_HOME=str(folder.parent / "cache"))
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=_FINISH_S, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert not any(run.run_id.startswith("scale-") and within(run, folder) for run in runs_in(process_table()))
    return done.stdout, done.stderr


def within(run: Any, folder: Path) -> bool:
    return any(str(folder) in " ".join(each.command) or each.mark("PWD") == str(folder) for each in run.all)


@pytest.mark.slow
def test_what_is_planted_is_named(folder: Path) -> None:
    out, _ = scale(folder, words("2", "--json", script=("--planted", "late")))
    (two,) = json.loads(out)["sizes"]
    finding = two["verdict"]["finding"]
    assert finding["code"] == CODES["late"], two["verdict"]
    assert two["slowest_rank"] == 1 and "rank 1" in finding["what"]


@pytest.mark.slow
def test_sizes_side_by_side(folder: Path) -> None:
    command = words("1,2", "--batch-size", "8", "--base-lr", "0.1", "--dataset-size", "1000")
    out, err = scale(folder, command)
    assert err.count(" steps of ") == 2 and "1 process:" in err and "2 processes:" in err
    lines = {line[2:19].strip(): line[19:].split() for line in out.splitlines() if line.startswith("  ")}
    assert lines[""] == ["1", "process", "2", "processes"] and lines["effective batch"] == ["8", "16"]
    assert lines["learning rate"] == ["0.1", "0.2"] and lines["speed-up"][0] == "1.00"
    assert 1.4 < float(lines["speed-up"][1]) < 2.6, out
    assert err.count(": 25 steps of ") == 2, "as many as --steps says"
    assert "-bound]" not in out and "rank-late" not in out, "nothing is planted"
    assert "written by trials, and not kept: out/rank-0" in err
    assert sorted(path.name for path in folder.iterdir()) == [".ddplaunch", "train.py"]


@pytest.mark.slow
def test_what_was_cut_short_is_shown(folder: Path) -> None:
    command = words("1,2", "--timeout", "300")
    command[command.index("25")] = "100000"
    running = subprocess.Popen(
        command, cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    phases = ".ddplaunch/runs/*/node-0/attempt-0/rank-0.phases.jsonl"
    until(lambda: any(each.read_bytes().count(b"\n") > 120 for each in folder.glob(phases)), "many steps", 120)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130 and "1 process: " in out and "samples/s" in out, out + err
    assert "interrupted at size 1: `ddplaunch scale 1,2 …` measures the rest" in " ".join(err.split())
