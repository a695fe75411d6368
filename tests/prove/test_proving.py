"""Real scripts as ranks and as one process: planted mistakes are found, right scripts left alone, nothing written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.proving_scripts import SCRIPTS
from tests.hosts.launching import clean_environment, ddplaunch

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MISTAKES = ("own sum loss", "no set_epoch", "of a part", "no_sync one", "noise of one", "by a method", "state of")
WITH_RIGHT = ("passes added", "uneven", "mean over tokens", "statistics of ranks", "schedule of all", "lbfgs")


@pytest.mark.timeout(1800)
def test_planted_mistakes_are_found_and_right_scripts_left_alone() -> None:
    argv = [sys.executable, "-m", "benchmarks.proving", "--no-write", "--check", *MISTAKES, *WITH_RIGHT]
    done = subprocess.run(argv, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| found | 15 |" in done.stdout and "| silent | 8 |" in done.stdout


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
