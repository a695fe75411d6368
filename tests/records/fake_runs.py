"""Records as a run leaves them, and live processes that look like a run without torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.machine.processes.process_table import process_table, read_process
from ddplaunch.records.write import write_record
from ddplaunch.values.words import host_name
from tests.planning.sample_launch import facts, launch

DEADLINE_S = 60.0

#: Started as ``python -SE …/torchrun N SCRIPT ARGS``: what torchrun does with processes, and nothing else.
TORCHRUN = """
import os, signal, subprocess, sys
ranks = []
def end(*_):
    for rank in ranks:
        rank.terminate()
signal.signal(signal.SIGTERM, end)
count = int(sys.argv[1])
for rank in range(count):
    marks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "localhost", "MASTER_PORT": 29400,
             "TORCHELASTIC_RUN_ID": os.environ.get("DDPLAUNCH_RUN_ID", os.environ.get("ELASTIC", "none"))}
    environment = {**os.environ, **{name: str(value) for name, value in marks.items()}}
    ranks.append(subprocess.Popen([sys.executable, "-SE", *sys.argv[2:]], env=environment, start_new_session=True))
for rank in ranks:
    rank.wait()
"""
#: A rank: ``worker`` forks a child, ``deaf`` ignores SIGTERM,
#: ``free:FILE`` empties that file at SIGTERM, as the driver's account of GPU memory gets empty.
RANK = """
import os, signal, sys, time
words = sys.argv[1:]
if "deaf" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for word in words:
    kind, _, value = word.partition(":")
    if kind == "free":
        def end(*_):
            open(value, "w").close()
            os._exit(0)
        signal.signal(signal.SIGTERM, end)
if "worker" in words and os.fork() == 0:
    time.sleep(120)
    os._exit(0)
print("ready", flush=True)
time.sleep(120)
"""


def unique(name: str) -> str:
    """Return a run id that no other test on this machine has."""
    return f"{name}-{uuid.uuid4().hex[:10]}"


def record(base: Path, run_id: str, begun_s: float | None = None, **changes: Any) -> Path:
    """Write the ``run.json`` of a real launch under ``base``, with ``changes`` at its top, begun at ``begun_s``."""
    directory = write_record(launch(run_id=run_id), ("ddplaunch", "run", "4"), {}, facts(), (), base)
    assert isinstance(directory, Path)
    path = directory / "run.json"
    data = {**json.loads(path.read_text()), **changes}
    data["host"]["host"]["name"] = changes.get("host_name", host_name())
    if begun_s is not None:
        data["created_s"] = begun_s
    path.write_text(json.dumps(data))
    if begun_s is not None:
        os.utime(path, (begun_s, begun_s))
    return directory


def outcome(directory: Path, state: str = "succeeded", **more: Any) -> None:
    """Write the outcome of a run, ended now."""
    data = {"schema": 1, "run_id": directory.name, "host": host_name(), "node": 0, "state": state, "exit_status": 0}
    (directory / "outcome.json").write_text(json.dumps({**data, "ended_s": time.time(), **more}))


def processes_json(directory: Path, **changes: Any) -> None:
    """Write ``node-0/processes.json``; give launcher and ranks as {"pid", "start_time"}."""
    node = directory / "node-0"
    node.mkdir(exist_ok=True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    data = {"schema": 1, "run_id": directory.name, "host": host_name(), "boot_id": boot, "attempt": 0, "ranks": []}
    (node / "processes.json").write_text(json.dumps({**data, **changes}))


@dataclass
class FakeRun:
    """A live launcher with its ranks."""

    run_id: str
    launcher: subprocess.Popen[bytes]
    rank_pids: list[int] = field(default_factory=list)

    @property
    def session_pids(self) -> list[int]:
        """Ranks and what they forked, whoever their parent is by now."""
        return [each.pid for each in process_table().values() if each.session in self.rank_pids and each.alive]

    def lose_launcher(self) -> None:
        """Kill the launcher alone, and wait until the ranks were adopted."""
        self.launcher.kill()
        self.launcher.wait()
        assert wait_for(
            lambda: all((p := read_process(pid)) and p.parent != self.launcher.pid for pid in self.rank_pids)
        )

    def end(self) -> None:
        """Kill everything."""
        for pid in [self.launcher.pid, *self.session_pids]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.launcher.wait()
        if self.launcher.stdout:
            self.launcher.stdout.close()


def wait_for(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> bool:
    """Return whether ``condition`` came true before the deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


StartRun = Callable[..., FakeRun]


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[StartRun]:
    """``start_run("name", *words, ranks=2, cwd=…, environment=…)``: the words go to every rank; ended afterwards."""
    runs: list[FakeRun] = []
    (tmp_path / "bin").mkdir()
    program, script = tmp_path / "bin" / "torchrun", tmp_path / "bin" / "train.py"
    program.write_text(TORCHRUN)
    script.write_text(RANK)

    def start(name: str, *words: str, ranks: int = 2, ours: bool = True, cwd: Path = tmp_path, **more: str) -> FakeRun:
        run_id = unique(name)
        marks = {"DDPLAUNCH_RUN_ID": run_id} if ours else {"ELASTIC": run_id}
        foreign = ("DDPLAUNCH_", "TORCHELASTIC_")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        launcher = subprocess.Popen(
            [sys.executable, "-SE", str(program), str(ranks), str(script), *words],
            env={**clean, **marks, **more},
            cwd=cwd,
            stdout=subprocess.PIPE,
        )
        run = FakeRun(run_id, launcher)
        runs.append(run)
        assert launcher.stdout is not None
        for _ in range(ranks):
            assert launcher.stdout.readline() == b"ready\n"
        run.rank_pids = [each.pid for each in process_table().values() if each.parent == launcher.pid]
        assert len(run.rank_pids) == ranks
        return run

    yield start
    for run in runs:
        run.end()
