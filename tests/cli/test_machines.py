"""The command line on machines that this one is not: with eight GPUs or without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.cli.cli_calls import spawn
from tests.machine.fake_nvml import FakeNvml, fake_nvml, fake_nvml_library

__all__ = ["fake_nvml", "fake_nvml_library"]
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
@pytest.mark.parametrize(("words", "status"), [(["run", "2"], 4), (["doctor", "2"], 1)])
def test_torch_is_missing(folder: Path, torchless: dict[str, str], words: list[str], status: int) -> None:
    command = [sys.executable, "-S", "-m", "ddplaunch", *words, "--", "train.py"]
    environment = {**os.environ, **torchless}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=240, check=False)
    assert result.returncode == status, result.stderr
    assert b"torch-missing" in result.stderr + result.stdout
    assert f"{sys.executable} -m pip install torch".encode() in b" ".join((result.stderr + result.stdout).split())
    assert not (folder / ".ddplaunch").exists()
