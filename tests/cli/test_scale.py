"""`ddplaunch scale` on real ranks: sizes side by side, and what was measured before it was interrupted."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from benchmarks.planted import PLANTED
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import runs_in
from tests.agent.guarded import until
from tests.cli.cli_calls import NO_COMPILER
from tests.hosts.launching import ANYWHERE, clean_environment, ddplaunch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(NO_COMPILER + PLANTED)
    return tmp_path


def words(sizes: str, *more: str) -> list[str]:
    return ddplaunch("scale", sizes, *ANYWHERE, "--steps", "25", *more, "--", "train.py")


@pytest.mark.slow
def test_sizes_side_by_side(folder: Path) -> None:
    command = words("1,2", "--batch-size", "8", "--base-lr", "0.1", "--dataset-size", "1000")
    environ = clean_environment(XDG_CACHE_HOME=str(folder.parent / "cache"))
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=400, check=False)
    out, err = done.stdout, done.stderr
    assert done.returncode == 0, out + err
    processes = [each for run in runs_in(process_table()) if run.run_id.startswith("scale-") for each in run.all]
    assert not any(str(folder) in f"{each.command} {each.mark('PWD')}" for each in processes)
    assert err.count(" steps of ") == 2 and "1 process:" in err and "2 processes:" in err
    lines = {line[2:16].strip(): line[16:].split() for line in out.splitlines() if line.startswith("  ")}
    assert lines[""] == ["1", "process", "2", "processes"] and lines["speed-up"][0] == "1.00"
    assert 1.4 < float(lines["speed-up"][1]) < 2.6, out
    assert err.count(": 25 steps of ") == 2, "as many as --steps says"
    assert "-bound]" not in out and "rank-late" not in out, "nothing is planted"
    assert "written by trials, and not kept: out/rank-0" in err
    assert sorted(path.name for path in folder.iterdir()) == [".ddplaunch", "train.py"]


@pytest.mark.slow
def test_what_was_cut_short_is_shown(folder: Path) -> None:
    command = words("1,2", "--timeout", "300")
    command[command.index("25")] = "100000"
    running = subprocess.Popen(
        command, cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    phases = ".ddplaunch/runs/*/node-0/attempt-0/rank-0.phases.jsonl"
    until(lambda: any(each.read_bytes().count(b"\n") > 120 for each in folder.glob(phases)), "many steps", 120)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130 and "1 process: " in out and "samples/s" in out, out + err
    assert "interrupted at size 1: `ddplaunch scale 1,2 …` measures the rest" in " ".join(err.split())
