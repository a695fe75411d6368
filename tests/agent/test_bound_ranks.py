"""Real ranks on the CPUs that were decided: cold and warm, after a restart, and where binding is not possible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.agent.plugin_runs import DEADLINE_S
from tests.hosts.launching import clean_environment, ddplaunch

MINE = sorted(os.sched_getaffinity(0))
pytestmark = [pytest.mark.slow, pytest.mark.skipif(len(MINE) < 2, reason="one CPU cannot be divided")]

#: Each rank notes what it, a thread of it and a program that it starts may use.
SCRIPT = """
import gc, json, os, subprocess, sys, threading, time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
seen = [sorted(os.sched_getaffinity(0))]
thread = threading.Thread(target=lambda: seen.append(sorted(os.sched_getaffinity(0))))
thread.start()
thread.join()
code = "import os; print(*sorted(os.sched_getaffinity(0)))"
seen.append([int(word) for word in subprocess.check_output([sys.executable, "-c", code]).split()])
with open(f"{rank}.json", "w") as file: json.dump([*seen, gc.get_freeze_count() > 1000], file)
os.replace(f"{rank}.json", f"cpus-{rank}-{attempt}.json")
while not os.path.exists(f"cpus-{1 - int(rank)}-{attempt}.json"): time.sleep(0.01)
os._exit(int(attempt == "0" and "fails" in sys.argv))
"""


def run(folder: Path, words: Sequence[str], **variables: str) -> str:
    """Run two ranks to their end, and return what ddplaunch said."""
    (folder / "train.py").write_text(SCRIPT)
    env = clean_environment(COLUMNS="200", DDPLAUNCH_LOCK_DIR=str(folder / "locks"), **variables)
    ended = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def cpus(folder: Path, attempt: int = 0) -> list[list[int]]:
    """Return the CPUs of each rank, which are those of its threads and programs too."""
    found = []
    for rank in range(2):
        *seen, _ = json.loads((folder / f"cpus-{rank}-{attempt}.json").read_text())
        assert seen[0] == seen[1] == seen[2]
        found.append(seen[0])
    return found


def test_each_rank_has_cores_of_its_own_warm_and_after_a_restart(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--placement", "cores", "--start", "warm", "--max-restarts", "1")
    said = run(tmp_path, ddplaunch("run", "2", *options, "--", "train.py", "fails"))
    assert "each of 2 ranks on " in said and "cold start" not in said
    for attempt in (0, 1):
        first, second = cpus(tmp_path, attempt)
        assert sorted(first + second) == MINE and first and second
        *_, warm = json.loads((tmp_path / f"cpus-1-{attempt}.json").read_text())
        assert warm is (attempt == 0), "a restart is cold"


def test_cpus_that_are_gone_leave_ranks_unbound(tmp_path: Path) -> None:
    settings = {"run_id": "gone", "start": "warm", "cpus": ["8000", "8001"], "grace_s": 30.0}
    words = [sys.executable, "-u", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words += ["--logs-specs=ddplaunch", "--max-restarts=1", "train.py", "fails"]
    said = run(tmp_path, words, DDPLAUNCH_AGENT=json.dumps(settings), DDPLAUNCH_NPROC="2", OMP_NUM_THREADS="1")
    assert cpus(tmp_path) == cpus(tmp_path, 1) == [MINE] * 2
    assert said.count("ranks are not bound to CPUs: ") == 1
