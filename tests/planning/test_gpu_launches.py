"""Launches on a machine of eight fake GPUs: what ranks see, and launches at once that must not meet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.guarded import until

if TYPE_CHECKING:
    from tests.machine.fake_nvml import FakeNvml

pytest_plugins = ("tests.machine.fake_nvml",)
pytestmark = pytest.mark.slow

SHOW = """
import os, pathlib, time
told = os.environ["CUDA_VISIBLE_DEVICES"] + " " + os.environ["MASTER_PORT"]
pathlib.Path(os.environ["RANK"] + "-" + os.environ["DDPLAUNCH_RUN_ID"]).write_text(told)
end = time.time() + 270
while not pathlib.Path("go").exists() and time.time() < end:
    time.sleep(0.1)
"""
DEADLINE_S = 240


def launch(tmp_path: Path, environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    words = [*options, "--ignore", "torch-cpu-build-on-gpu-machine", "--", "show.py"]
    return subprocess.Popen(
        [sys.executable, "-m", "ddplaunch", "run", *words],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_launches_at_once_get_gpus_ports_and_records_of_their_own(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    environment = fake_nvml.environment(8, ["0 process 1 40000", "0 memory 81559 40004"])
    environment["DDPLAUNCH_LOCK_DIR"] = str(tmp_path / "locks")
    processes = [launch(tmp_path, environment, "2", "--gpus", "free:2") for _ in range(2)]
    until(
        lambda: len(list(tmp_path.glob("[0-9]-*"))) == 4 or any(each.poll() is not None for each in processes),
        "every rank has said what it sees",
        DEADLINE_S,
    )
    (tmp_path / "go").touch()
    for process in processes:
        _, error = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, error
    runs = {path.name[2:]: path.read_text().split() for path in tmp_path.glob("0-*")}
    names = [name for devices, _ in runs.values() for name in devices.split(",")]
    assert len(runs) == 2 and len(set(names)) == 4, runs
    assert "0" not in names, "GPU 0 is busy"
    assert len({port for _, port in runs.values()}) == 2, "their stores are open at the same time"
    records = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob(".ddplaunch/runs/*/run.json")}
    assert {name: record["run_id"] for name, record in records.items()} == {name: name for name in runs}
    assert (tmp_path / ".ddplaunch" / "latest").resolve().name in runs
    assert not list((tmp_path / ".ddplaunch").glob(".*.*"))  # no draft of a link or a record is left
