"""Real scripts as ranks and as one process: planted mistakes are found, right scripts left alone, nothing written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.proving_scripts import SCRIPTS
from tests.hosts.launching import ANYWHERE, clean_environment, ddplaunch

ROOT = Path(__file__).parents[2]
CASES = (
    *("calls model.module", "gradients over world", "own sum loss", "never cleared", "no set_epoch", "clipped before"),
    *("evaluation of a part", "no_sync one off", "decay by rank", "tensors by a seed", "head replaced after"),
    *("cleared after its step", "statistics of ranks", "schedule of all", "mean over tokens", "noise of one"),
    *("ddp as it is", "lbfgs", "gradients divided after accumulation", "discriminator frozen"),
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_planted_mistakes_are_found_and_right_scripts_left_alone() -> None:
    argv = [sys.executable, "-m", "benchmarks.proving", "--no-write", "--check", *CASES]
    done = subprocess.run(argv, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| found | 17 |" in done.stdout and "| silent | 7 |" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_command_proves_a_script_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPTS["ddp"])
    (tmp_path / "model.pt").write_text("mine")
    argv = ddplaunch("prove", "2", *ANYWHERE, "--json", "--", "train.py")
    done = subprocess.run(argv, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    verdicts = {claim["subject"]: claim["verdict"] for claim in answer["claims"]}
    assert verdicts == dict.fromkeys(
        ("gradients", "replicas", "samples", "epochs", "evaluation", "files", "one process", "rates"), "right"
    )
    assert answer["steps"] == 6
    assert (tmp_path / "model.pt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".ddplaunch", "model.pt", "train.py"]
    assert not list((tmp_path / ".ddplaunch").glob("prove-*"))
