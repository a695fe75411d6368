"""The command line on machines that this one is not: with eight GPUs, without torch, with a full or closed disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.cli.cli_calls import folder, spawn
from tests.machine.fake_nvml import FakeNvml, fake_nvml, fake_nvml_library

__all__ = ["fake_nvml", "fake_nvml_library", "folder"]
#: What these machines lack of the installed torch: CUDA, or a driver new enough for its CUDA.
ANY_TORCH = ["--device", "cuda", "--ignore", "torch-cpu-build-on-gpu-machine,driver-too-old"]


def test_gpus_count_within_what_is_visible_and_the_plan_says_so(folder: Path, fake_nvml: FakeNvml) -> None:
    environment = {**fake_nvml.environment(8), "CUDA_VISIBLE_DEVICES": "6,7"}
    result = spawn(["plan", "1", "--gpus", "1", *ANY_TORCH, "--json", "--", "train.py"], folder, environment)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert "error" not in [finding["severity"] for finding in document["findings"]]
    variables = {each["name"]: each["value"] for each in document["environment"]}
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["CUDA_DEVICE_ORDER"]) == ("7", "PCI_BUS_ID")
    assert document["notes"] == [
        "`--gpus` counts positions in CUDA_VISIBLE_DEVICES=6,7 from the shell's environment; nvidia-smi's numbers are 7"
    ]


def test_scale_counts_the_gpus_that_a_launch_would_take(folder: Path, fake_nvml: FakeNvml) -> None:
    result = spawn(["scale", "9", "--gpus", "free:2", *ANY_TORCH, "--", "train.py"], folder, fake_nvml.environment(8))
    assert result.returncode == 2, result.stderr
    assert b"size 9 is too large for 2 GPUs" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (["9"], 4, "more-processes-than-gpus"),
        (["9", "--gpus", "free:9"], 4, "gpus-too-few"),
    ],
)
def test_gpus_that_are_not_there(folder: Path, fake_nvml: FakeNvml, words: list[str], status: int, code: str) -> None:
    environment = fake_nvml.environment(8)
    result = spawn(["run", *words, *ANY_TORCH, "--", "train.py"], folder, environment)
    assert result.returncode == status, result.stderr
    assert f"error[{code}]".encode() in result.stderr and b"nothing was launched" in result.stderr
    assert not (folder / ".ddplaunch").exists()


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
@pytest.mark.parametrize(("words", "status"), [(["run", "2"], 4), (["doctor", "2"], 1)])
def test_torch_is_missing(folder: Path, torchless: dict[str, str], words: list[str], status: int) -> None:
    command = [sys.executable, "-S", "-m", "ddplaunch", *words, "--", "train.py"]
    environment = {**os.environ, **torchless}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=240, check=False)
    assert result.returncode == status, result.stderr
    assert b"torch-missing" in result.stderr + result.stdout
    assert f"{sys.executable} -m pip install torch".encode() in b" ".join((result.stderr + result.stdout).split())
    assert not (folder / ".ddplaunch").exists()


@pytest.mark.slow
def test_a_record_that_cannot_be_written_stops_nothing(folder: Path) -> None:
    """Root may write anywhere: a directory below a file stands for a read-only one."""
    result = spawn(["run", "2", "--run-dir", "train.py/runs", "--no-quiet", "--", "train.py"], folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(b"rank ") == 1  # rank 0 alone is shown
    assert b"record  none: " in result.stderr
