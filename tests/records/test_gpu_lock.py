"""The locks behind `--gpus free:N`, with real processes that race, exec and are killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddplaunch.machine.facts import Gpu, NvmlFacts
from ddplaunch.planning.gpus import GIB
from ddplaunch.records.gpu_lock import _DEFAULT_DIRECTORY, GpuLocks, lock_directory, pick_free
from ddplaunch.values.finding import RefusedError
from tests.planning.test_gpus import named

SHARED = """
import os, sys, time
from pathlib import Path
from ddplaunch.values.finding import RefusedError
from ddplaunch.planning.gpus import GIB
from ddplaunch.machine.facts import Gpu, NvmlFacts
from ddplaunch.records.gpu_lock import GpuLocks, pick_free
"""
RACE = (
    SHARED
    + """
gpus = tuple(Gpu(i, f"GPU-{i}", "H100", memory_total_bytes=80 * GIB, memory_used_bytes=0) for i in range(8))
locks = GpuLocks(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
try:
    chosen = pick_free(sys.argv[2], NvmlFacts("1", (12, 8), gpus), None, locks, None)
    print(*(entry.uuid for entry in chosen.entries), flush=True)
except RefusedError as error:
    print(error.findings[0].code, flush=True)
sys.stdin.readline()
"""
)
EXEC = (
    SHARED
    + """
locks = GpuLocks(Path(sys.argv[1]))
assert locks.try_hold("GPU-0")
program = '''
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "import time; print('worker', flush=True); time.sleep(600)"])
print("agent", worker.pid, flush=True)
sys.stdin.readline()
'''
os.execve(sys.executable, [sys.executable, "-c", program], dict(os.environ))
"""
)


def facts(count: int) -> NvmlFacts:
    gpus = (Gpu(i, f"GPU-{i}", "H100", memory_total_bytes=80 * GIB, memory_used_bytes=0) for i in range(count))
    return NvmlFacts("570.124.06", (12, 8), tuple(gpus))


def start(program: str, *words: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=60)


def test_twelve_launches_race_for_eight_gpus(tmp_path: Path) -> None:
    processes = [start(RACE, tmp_path / "locks", "free:2") for _ in range(12)]
    try:
        assert {line(process) for process in processes} == {"ready"}
        for process in processes:
            go_on(process)
        answers = [line(process) for process in processes]
    finally:
        for process in processes:
            end(process)
    held = [name for answer in answers if answer != "gpus-not-free" for name in answer.split()]
    assert sorted(held) == [f"GPU-{index}" for index in range(8)]
    assert answers.count("gpus-not-free") == 12 - 8 // 2


def test_the_lock_survives_exec_and_goes_with_the_agent_not_with_its_workers(tmp_path: Path) -> None:
    agent = start(EXEC, tmp_path)
    worker: int | None = None
    try:
        words = sorted([line(agent), line(agent)])  # the worker's line may come first
        assert words[1] == "worker"
        worker = int(words[0].split()[1])
        locks = GpuLocks(tmp_path)
        assert locks.locked(["GPU-0", "GPU-1"]) == {"GPU-0"}
        assert not locks.try_hold("GPU-0")
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait(timeout=60)
        os.kill(worker, 0)  # the worker lives on, without the lock
        assert locks.locked(["GPU-0"]) == frozenset()
        assert locks.try_hold("GPU-0")
        locks.release()
    finally:
        if worker is not None:
            os.kill(worker, signal.SIGKILL)
        end(agent)


def test_what_is_held_here_is_not_locked_by_others(tmp_path: Path) -> None:
    mine, theirs = GpuLocks(tmp_path), GpuLocks(tmp_path)
    assert mine.try_hold("GPU-0")
    assert mine.try_hold("GPU-0")
    assert mine.locked(["GPU-0"]) == frozenset()
    assert theirs.locked(["GPU-0"]) == {"GPU-0"}
    mine.release()
    assert theirs.locked(["GPU-0"]) == frozenset()
    assert mine.held == {}


def test_a_named_gpu_is_shared_but_said(tmp_path: Path) -> None:
    first, second = GpuLocks(tmp_path), GpuLocks(tmp_path)
    assert pick_free("0", facts(2), None, first, None).notes == ()
    selection = pick_free("0,1", facts(2), None, second, None)
    assert named(selection) == "0,1"
    assert selection.notes == ("GPU 0 is held by another ddplaunch launch",)
    first.release()
    second.release()


def test_a_refusal_leaves_no_lock(tmp_path: Path) -> None:
    locks = GpuLocks(tmp_path)
    with pytest.raises(RefusedError):
        pick_free("free:3", facts(2), None, locks, None)
    assert locks.held == {}


def test_every_user_may_lock(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        locks = GpuLocks(tmp_path / "locks")
        assert locks.try_hold("GPU-0")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    (file,) = (tmp_path / "locks").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o666
    locks.release()


def launches_unlocked(locks: GpuLocks) -> None:
    selection = pick_free("free:1", facts(1), None, locks, None)
    assert named(selection) == "0"
    assert len(selection.notes) == 1
    assert selection.notes[0].startswith("GPUs are not locked against other launches: ")
    assert locks.held == {}


@pytest.mark.parametrize("kind", ["file above", "file", "folder's link", "symlink", "hardlink", "pipe"])
def test_where_locks_cannot_be_made_the_launch_goes_on_and_nothing_planted_is_written_to(
    tmp_path: Path, kind: str
) -> None:
    victim, folder, locks = tmp_path / "victim", tmp_path / "elsewhere", tmp_path / "locks"
    folder.mkdir()
    victim.write_text("precious")
    if kind in ("symlink", "hardlink", "pipe"):
        locks.mkdir()
    planted = locks / "GPU-0.lock"
    make: dict[str, Callable[[], object]] = {
        "file above": locks.touch,
        "file": locks.touch,
        "folder's link": lambda: locks.symlink_to(folder),
        "symlink": lambda: planted.symlink_to(victim),
        "hardlink": lambda: planted.hardlink_to(victim),
        "pipe": lambda: os.mkfifo(planted),
    }
    make[kind]()
    launches_unlocked(GpuLocks(locks / "below" if kind == "file above" else locks))
    assert victim.read_text() == "precious" and list(folder.iterdir()) == []


def test_where_the_locks_are(tmp_path: Path) -> None:
    assert lock_directory({}) == lock_directory({"DDPLAUNCH_LOCK_DIR": ""}) == _DEFAULT_DIRECTORY
    assert lock_directory({"DDPLAUNCH_LOCK_DIR": str(tmp_path)}) == tmp_path
