"""`ddplaunch fit` with real trials on the CPU: each rank may have so much memory and no more."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.launching import clean_environment, ddplaunch

pytestmark = pytest.mark.slow
#: Trains one of the models below.
TRAINING = """
import argparse, os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--grad-accum", type=int, default=1)
args = parser.parse_args()
dist.init_process_group("gloo")
MODEL
optimizer = torch.optim.SGD(model.parameters(), args.lr)
data = torch.utils.data.TensorDataset(torch.randn(1000, *shape))
sampler = torch.utils.data.distributed.DistributedSampler(data)
step = 0
while step < 400:
    for (batch,) in torch.utils.data.DataLoader(data, args.batch_size, sampler=sampler, drop_last=True):
        step += 1
        (model(batch).square().mean() / args.grad_accum).backward()
        if step % args.grad_accum == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
MODELS = {
    "linear": """
class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(16, 1 << 18, bias=False)
    def forward(self, x):
        return torch.relu(self.line(x)) * 2
model, shape = DistributedDataParallel(Wide()), (16,)
""",
    "transformer": """
layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
model, shape = DistributedDataParallel(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)), (64, 64)
""",
}


def fit(
    folder: Path, *words: str, script: tuple[str, ...] = ("train.py",)
) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Return how it ended, and its JSON."""
    command = ddplaunch("fit", *words, "--start", "warm", "--json", "--", *script)  # cold takes twice as long
    environ = clean_environment(NO_COLOR="1", COLUMNS="120", OMP_NUM_THREADS="1")
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=900)
    return done, json.loads(done.stdout) if done.stdout.startswith("{") else None


def test_the_largest_batch_is_found_in_few_trials(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING.replace("MODEL", MODELS["transformer"]))
    words = ("1", "--device", "cpu", "--memory", "500MiB", "--steps", "5")
    done, found = fit(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    best = found["best"]
    assert best["peak_bytes"] <= 0.9 * (500 << 20) and best["limit_bytes"] == 500 << 20
    assert len(found["trials"]) <= 8
    assert found["command"]["words"][:2] == ["ddplaunch", "run"]
    assert f"{found['fastest']['batch']}" in found["command"]["words"]
    # nothing fits that takes by far more than all of the memory for its samples, as the model has it
    model = found["model"]
    over = int(1.25 * ((500 << 20) - model["fixed_bytes"]) / model["sample_bytes"])
    too_large = ("1", "--device", "cpu", "--memory", "500MiB", "--batch-size", str(over), "--timeout", "2m")
    environ = clean_environment(NO_COLOR="1", OMP_NUM_THREADS="1")
    ran = subprocess.run(ddplaunch("run", *too_large, "--", "train.py"), cwd=tmp_path, env=environ, timeout=300)
    assert ran.returncode != 0


def test_any_failure_where_memory_ends_is_one_of_memory(tmp_path: Path) -> None:
    """As of oneDNN, which says `could not create a primitive` when malloc gives it nothing."""
    refused = """
    if args.batch_size > 3 and step == 3:
        import resource
        has = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData:")) * 1024
        rest = torch.ones(int(0.96 * resource.getrlimit(resource.RLIMIT_DATA)[0] - has) // 4)
    if args.batch_size > 3 and step == 10:
        raise RuntimeError("could not create a primitive")
"""
    script = TRAINING.replace("MODEL", MODELS["linear"]).replace(
        "        step += 1\n", "        step += 1" + refused.replace("\n", "\n    ")
    )
    (tmp_path / "train.py").write_text(script)
    words = ("1", "--device", "cpu", "--memory", "600MiB", "--batch-size", "8", "--steps", "6")
    done, found = fit(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(each["tried"]["batch"], each["tried"]["ran"]) for each in found["trials"][:2]] == [(8, False), (2, True)]
    assert found["trials"][0]["note"] == "failed (script-exception) where memory ends"


def test_an_effective_batch_is_kept_exactly(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING.replace("MODEL", MODELS["linear"]))
    words = ("2", "--device", "cpu", "--memory", "700MiB", "--global-batch-size", "24", "--steps", "6")
    done, found = fit(tmp_path, *words, "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    assert {each["accum"] * each["tried"]["batch"] * 2 for each in found["trials"]} == {24}
    assert found["best"]["peak_bytes"] <= 0.9 * (700 << 20)
    command = found["command"]
    text = " ".join(command["words"])
    assert command["same"] and command["effective"] == 24
    assert " --lr 0.1 " in text and "base-" not in text, "the effective batch is the same, and so is the rate"
    assert f" --batch-size {command['batch']} --accum {12 // command['batch']} -- train.py" in text


def test_a_script_that_trains_another_batch_than_it_is_given(tmp_path: Path) -> None:
    wrong = TRAINING.replace("MODEL", MODELS["linear"]).replace(
        "(data, args.batch_size,", "(data, min(3, args.batch_size),"
    )
    (tmp_path / "train.py").write_text(wrong)
    done, found = fit(tmp_path, "1", "--device", "cpu", "--memory", "1GiB", "--batch-size", "8", "--steps", "5")
    assert done.returncode == 1
    assert found["problem"]["code"] == "batch-not-taken" and "one of 3" in found["problem"]["what"]


def test_a_script_that_ends_early_has_its_memory_measured(tmp_path: Path) -> None:
    short = TRAINING.replace("MODEL", MODELS["linear"]).replace("step < 400", "step < 1").replace("1000", "40")
    (tmp_path / "train.py").write_text(short)
    done, found = fit(tmp_path, "1", "--device", "cpu", "--memory", "1GiB", "--batch-size", "32", "--timeout", "3m")
    assert done.returncode == 0, done.stderr  # no batch of more than 40 was tried, which makes no step
    assert found["trials"][0]["note"] == "it ended after 1 step"
    assert found["best"]["peak_bytes"] > 100 << 20
    assert 32 <= found["best"]["batch"] <= found["most"] == 40


def test_a_batch_larger_than_the_data_is_not_waited_for(tmp_path: Path) -> None:
    few = TRAINING.replace("MODEL", MODELS["linear"]).replace("1000", "40")
    (tmp_path / "train.py").write_text(few)
    words = ("1", "--device", "cpu", "--memory", "1GiB", "--batch-size", "64", "--timeout", "9m")
    done, found = fit(tmp_path, *words)
    assert done.returncode == 1 and found["problem"]["code"] == "trial-without-samples", done.stderr
    assert "`drop_last=True` leaves nothing" in found["problem"]["why"]
