"""Warm ranks with all that looks after a run: hangs, stacks, prefixes, `stop`, `clean`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import RunProcesses, runs_in
from tests.agent.plugin_runs import DEADLINE_S, RUN_ID, Run, children, of_folder, within
from tests.hosts.launching import clean_environment, ddplaunch

pytestmark = pytest.mark.slow

WARM = ("--start", "warm", "--no-checks")
TRAIN = """\
import gc, os, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
print("forked" if gc.get_freeze_count() > 1000 else "cold", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
if os.environ.get("HANG") == str(rank):
    time.sleep(300)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


def train(folder: Path, *options: str, **changes: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAIN)
    words = ddplaunch("run", "2", "--device", "cpu", "--run-id", RUN_ID, *WARM, *options, "--", "train.py")
    env = clean_environment(NO_COLOR="1", COLUMNS="300", CUDA_VISIBLE_DEVICES="3,1", **changes)
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=2 * DEADLINE_S)


def test_a_hang_is_named_and_ended_by_the_stacks_of_forked_ranks(tmp_path: Path) -> None:
    done = train(tmp_path, "--hang-timeout", "3s", "--on-hang", "stop", "--grace", "2", "--show", "all", HANG="1")
    assert done.returncode == 124, done.stderr
    outcome = json.loads((tmp_path / f".ddplaunch/runs/{RUN_ID}/outcome.json").read_text())
    assert (outcome["diagnosis"]["code"], outcome["diagnosis"]["rank"]) == ("collective-timeout", 1)
    assert "rank 1 is at train.py:8" in outcome["diagnosis"]["what"], outcome
    lines = sorted(line.partition(":")[2] for line in done.stdout.splitlines())
    assert lines == ["0] forked 3,1", "1] forked 3,1"]
    assert of_folder(tmp_path) == []


@contextmanager
def running(folder: Path, run_id: str, does: str = "wait") -> Iterator[tuple[Run, RunProcesses]]:
    """A warm launch that waits."""
    run = Run(folder, does, *WARM, run_id=run_id)
    try:
        run.wait_for("running-0-0", "running-1-0")
        within(lambda: (folder / ".ddplaunch/runs" / run_id / "node-0/processes.json").exists(), run)
        within(lambda: len(found(run_id).ranks) == 2, run)
        yield run, found(run_id)
    finally:
        run.process.kill()
        run.process.communicate()


def found(run_id: str) -> RunProcesses:
    return next(each for each in runs_in(process_table()) if each.run_id == run_id)


def say(folder: Path, *words: str) -> Any:
    command = [*ddplaunch(*words, "--json"), "--run-dir", str(folder / ".ddplaunch")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_clean_ends_forked_ranks_that_lost_their_launcher(tmp_path: Path) -> None:
    """Those that ignore the SIGTERM which the kernel sends them then."""
    run_id = f"warm-clean-{os.getpid()}"
    with running(tmp_path, run_id, "deaf") as (run, processes):
        ranks = {each.pid for each in processes.ranks}
        assert ranks < set(children(run.process.pid))
        for number in (signal.SIGSTOP, signal.SIGKILL):  # both at once, as the OOM killer may
            for each in (*processes.guards, *processes.launchers):
                os.kill(each.pid, number)
        run.process.wait(DEADLINE_S)
        within(lambda: {each.pid for each in found(run_id).all} == ranks)
        assert say(tmp_path, "clean", run_id, "--yes")["done"] is True
        within(lambda: of_folder(tmp_path) == [])
