"""`ddplaunch fit` with real trials on the CPU: each rank may have so much memory and no more."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_calls import NO_COMPILER
from tests.hosts.launching import clean_environment, ddplaunch

pytestmark = pytest.mark.slow
#: How a script of `fit` begins: it takes the numbers that are tried.
BEGINNING = """
import argparse, torch
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--grad-accum", type=int, default=1)
args = parser.parse_args()
dist.init_process_group("gloo")
"""
TRAINING = (
    BEGINNING
    + NO_COMPILER
    + """
model = torch.nn.Linear(16, 1 << 12, bias=False)
optimizer = torch.optim.SGD(model.parameters(), args.lr)
data = torch.utils.data.TensorDataset(torch.randn(1000, 16))
sampler = torch.utils.data.distributed.DistributedSampler(data)
step = 0
while step < 400:
    for (batch,) in torch.utils.data.DataLoader(data, args.batch_size, sampler=sampler, drop_last=True):
        step += 1
        ((torch.relu(model(batch)) * 2).square().mean() / args.grad_accum).backward()
        if step % args.grad_accum == 0:
            dist.all_reduce(model.weight.grad)
            optimizer.step()
            optimizer.zero_grad()
"""
)


def fit(
    folder: Path, *words: str, script: tuple[str, ...] = ("train.py",)
) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Return how it ended, and its JSON."""
    command = ddplaunch("fit", *words, "--start", "warm", "--json", "--", *script)  # cold takes twice as long
    environ = clean_environment(NO_COLOR="1", COLUMNS="120", OMP_NUM_THREADS="1")
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=900)
    return done, json.loads(done.stdout) if done.stdout.startswith("{") else None


def test_the_largest_batch_is_found_in_few_trials(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING.replace("1 << 12", "1 << 19"))  # a sample takes some 40 MiB
    words = ("1", "--device", "cpu", "--memory", "600MiB", "--batch-size", "4", "--steps", "5")
    done, found = fit(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    best = found["best"]
    assert best["peak_bytes"] <= 0.9 * (600 << 20) and best["limit_bytes"] == 600 << 20
    assert 2 <= len(found["trials"]) <= 8 and best["batch"] > 4
    assert found["command"]["words"][:2] == ["ddplaunch", "run"]
    assert f"{found['fastest']['batch']}" in found["command"]["words"]


def test_any_failure_where_memory_ends_is_one_of_memory(tmp_path: Path) -> None:
    """As of oneDNN, which says `could not create a primitive` when malloc gives it nothing."""
    refused = """        step += 1
        if args.batch_size > 3 and step == 3:
            import resource
            has = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData:")) * 1024
            torch.ones(int(0.96 * resource.getrlimit(resource.RLIMIT_DATA)[0] - has) // 4)
        if args.batch_size > 3 and step == 10:
            raise RuntimeError("could not create a primitive")
"""
    (tmp_path / "train.py").write_text(TRAINING.replace("        step += 1\n", refused))
    words = ("1", "--device", "cpu", "--memory", "600MiB", "--global-batch-size", "5", "--steps", "6")
    done, found = fit(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(each["tried"]["batch"], each["tried"]["ran"]) for each in found["trials"]] == [(5, False), (1, True)]
    assert found["trials"][0]["note"] == "failed (script-exception) where memory ends"


def test_an_effective_batch_is_kept_exactly(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    words = ("2", "--device", "cpu", "--memory", "700MiB", "--global-batch-size", "8", "--steps", "6")
    done, found = fit(tmp_path, *words, "--batch-size", "4", "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    assert [(each["accum"], each["tried"]["batch"]) for each in found["trials"]] == [(1, 4), (2, 2)]
    assert found["best"]["peak_bytes"] <= 0.9 * (700 << 20)
    command = found["command"]
    text = " ".join(command["words"])
    assert command["same"] and command["effective"] == 8
    assert " --lr 0.1 " in text and "base-" not in text, "the effective batch is the same, and so is the rate"
    assert f" --batch-size {command['batch']} --accum {4 // command['batch']} -- train.py" in text


def test_a_script_that_trains_another_batch_than_it_is_given(tmp_path: Path) -> None:
    wrong = TRAINING.replace("(data, args.batch_size,", "(data, min(3, args.batch_size),")
    (tmp_path / "train.py").write_text(wrong)
    done, found = fit(tmp_path, "1", "--device", "cpu", "--memory", "1GiB", "--batch-size", "8", "--steps", "5")
    assert done.returncode == 1
    assert found["problem"]["code"] == "batch-not-taken" and "one of 3" in found["problem"]["what"]


def test_a_script_that_ends_early_has_its_memory_measured(tmp_path: Path) -> None:
    short = TRAINING.replace("step < 400", "step < 1").replace("1000", "40")
    (tmp_path / "train.py").write_text(short)
    done, found = fit(tmp_path, "1", "--device", "cpu", "--memory", "1GiB", "--batch-size", "40", "--timeout", "3m")
    assert done.returncode == 0, done.stderr
    (only,) = found["trials"]  # more than 40 make no step
    assert only["note"] == "it ended after 1 step"
    assert found["best"]["peak_bytes"] > 100 << 20 and found["best"]["batch"] == found["most"] == 40


def test_a_batch_larger_than_the_data_is_not_waited_for(tmp_path: Path) -> None:
    few = TRAINING.replace("1000", "40")
    (tmp_path / "train.py").write_text(few)
    words = ("1", "--device", "cpu", "--memory", "1GiB", "--batch-size", "64", "--timeout", "9m")
    done, found = fit(tmp_path, *words)
    assert done.returncode == 1 and found["problem"]["code"] == "trial-without-samples", done.stderr
    assert "`drop_last=True` leaves nothing" in found["problem"]["why"]
