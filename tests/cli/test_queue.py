"""A queue of launches: what is put into it, in which order it is worked off, and what is left when that is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ddplaunch.records.own.queue_jobs import QueuedJob, queue_folder, read_jobs, running_queue, write_job
from ddplaunch.ui.ps_view import queue_text
from ddplaunch.ui.terminal import Terminal
from tests.agent.guarded import runs, until
from tests.cli.cli_calls import Call, call, folder, spawn

if TYPE_CHECKING:
    from tests.machine.fake_nvml import FakeNvml

__all__ = ["call", "folder"]  # fixtures
pytest_plugins = ("tests.machine.fake_nvml",)

#: Says that it began, and goes on until the file ``go`` is there. It needs no torch.
WAITS = """
import os, pathlib, sys, time
draft = pathlib.Path("draft-" + sys.argv[1])
draft.write_text(str(os.getpid()))
draft.rename("began-" + sys.argv[1])
end = time.time() + 200
while not pathlib.Path("go").exists() and time.time() < end:
    time.sleep(0.05)
"""
ADD = ("queue", "add", "1", "--device", "cpu")


def jobs(call: Call) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(call("queue", "--json").out)["jobs"]
    return found


# What is put into it


def test_a_launch_is_checked_when_it_is_added(call: Call, folder: Path) -> None:
    answer = call(*ADD, "--", "tran.py")
    assert answer.status == 2 and "script-not-found" in answer.err and "nothing was queued" in answer.err
    assert jobs(call) == []
    answer = call(*ADD, "--lr", "0.1", "--", "train.py", "--note", "a b")
    assert (answer.status, answer.out) == (0, "1\n") and "nobody works the queue off" in answer.err
    (job,) = jobs(call)
    assert job["words"] == ["1", "--device", "cpu", "--lr", "0.1"] and job["script"] == ["train.py", "--note", "a b"]
    assert (job["state"], job["cwd"]) == ("waiting", str(folder))
    assert "behind 1" in call(*ADD, "--", "train.py").err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("queue", "add", "2", "--hosts", "a,b", "--", "train.py"), "`--hosts` cannot wait in a queue"),
        (("queue", "add", "2", "--dry-run", "--", "train.py"), "`--dry-run` cannot wait in a queue"),
        (("queue", "add", "2", "--device", "cpu"), "no script was named"),
        (("queue", "add", "2", "--batch-sise", "2", "--", "train.py"), "--batch-size"),
        (("queue", "start"), "`queue start` is not known"),
        (("queue", "rm"), "`queue rm` wants numbers"),
        (("queue", "rm", "1", "7"), "there is no job `7`"),
        (("queue", "ls", "7"), "`queue ls` takes no numbers"),
        (("queue", "run", "--slots", "0"), "`--slots 0`"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(call: Call, words: tuple[str, ...], said: str) -> None:
    call(*ADD, "--", "train.py")
    answer = call(*words)
    assert answer.status == 2 and said in " ".join(answer.err.split()), answer.err
    assert [job["number"] for job in jobs(call)] == [1]


def test_jobs_that_do_not_run_are_removed_and_put_back(call: Call, folder: Path) -> None:
    for _ in range(3):
        call(*ADD, "--", "train.py")
    base = folder / ".ddplaunch"
    first, second, _ = read_jobs(base)
    write_job(base, replace(first, state="failed", exit_status=1, ended_s=1.0))
    write_job(base, replace(second, state="running", run_id="it"))
    with running_queue(base) as alone:
        assert alone
        answer = call("queue", "rm", "3", "2")
        assert answer.status == 2 and "`ddplaunch stop it` ends it" in answer.err and len(jobs(call)) == 3
        assert call("queue", "run").status == 4
    assert call("queue", "again", "1").status == 0 and jobs(call)[0]["state"] == "waiting"
    assert call("queue", "rm", "1", "2").status == 0 and [job["number"] for job in jobs(call)] == [3]


def test_what_is_kept_is_for_the_owner_alone_and_shows_no_secret(call: Call, folder: Path) -> None:
    secret = "hf_" + "a1B2" * 9
    assert call(*ADD, "--env", f"HF_TOKEN={secret}", "--", "train.py").status == 0
    (job,) = read_jobs(folder / ".ddplaunch")
    assert any(secret in word for word in job.words), "it has to be passed on"
    assert secret not in call("queue", "ls").out + call("queue", "ls", "--json").out
    place = queue_folder(folder / ".ddplaunch")
    assert [path.name for path in (place, *place.iterdir()) if path.stat().st_mode & 0o077] == []
    kept = place / "000001.json"
    kept.rename(folder / "elsewhere.json")
    kept.symlink_to(folder / "elsewhere.json")
    assert read_jobs(folder / ".ddplaunch") == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', '{"schema": 9, "number": 1}', "\0"])
def test_a_broken_file_is_no_job(tmp_path: Path, text: str) -> None:
    write_job(tmp_path, QueuedJob(2, ("1",), ("train.py",), "/", 1.0))
    (queue_folder(tmp_path) / "000001.json").write_text(text)
    assert [job.number for job in read_jobs(tmp_path)] == [2]


@pytest.mark.parametrize(
    ("words", "free"),
    [(("2", "--gpus", "free:2"), True), (("--gpus=free",), True), (("--gpus", "0,1"), False), (("2",), False)],
)
def test_which_jobs_wait_for_gpus(words: tuple[str, ...], free: bool) -> None:
    assert QueuedJob(1, words, ("train.py",), "/", 0.0).wants_free_gpus is free


def test_the_list_says_why_one_waits_and_that_one_is_lost() -> None:
    shown = [
        QueuedJob(1, ("2",), ("a.py",), "/", 0.0, "failed", 1.0, 2.0, "run-a", 7, "ValueError: bad at a.py:3"),
        QueuedJob(2, ("2",), ("b.py",), "/", 0.0, "running", 50.0, run_id="run-b"),
        QueuedJob(3, ("--gpus", "free:2"), ("c.py",), "/", 0.0, why="2 free GPUs asked for, 1 of 2 is free"),
    ]
    text = queue_text(shown, None, 100.0, Terminal(80))
    assert "failed (7)" in text and "lost" in text and "1: ValueError: bad at a.py:3" in text
    assert "3: 2 free GPUs asked for, 1 of 2 is free" in text and "`ddplaunch queue run`" in text
    assert "pid 9 works it off" in queue_text(shown, 9, 100.0, Terminal(80))


# How it is worked off


@pytest.fixture
def project(folder: Path) -> Iterator[Path]:
    """Return a directory with ``waits.py``, whose ranks end when the file ``go`` is there."""
    (folder / "waits.py").write_text(WAITS)
    yield folder
    (folder / "go").touch()


def queue(place: Path, *words: str, environment: Mapping[str, str] | None = None) -> str:
    done = spawn(["queue", *words], place, environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode() + done.stderr.decode()


def worked_off(place: Path, *words: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    variables = {**os.environ, **(environment or {})}
    command = [sys.executable, "-m", "ddplaunch", "queue", "run", *words]
    return subprocess.Popen(command, cwd=place, env=variables, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)


def states(place: Path) -> list[str]:
    return [job.state for job in read_jobs(place / ".ddplaunch")]


def began(place: Path, *names: str) -> Callable[[], bool]:
    return lambda: all((place / f"began-{name}").exists() for name in names)


def pids(place: Path) -> list[int]:
    return [int(path.read_text()) for path in place.glob("began-*")]


@pytest.mark.slow
def test_launches_start_in_order_and_one_that_fails_holds_up_nobody(project: Path) -> None:
    (project / "order.py").write_text("import sys\nopen('order', 'a').write(sys.argv[1])\nsys.exit(int(sys.argv[2]))\n")
    for name, status in (("a", "0"), ("b", "7"), ("c", "0")):
        queue(project, "add", "1", "--device", "cpu", "--", "order.py", name, status)
    done = spawn(["queue", "run"], project)
    assert done.returncode == 1 and (project / "order").read_text() == "abc"
    first, second, third = read_jobs(project / ".ddplaunch")
    assert [each.state for each in (first, second, third)] == ["done", "failed", "done"] and second.exit_status == 7
    assert first.ended_s is not None and second.started_s is not None and first.ended_s <= second.started_s + 1
    assert all((project / ".ddplaunch" / "runs" / str(each.run_id)).is_dir() for each in (first, second, third))
    (project / "order.py").unlink()
    queue(project, "again", "3")
    assert spawn(["queue", "run"], project).returncode == 1
    assert "order.py` does not exist" in read_jobs(project / ".ddplaunch")[2].why


@pytest.mark.slow
def test_a_detached_queue_takes_what_is_added_later_and_is_stopped(project: Path) -> None:
    queue(project, *ADD[1:], "--", "waits.py", "one")
    assert "also without this terminal" in queue(project, "run", "--detach", "--slots", "2")
    queue(project, *ADD[1:], "--", "waits.py", "two")
    queue(project, *ADD[1:], "--", "waits.py", "three")
    until(began(project, "one", "two"), "two launches at the same time")
    assert states(project) == ["running", "running", "waiting"]
    assert "works the queue off already" in queue(project, "run", "--detach")
    assert "nothing of it runs" in queue(project, "stop")
    assert states(project) == ["interrupted", "interrupted", "waiting"]
    until(lambda: not any(map(runs, pids(project))), "the ranks end")
    assert not (project / "began-three").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_nothing_of_it_is_left_however_it_ends(project: Path, number: signal.Signals) -> None:
    queue(project, *ADD[1:], "--", "waits.py", "one")
    queue(project, *ADD[1:], "--", "waits.py", "two")
    runner = worked_off(project)
    until(began(project, "one"), "the first starts")
    until(lambda: read_jobs(project / ".ddplaunch")[0].run_id is not None, "it is noted")
    runner.send_signal(number)
    _, said = runner.communicate(timeout=200)
    until(lambda: not any(map(runs, pids(project))), "its rank ends")
    if number != signal.SIGKILL:
        assert runner.returncode == 130 and b"1 ended, 1 still wait" in said
        assert states(project) == ["interrupted", "waiting"]
        return
    assert "lost" in queue(project, "ls")
    (project / "go").touch()
    assert spawn(["queue", "run"], project).returncode == 0
    assert states(project) == ["interrupted", "done"]


@pytest.mark.slow
def test_launches_wait_for_gpus_and_run_side_by_side(project: Path, fake_nvml: FakeNvml) -> None:
    environment = {**fake_nvml.environment(2), "DDPLAUNCH_LOCK_DIR": str(project / "locks")}
    words = ("add", "--gpus", "free:1", "--ignore", "torch-cpu-build-on-gpu-machine", "--", "waits.py")
    done = spawn(["queue", "add", "--gpus", "free:3", "--", "waits.py"], project, environment)
    assert done.returncode == 4 and b"gpus-too-few" in done.stderr
    for name in ("one", "two", "three"):
        queue(project, *words, name, environment=environment)
    runner = worked_off(project, environment=environment)
    until(began(project, "one", "two"), "two launches on two GPUs")
    until(lambda: read_jobs(project / ".ddplaunch")[2].why != "", "the third is told to wait")
    waits = read_jobs(project / ".ddplaunch")[2]
    assert waits.state in ("waiting", "starting") and waits.why == "1 free GPU asked for, 0 of 2 are free"
    (project / "go").touch()
    _, said = runner.communicate(timeout=200)
    assert runner.returncode == 0, said
    assert states(project) == ["done", "done", "done"] and (project / "began-three").exists()
