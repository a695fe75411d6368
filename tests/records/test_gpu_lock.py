"""The locks behind `--gpus free:N`, with real processes that race, exec and are killed."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import Queue, get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from ddplaunch.machine.facts import Gpu, NvmlFacts
from ddplaunch.planning.gpus import GIB, Exported
from ddplaunch.records.gpu_lock import GpuLocks, lock_directory, pick_free
from ddplaunch.values.finding import RefusedError
from tests.agent.guarded import open_files
from tests.planning.test_gpus import named

#: Becomes a program that starts another one, tells its pid and waits.
AGENT = """
import subprocess, sys
print(subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL).pid, flush=True)
sys.stdin.readline()
"""


def facts(count: int) -> NvmlFacts:
    gpus = (Gpu(i, f"GPU-{i}", "H100", memory_total_bytes=80 * GIB, memory_used_bytes=0) for i in range(count))
    return NvmlFacts("570.124.06", (12, 8), tuple(gpus))


def launch_in_race(folder: Path, ready: Barrier, over: Barrier, answers: Queue[list[str] | str]) -> None:
    ready.wait(60)
    try:
        chosen = pick_free("free:2", facts(8), Exported(), GpuLocks(folder), None)
        answers.put([entry.gpu.uuid for entry in chosen.entries])
    except RefusedError as error:
        answers.put(error.findings[0].code)
    over.wait(60)


def test_twelve_launches_race_for_eight_gpus(tmp_path: Path) -> None:
    fork = get_context("fork")
    ready, over, answers = fork.Barrier(12), fork.Barrier(13), fork.Queue()
    launches = [fork.Process(target=launch_in_race, args=(tmp_path, ready, over, answers)) for _ in range(12)]
    for each in launches:
        each.start()
    told = [answers.get(timeout=60) for _ in launches]
    over.wait(60)
    for each in launches:
        each.join(60)
    held = [name for answer in told if answer != "gpus-not-free" for name in answer]
    assert sorted(held) == [f"GPU-{index}" for index in range(8)]
    assert told.count("gpus-not-free") == 12 - 8 // 2


def test_the_lock_survives_exec_and_goes_with_the_agent_not_with_its_workers(tmp_path: Path) -> None:
    locks = GpuLocks(tmp_path)
    agent = subprocess.Popen(
        [sys.executable, "-SEc", AGENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: GpuLocks(tmp_path).try_hold("GPU-0"),
        close_fds=False,
    )
    worker: int | None = None
    try:
        assert agent.stdout is not None
        worker = int(agent.stdout.readline())
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
        agent.kill()
        agent.communicate(timeout=60)


def test_what_is_held_here_is_not_locked_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = GpuLocks(tmp_path), GpuLocks(tmp_path)
    assert theirs.try_hold("GPU-0")
    monkeypatch.setattr(time, "sleep", lambda _: theirs.release())
    assert mine.try_hold("GPU-0"), "another launch may hold it for a moment, to look whether it is free"
    assert mine.try_hold("GPU-0")
    assert mine.locked(["GPU-0"]) == frozenset()
    assert theirs.locked(["GPU-0"]) == {"GPU-0"}
    mine.release()
    assert theirs.locked(["GPU-0"]) == frozenset()
    assert mine.held == {}


def test_a_named_gpu_is_shared_but_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = GpuLocks(tmp_path), GpuLocks(tmp_path)
    assert pick_free("0", facts(2), Exported(), first, None).notes == ()
    selection = pick_free("0,1", facts(2), Exported(), second, None)
    assert named(selection) == "0,1"
    assert selection.notes == ("GPU 0 is held by another ddplaunch launch",)
    first.release()
    second.release()
    with pytest.raises(RefusedError):
        pick_free("free:3", facts(2), Exported(), first, None)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(second, "try_hold", lambda _: False)
    with pytest.raises(RefusedError):  # others are quicker each time
        pick_free("free:1", facts(2), Exported(), second, None)
    assert first.held == {}, "a refusal leaves no lock"
    unnamed = replace(facts(1), gpus=(replace(facts(1).gpus[0], uuid=""),))
    for requested in ("0", "free:1"):
        assert pick_free(requested, unnamed, Exported(), first, None).notes == () and first.held == {}


def test_every_user_may_lock(tmp_path: Path) -> None:
    places = [lock_directory(environment) for environment in ({}, {"DDPLAUNCH_LOCK_DIR": "/x"})]
    assert places == [Path("/tmp/ddplaunch-gpus"), Path("/x")]
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


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("file", "Not a directory"),
        ("folder's link", "Not a directory"),
        ("symlink", "Too many levels of symbolic links"),
        ("hardlink", "GPU-0.lock is not a plain file"),
        ("pipe", "GPU-0.lock is not a plain file"),
        ("no locks", "No locks available"),
    ],
)
def test_where_locks_cannot_be_made_the_launch_goes_on_and_nothing_planted_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, reason: str
) -> None:
    victim, folder, locks = tmp_path / "victim", tmp_path / "elsewhere", tmp_path / "locks"
    folder.mkdir()
    victim.write_text("precious")
    monkeypatch.chdir(tmp_path)
    here = GpuLocks(tmp_path)
    assert here.try_hold("GPU-0"), "which is no lock of the directory that is meant"
    if kind in ("symlink", "hardlink", "pipe", "no locks"):
        locks.mkdir()
    planted = locks / "GPU-0.lock"
    make: dict[str, Callable[[], object]] = {
        "file": locks.touch,
        "folder's link": lambda: locks.symlink_to(folder),
        "symlink": lambda: planted.symlink_to(victim),
        "hardlink": lambda: planted.hardlink_to(victim),
        "pipe": lambda: os.mkfifo(planted),
        "no locks": lambda: monkeypatch.setattr(fcntl, "flock", no_locks),
    }
    make[kind]()
    before = open_files()
    unlocked = GpuLocks(locks)
    selection = pick_free("free:1", facts(1), Exported(), unlocked, None)
    (note,) = selection.notes
    assert named(selection) == "0" and unlocked.held == {}
    assert note.startswith("GPUs are not locked against other launches: ") and note.endswith(f": {reason}")
    assert {path for _, path in open_files() - before} <= {str(locks)}, "but for the directory, all is closed"
    here.release()
    assert victim.read_text() == "precious" and list(folder.iterdir()) == []
