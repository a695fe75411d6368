"""What a script sees and does is the same under torchrun and where its ranks were forked, case by case."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plugin_runs import DEADLINE_S
from tests.hosts.launching import clean_environment, ddplaunch
from tests.warm.programs import PROGRAMS

#: What differs and stays so; docs/warm-start.md says it.
KNOWN = {
    "recursion depth before",  # Python 3.11 counts the calls of C functions below the script
    "recursion depth after",
    "warning filters before",  # torch's are there before torch is imported
    "loggers before",
}
EARLY = ("OMP_NUM_THREADS=2", "TORCH_DISTRIBUTED_DEBUG=DETAIL", "TORCH_LOGS=+dynamo")


def launch(
    way: str, ranks: int, script: Sequence[str], folder: Path, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run a script by torchrun, cold or warm, where the programs are; $PROBE is ``folder``/``way``."""
    (folder / way).mkdir(exist_ok=True)
    plain = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    ours = ddplaunch("run", str(ranks), "--device", "cpu", "--no-checks", "--start", way, "--")
    env = clean_environment(OMP_NUM_THREADS="1", DDPLAUNCH_DIR=str(folder / "runs"), PROBE=str(folder / way), **changes)
    command = [*(plain if way == "torchrun" else ours), *script]
    done = subprocess.run(command, cwd=PROGRAMS, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done


def told(folder: Path, way: str, name: str) -> Any:
    return json.loads((folder / way / f"{name}.json").read_text().replace(f"{folder}/{way}", "FOLDER"))


@pytest.mark.slow
def test_cases_and_the_losses_of_trainings(tmp_path: Path) -> None:
    ways = ("torchrun", "cold", "warm")
    for way in ("torchrun", "warm"):
        (tmp_path / way).mkdir()
        (tmp_path / way / "trains").touch()
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as a shell's `&` does
    try:
        for way in ways:
            said = launch(way, 2, ["./../programs/cases.py", "torch", "--an", "argument"], tmp_path).stderr
            assert "cold start" not in said and "too late" not in said
    finally:
        signal.signal(signal.SIGQUIT, before)
    different = set()
    for rank in range(2):
        plain, cold, warm = (told(tmp_path, way, f"{rank}") for way in ways)
        assert plain["frozen"] == 0 < 1000 < warm["frozen"], "the rank was not forked"
        names = plain["answers"].keys()
        # what is ddplaunch's own, such as faulthandler, a cold rank has too
        equal = {name for name in names if warm["answers"][name] in (plain["answers"][name], cold["answers"][name])}
        different |= names - equal
        losses = told(tmp_path, "torchrun", f"losses-{rank}")
        assert len(losses) == 5 and all(len(set(one)) > 1 for one in losses.values())
        assert losses == told(tmp_path, "warm", f"losses-{rank}")
    print(f"{len(names) - len(different)} of {len(names)} cases are equal")
    assert different <= KNOWN
    first, second = (told(tmp_path, "warm", f"{rank}")["chance"] for rank in range(2))
    assert [name for name, value in first.items() if second[name] == value] == []


@pytest.mark.slow
def test_variables_that_nothing_saw_before_the_rank_set_them(tmp_path: Path) -> None:
    for way in ("torchrun", "warm"):
        launch(way, 1, ["early.py", *EARLY], tmp_path)
    plain, warm = told(tmp_path, "torchrun", "0"), told(tmp_path, "warm", "0")
    different = {name for name, value in plain.items() if warm[name] != value}
    assert different <= {"blas threads", "log level"}, "torch takes OMP_NUM_THREADS, numpy cannot any more"
    (log,) = (tmp_path / "runs").glob("runs/*/node-0/attempt-0/rank-0.err")
    (line,) = (line for line in log.read_text().splitlines() if line.startswith("ddplaunch: "))
    assert "TORCH_LOGS came too late" in line


LOOKS = """
import gc, os, queue
print(gc.get_freeze_count() > 1000, getattr(queue, "mine", None), os.environ.get("CUSTOM"), flush=True)
"""
CUSTOM = "import os\nos.environ['CUSTOM'] = os.environ.get('RANK', 'none')\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "printed", "why"),
    [
        (
            "queue",
            "mine = 'own'\n",
            ["False own None"] * 2,
            "`queue.py` beside the script is named like what torchrun ",
        ),
        (
            "sitecustomize",
            CUSTOM,
            ["False None 0", "False None 1"],
            "sitecustomize.py is run by each interpreter that ",
        ),
    ],
)
def test_a_module_of_the_users_own_makes_the_start_cold(
    name: str, text: str, printed: list[str], why: str, tmp_path: Path
) -> None:
    (folder := tmp_path / "code").mkdir()
    (folder / f"{name}.py").write_text(text)
    (folder / "train.py").write_text(LOOKS)
    command = ddplaunch("run", "2", "--device", "cpu", "--no-checks", "--start", "warm", "--show", "all", "--")
    path = str(folder) if name == "sitecustomize" else ""
    env = clean_environment(COLUMNS="300", DDPLAUNCH_DIR=str(tmp_path / "runs"), PYTHONPATH=path)
    done = subprocess.run(
        [*command, "code/train.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0 and "cold start: " in done.stderr and why in done.stderr, done.stderr
    assert sorted(line.partition("] ")[2] for line in done.stdout.splitlines()) == printed
