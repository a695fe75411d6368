"""`ddplaunch run --start warm` for real: a pasted command line, an import that is broken off, and what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import RunProcesses, runs_in
from tests.agent.plugin_runs import DEADLINE_S, Run, children, of_folder, within
from tests.hosts.launching import clean_environment, ddplaunch

pytestmark = pytest.mark.slow

LOOK = 'import gc, sys; print(gc.get_freeze_count() > 1000, "colorsys" in sys.modules, __spec__ and __spec__.name)'


def test_the_pasted_dry_run_is_warm_and_imports_modules_once(tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    words = ("run", "2", "--device", "cpu", "--no-checks", "--dry-run", "--preload", "colorsys,not_there")
    command, env = ddplaunch(*words, "--start", "warm", "--", "-m", "look"), clean_environment()
    text = subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    done = subprocess.run(["sh"], input=text, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (0, "True True look\n"), done.stderr
    assert "ddplaunch: `--preload not_there`: ModuleNotFoundError: No module named 'not_there'\n" in done.stderr


def test_a_long_import_can_be_broken_off(tmp_path: Path) -> None:
    (tmp_path / "never_ready.py").write_text(f"import time; open('importing', 'w'); time.sleep({2 * DEADLINE_S})")
    run = Run(tmp_path, "workers", "--start", "warm", "--no-checks", "--preload", "never_ready")
    run.wait_for("importing")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == -signal.SIGINT and "Traceback" not in run.err
    assert of_folder(tmp_path) == []


def found(run_id: str) -> RunProcesses:
    return next(each for each in runs_in(process_table()) if each.run_id == run_id)


def test_clean_ends_forked_ranks_that_lost_their_launcher(tmp_path: Path) -> None:
    """Those that ignore the SIGTERM which the kernel sends them then."""
    run_id = f"warm-clean-{os.getpid()}"
    run = Run(tmp_path, "deaf", "--start", "warm", "--no-checks", run_id=run_id)
    run.wait_for("running-0-0", "running-1-0")
    run.announced()
    within(lambda: len(found(run_id).ranks) == 2, run)
    processes = found(run_id)
    ranks = {each.pid for each in processes.ranks}
    assert ranks < set(children(run.process.pid))
    for number in (signal.SIGSTOP, signal.SIGKILL):  # both at once, as the OOM killer may
        for each in (*processes.guards, *processes.launchers):
            os.kill(each.pid, number)
    run.process.wait(DEADLINE_S)
    within(lambda: {each.pid for each in found(run_id).all} == ranks)
    words = ddplaunch("clean", run_id, "--yes", "--json", "--run-dir", str(tmp_path / ".ddplaunch"))
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
    assert json.loads(done.stdout)["done"] is True, done.stderr
    within(lambda: of_folder(tmp_path) == [])
