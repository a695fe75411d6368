"""The command line on machines that this one is not: macOS, Windows, with eight GPUs, or without torch.

On macOS and Windows what needs no Linux works, on an interpreter that lacks what they lack, and the rest says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.cli_calls import spawn
from tests.hosts.launching import clean_environment, run_and_read
from tests.machine.fake_nvml import FakeNvml
from tests.records.fake_runs import outcome, record

OTHER = Path(__file__).with_name("other_system.py")
LOG = """rank 0
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise ValueError("no such pet")
ValueError: no such pet
"""


def on(system: str, folder: Path, lines: Sequence[str]) -> Callable[..., str]:
    """Have one interpreter read these command lines; return a function of a line and its status: what it printed."""
    words = [line.split() for line in lines]
    command = [sys.executable, str(OTHER), system, json.dumps(words)]
    ran = run_and_read(command, folder, clean_environment(COLUMNS="100"))
    answers = dict(zip(lines, map(json.loads, ran.stdout.splitlines()), strict=True))

    def said(line: str, status: int = 0) -> str:
        ended, shown = answers[line]
        assert ended == status and "this is a bug" not in shown, shown
        return str(shown)

    return said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser().add_argument('--batch-size')\n")
    (tmp_path / "log.txt").write_text(LOG)
    (tmp_path / "train.sh").write_bytes(b"export A=1\r\ntorchrun --nproc-per-node 2 train.py\r\n")
    (tmp_path / "crlf.txt").write_bytes(LOG.replace("\n", "\r\n").encode())
    attempt = record(tmp_path / ".ddplaunch", "failed") / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    (attempt / "rank-0.out").write_text(LOG)
    outcome(attempt.parents[1], "failed", exit_status=1)
    return tmp_path


LINES = (
    "explain log.txt", "explain crlf.txt", "explain shm-too-small", "explain -", "explain nonsense",
    "plan 2 --batch-size 8 -- train.py", "convert -- torchrun --nproc-per-node 2 train.py",
    "convert train.sh", "help run", "doctor --list",
    "submit 2 --dry-run -- train.py", "run 2 -- train.py", "doctor", "top",
    "plan 2 --hosts a,b -- train.py", "explain failed", "ps", "ps --json", "logs failed", "report failed",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("system", "name"), [("darwin", "macOS"), ("win32", "Windows")])
def test_what_needs_no_linux_works_and_the_rest_says_so(folder: Path, system: str, name: str) -> None:
    said = on(system, folder, LINES)
    for log in ("log.txt", "crlf.txt"):
        assert "ValueError: no such pet" in said(f"explain {log}", 1)
    assert "shm-size" in said("explain shm-too-small") and "nothing failed in stdin" in said("explain -")
    assert "`nonsense` is not a code, run or file" in said("explain nonsense", 2)
    plan = said("plan 2 --batch-size 8 -- train.py")
    assert "train.py --batch-size 8" in plan and "probe failed" not in plan
    assert said("convert -- torchrun --nproc-per-node 2 train.py") == "ddplaunch run 2 -- train.py\n"
    assert "+ddplaunch run 2 -- train.py" in said("convert train.sh")
    assert "ddplaunch run" in said("help run") and "shm-too-small" in said("doctor --list")
    assert "#SBATCH" in said("submit 2 --dry-run -- train.py")
    refused = said("run 2 -- train.py", 4)
    assert f"error[not-on-linux]: this is {name}, where `run` does not work" in refused
    assert "nothing was launched" in refused and ("wsl --install" in refused) == (system == "win32")
    for line in ("doctor", "top", "plan 2 --hosts a,b -- train.py"):
        assert f"`{line.replace(' 2 ', ' ').partition(' a')[0]}` does not work" in said(line, 4)
    if system == "win32":  # where records are not read
        for line in ("ps", "logs failed", "report failed"):
            assert "error[not-on-linux]: this is Windows, where `" in said(line, 4)
        assert "is not a code, run or file" in said("explain failed", 2)
        return
    assert "no such pet" in said("explain failed", 1) and "no such pet" in said("logs failed")
    assert "failed" in said("ps") and json.loads(said("ps --json"))["runs"][0]["run_id"] == "failed"
    assert "is described in" in said("report failed")
    assert "failed" in (folder / "ddplaunch-failed.html").read_text(encoding="utf-8")


# With eight GPUs, and without torch

#: What these machines lack of the installed torch: CUDA, or a driver new enough for its CUDA.
ANY_TORCH = ["--device", "cuda", "--ignore", "torch-cpu-build-on-gpu-machine,driver-too-old"]


def test_scale_counts_the_gpus_that_a_launch_would_take(folder: Path, fake_nvml: FakeNvml) -> None:
    result = spawn(["scale", "9", "--gpus", "free:2", *ANY_TORCH, "--", "train.py"], folder, fake_nvml.environment(8))
    assert result.returncode == 2, result.stderr
    assert b"size 9 is too large for 2 GPUs" in result.stderr


@pytest.fixture
def torchless(tmp_path: Path) -> dict[str, str]:
    """Return the environment of an interpreter (started with -S) that has what ddplaunch needs, but not torch."""
    site = Path(sysconfig.get_path("purelib"))
    place = tmp_path / "torchless"
    place.mkdir()
    for entry in site.iterdir():
        if not entry.name.lower().startswith(("torch", "functorch")) and entry.suffix != ".pth":
            (place / entry.name).symlink_to(entry)
    return {"PYTHONPATH": f"{Path(__file__).parents[2]}:{place}"}


@pytest.mark.slow
def test_torch_is_missing(folder: Path, torchless: dict[str, str]) -> None:
    command = [sys.executable, "-S", "-m", "ddplaunch", "run", "2", "--", "train.py"]
    environment = {**os.environ, **torchless}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=240, check=False)
    assert result.returncode == 4, result.stderr
    assert b"torch-missing" in result.stderr
    assert f"{sys.executable} -m pip install torch".encode() in b" ".join(result.stderr.split())
    assert b"nothing was launched" in result.stderr
