"""Real scripts as ranks and as one process: planted mistakes are found, right scripts left alone, nothing written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.proving_scripts import SCRIPTS
from tests.hosts.launching import ANYWHERE, clean_environment, ddplaunch, run_to_end

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MISTAKES = ("own sum loss", "no set_epoch", "of a part", "no_sync one", "noise of one", "by a method", "state of")
WITH_RIGHT = ("passes added", "uneven", "mean over tokens", "statistics of rank", "schedule of all", "lbfgs", "annot")


@pytest.mark.timeout(1800)
def test_planted_mistakes_are_found_and_right_scripts_left_alone() -> None:
    argv = [sys.executable, "-m", "benchmarks.proving", "--no-write", "--check", *MISTAKES, *WITH_RIGHT]
    done = subprocess.run(argv, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| found | 17 |" in done.stdout and "| silent | 9 |" in done.stdout


RUN = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
model = DistributedDataParallel(model)
torch.manual_seed(dist.get_rank())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
    time.sleep(1)  # the guard looks every two seconds
dist.destroy_process_group()
"""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("DistributedDataParallel(model)", "right gradients: the mean over 2 ranks at 3 steps"),
        ("model", "error[gradients-not-averaged]: the gradients of weight, bias differ between"),
    ],
)
def test_a_run_measures_its_first_steps_and_trains_the_same(tmp_path: Path, model: str, expected: str) -> None:
    (tmp_path / "train.py").write_text(RUN.replace("DistributedDataParallel(model)", model))
    losses = []
    for words in ((), ("--prove", "--no-observe")):
        argv = ddplaunch("run", "2", *ANYWHERE, *words, "--", "train.py")
        status, printed = run_to_end(argv, tmp_path, clean_environment(), 900)
        assert status == 0 and printed.count(expected) == len(words) // 2, printed  # once, not at the end again
        losses.append([line for line in printed.splitlines() if line.startswith("loss ")])
    assert len(losses[0]) == 5 and losses[0] == losses[1]


@pytest.mark.timeout(1800)
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there are GPUs")
def test_the_command_proves_a_script_that_insists_on_cuda_and_writes_nothing(tmp_path: Path) -> None:
    script = SCRIPTS["ddp"].replace(
        '"gloo")', '"nccl", device_id=torch.device("cuda", 0))\ntorch.set_default_device("cuda")'
    )
    script = script.replace("DDP(net)", "DDP(net.cuda(), device_ids=[0])").replace("model(x)", "model(x.to(0))")
    assert script.count("cuda") == 3 and script.count("to(0)") == 2
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "model.pt").write_text("mine")
    once = ("--start", "warm", "--preload", "torch._dynamo")  # DistributedDataParallel imports it, for two seconds
    argv = ddplaunch("prove", "2", "--ignore", "cpus-short", *once, "--json", "--", "train.py")
    done = subprocess.run(argv, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    verdicts = {claim["subject"]: claim["verdict"] for claim in answer["claims"]}
    assert verdicts.pop("CUDA") == "open"
    assert verdicts == dict.fromkeys(("gradients", "replicas", "samples", "epochs", "one process", "rates"), "right")
    assert answer["steps"] == 6
    assert (tmp_path / "model.pt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".ddplaunch", "model.pt", "train.py"]
    assert not list((tmp_path / ".ddplaunch").glob("prove-*"))
