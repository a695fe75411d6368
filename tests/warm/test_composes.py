"""Warm ranks that lost their launcher are found and ended."""

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
from tests.agent.plugin_runs import DEADLINE_S, Run, children, of_folder, within
from tests.hosts.launching import ddplaunch

pytestmark = pytest.mark.slow

WARM = ("--start", "warm", "--no-checks")


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
