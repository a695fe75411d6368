"""How runs end, for real: exit statuses, what is said last, what the record holds, and that nothing is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from ddplaunch.machine.processes.process_table import read_stat
from tests.agent.plugin_runs import Run, children, of_folder, within
from tests.ports import free_port

pytestmark = pytest.mark.slow


def test_exception_is_named_and_torchruns_summary_is_not_shown(tmp_path: Path) -> None:
    run = Run(tmp_path, "exception")
    assert run.end() == 1
    assert "ValueError: the cause" in run.err and "rank 1" in run.err
    assert run.err.rstrip().rpartition("\n")[2].startswith("  why: ")
    assert "ChildFailedError" not in run.err
    assert b"ChildFailedError" in (run.record / "node-0" / "launcher.err").read_bytes()
    outcome = run.outcome
    assert (outcome["state"], outcome["exit_status"], outcome["first_failed_rank"]) == ("failed", 1, 1)
    assert outcome["diagnosis"]["code"] == "script-exception" and outcome["diagnosis"]["rank"] == 1
    waiting, failed = outcome["attempts"][0]["ranks"]
    assert (failed["exit_code"], failed["signal"], failed["ended_by"]) == (1, None, "itself")
    assert failed["last_lines"][-1] == "ValueError: the cause"
    text = run.file("rank-1.err").decode()
    assert "cold start" not in run.err and text.count('  File "') == 2 and "ddplaunch" not in text, "as of a cold rank"
    assert (waiting["signal"], waiting["ended_by"]) == ("SIGTERM", "launcher")
    within(lambda: not of_folder(tmp_path))


def test_restart_trains_on_and_says_so_in_a_line_and_shown_ranks_have_a_prefix(tmp_path: Path) -> None:
    run = Run(tmp_path, "second", "--show", "all", "--max-restarts", "3")
    assert run.end() == 0
    assert "attempt 1 of 4 failed: error[script-exception]" in run.err and "only once" in run.err
    assert "restarting" in run.err and "done in 2 attempts after" in run.err
    host, both = os.uname().nodename, (0, 1)
    lines = sorted(f"[{host}:{rank}] rank {rank}, attempt {attempt}" for rank in both for attempt in both)
    assert sorted(run.out.splitlines()) == lines
    assert run.file("rank-1.out", 1) == b"rank 1, attempt 1\n"
    first, second = run.outcome["attempts"]
    assert first["failed"] and first["diagnosis"]["rank"] == 1 and not second["failed"]


def test_what_would_fail_alike_is_not_started_again(tmp_path: Path) -> None:
    run = Run(tmp_path, "missing", "--max-restarts", "1", "--ignore", "module-not-found", "--verbose")
    assert run.end() == 1
    assert "ChildFailedError" in run.err
    assert "ddplaunch: not restarted, as it would fail alike" in run.err
    assert [each["failed"] for each in run.outcome["attempts"]] == [True], f"{run.outcome} {run.err}"
    assert run.outcome["diagnosis"]["code"] == "module-not-found" and run.err.count("error[module-not-found]") == 1


def test_a_guard_that_dies_before_it_has_judged_is_replaced_by_one_that_does(tmp_path: Path) -> None:
    run = Run(tmp_path, "missing_soon", "--max-restarts", "1", "--ignore", "module-not-found")
    run.wait_for("running-0-0", "running-1-0")
    guard = run.announced()
    os.kill(guard, signal.SIGSTOP)
    (tmp_path / "go").touch()
    ranks = [int((tmp_path / f"running-{rank}-0").read_text()) for rank in (0, 1)]
    within(lambda: not any(seen.alive for rank in ranks if (seen := read_stat(rank))), run)
    time.sleep(0.5)  # torchrun, which looks every 100 ms, asks the guard
    os.kill(guard, signal.SIGKILL)
    assert run.end() == 1
    assert "ddplaunch: not restarted, as it would fail alike" in run.err
    assert [each["failed"] for each in run.outcome["attempts"]] == [True], f"{run.outcome} {run.err}"


@pytest.mark.parametrize(("restarts", "number"), [("0", signal.SIGTERM), ("1", signal.SIGHUP)], ids=["static", "c10d"])
def test_signal_before_ranks_run(restarts: str, number: int, tmp_path: Path) -> None:
    node = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--max-restarts", restarts)
    where = (*node, "--join-timeout", "0")  # no roll call, which would refuse before there is a torchrun
    run = Run(tmp_path, "wait", *where, "--master-port", str(free_port()), "--no-checks")
    within(lambda: run.guard() is not None, run)
    time.sleep(1.0)
    started = children(run.process.pid)
    assert len(started) == 3, "the guard, and two forks that wait for their rank until the other node is there"
    run.process.send_signal(number)
    assert run.end() == 128 + number  # the store's own deadline is 15 minutes
    assert "Traceback" not in run.err
    within(lambda: not of_folder(tmp_path))
