"""``ddplaunch.launch`` with real ranks: what it returns and raises, and that nothing outlives who launched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from ddplaunch import LaunchRefused, Outcome, RunFailed, launch
from ddplaunch.api.child import held_folder
from ddplaunch.records.find import read_record, run_directories
from ddplaunch.records.own.own_files import LOCK_ALONE, closing, try_lock
from tests.agent.guarded import ROOT, until

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

TRAIN = """
import argparse, os, shutil, time
import ddplaunch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--fail", action="store_true")
arguments = parser.parse_args()
rank = int(os.environ["RANK"])
print(f"rank {rank} has {arguments.batch_size}", flush=True)
if arguments.fail:
    time.sleep(120 * (rank != 1))
    raise ValueError("no luck")
for step in range(3):
    ddplaunch.log_metrics({"val_loss": 1 / (step + 1), "rank": rank}, step=step)
if rank == 0:  # as what tidies /tmp does
    shutil.rmtree(os.path.dirname(os.environ["DDPLAUNCH_TOLD"].partition(":")[2]))
"""
WAITS = """
import os
from ddplaunch import launch

def wait(name="rank-{RANK}"):
    import time
    with open(name.format_map(os.environ), "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600 * (name != "launcher"))

wait("launcher")
launch(wait, nproc=2, grace=1)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script_gets_its_numbers_and_gives_its_metrics(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = launch("train.py", nproc=2, batch_size=8, run_id="first")
    assert (outcome.status, outcome.run_id, outcome.diagnosis) == (0, "first", None)
    assert outcome.record == project / ".ddplaunch" / "runs" / "first"
    assert outcome.metrics == {"val_loss": pytest.approx(1 / 3), "rank": 0.0}
    assert outcome.run is not None and [each.exit_code for each in outcome.run.last_ranks] == [0, 0]
    out, err = capsys.readouterr()
    assert out == "rank 0 has 8\n"
    assert "batch   8? per process × 1? accumulation × 2 processes" in err  # nothing trains on it


def test_what_tidies_the_temporary_folder_finds_it_locked() -> None:
    with held_folder() as folder, closing(os.open(folder, os.O_RDONLY)) as other:
        assert not try_lock(other, LOCK_ALONE)
        (folder / "x").touch()
    assert not folder.exists()
    with held_folder() as folder:
        shutil.rmtree(folder)


def test_a_failure_has_its_diagnosis(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is raised in the cells and blocks of the documents (``test_notebook.py``); this program wants it returned."""
    outcome = launch("train.py", 2, args=["--fail"], show_output=False, check=False)
    assert isinstance(outcome, Outcome) and outcome.diagnosis is not None
    assert (outcome.status, outcome.diagnosis.code, outcome.diagnosis.rank) == (1, "script-exception", 1)
    assert "ValueError: no luck at train.py" in str(RunFailed(outcome))
    assert capsys.readouterr() == ("", "")


def test_a_refusal_has_the_findings_of_the_command(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LaunchRefused) as refused:
        launch("nowhere.py", 2)
    assert refused.value.exit_status == 2
    with pytest.raises(LaunchRefused) as refused:
        launch("train.py", 2, data="nowhere")
    assert "--ignore" not in capfd.readouterr().err, "the exception tells it, in Python"
    command = [sys.executable, "-m", "ddplaunch", "run", "2", "--data", "nowhere", "--", "train.py"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert said.returncode == refused.value.exit_status == 4
    codes = [each.code for each in refused.value.findings]
    assert codes and all(f"[{code}]" in said.stderr for code in codes) and "  fix: " in str(refused.value)
    assert not (project / ".ddplaunch" / "runs").exists()


def test_a_function_returns_what_its_ranks_return(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    offset = 10

    def added(number: int, times: int = 1) -> tuple[int, str]:
        return number * times + offset, os.environ["RANK"]

    everyone = launch(added, 2, args=[3], kwargs={"times": 2}, all_ranks=True)
    assert everyone == [(16, "0"), (16, "1")]
    assert "run     added() on 2 processes" in capfd.readouterr().err
    assert [record.script for record in map(read_record, run_directories(project / ".ddplaunch"))] == ["added()"]


def test_what_cannot_travel_is_said(project: Path) -> None:
    with pytest.raises(TypeError, match="pickle"):
        launch(print, 1, args=[threading.Lock()], show_output=False)
    with pytest.raises(TypeError, match="this machine"):
        launch(print, 1, hosts="gpu-a")

    def leaves_a_lock() -> object:
        return threading.Lock()

    with pytest.raises(RunFailed, match="pickle"):
        launch(leaves_a_lock, 1, show_output=False)
    with pytest.raises(RunFailed) as failed:
        launch(int, 1, args=["no number"], show_output=False)
    assert isinstance(failed.value.__cause__, ValueError)


def test_a_program_that_is_killed_leaves_no_ranks(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WAITS)
    command = [sys.executable, "program.py"]
    program = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, start_new_session=True)
    files = [tmp_path / f"rank-{rank}" for rank in (0, 1)]
    until(lambda: all(file.exists() and file.read_text() for file in files), "both ranks run")
    ranks = [psutil.Process(int(file.read_text())) for file in files]
    program.kill()
    program.wait(120)
    until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in ranks), "all ended")


def test_a_users_script_is_typed(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import ddplaunch
        from ddplaunch import launch

        def train(lr: float) -> dict[str, float]:
            ddplaunch.log_metrics({"lr": lr})
            return {"loss": lr}

        outcome: ddplaunch.Outcome = launch("train.py", nproc=4, batch_size=8, args=["--epochs", 3], env={"A": "1"})
        loss: float = launch(train, nproc=2, args=[0.1])["loss"]
        losses: list[dict[str, float]] = launch(train, nproc=2, args=[0.1], all_ranks=True)
        status: int = outcome.status
        plan: int | None = ddplaunch.current().batch_size
        text: str = launch(train, nproc=2, args=[0.1])  # wrong
        launch("train.py", nproc=[4])  # wrong
        """
    )
    (tmp_path / "use.py").write_text(script)
    wrong = [str(number) for number, line in enumerate(script.splitlines(), 1) if line.endswith("# wrong")]
    command = [sys.executable, "-m", "mypy", str(tmp_path / "use.py")]  # by the cache of the package's own types
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert sorted(set(re.findall(r"use\.py:(\d+): error:", said.stdout))) == wrong, said.stdout


def test_a_sweep_launches_its_trials_from_threads(project: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        trials = [pool.submit(launch, "train.py", 1, batch_size=size, show_output=False) for size in (2, 4)]
    assert [trial.result().metrics["val_loss"] for trial in trials] == [pytest.approx(1 / 3)] * 2
    assert len({trial.result().record for trial in trials}) == 2
