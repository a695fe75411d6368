"""Signals as people and schedulers send them to real runs: Ctrl-C, SIGUSR1, SIGKILL to a whole group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddplaunch.cli.execute import interruptible
from tests.agent.guarded import ROOT, Guarded, until
from tests.agent.plugin_runs import DEADLINE_S, RUN_ID, Run, children, of_folder, within
from tests.hosts.launching import clean_environment, ddplaunch

WAIT = "import time\nprint('up')\ntime.sleep(300)"


# A whole process group dies


@pytest.mark.slow
def test_nothing_survives_the_death_of_the_process_group(tmp_path: Path) -> None:
    run = Run(tmp_path, "workers", "--start", "warm", start_new_session=True)
    run.wait_for("running-0-0", "running-1-0")
    run.announced()
    os.killpg(run.process.pid, signal.SIGKILL)
    assert run.process.wait() == -signal.SIGKILL
    within(lambda: not of_folder(tmp_path))
    run.process.communicate()
    assert run.outcome["state"] == run.outcome["diagnosis"]["code"] == "killed" and "cold start" not in run.err
    assert {rank["ended_by"] for rank in run.outcome["attempts"][0]["ranks"]} == {"launcher"}


@pytest.mark.slow
@pytest.mark.parametrize("start", ["cold", "warm"])
def test_ranks_end_with_torchrun_where_no_guard_is_left(start: str, tmp_path: Path) -> None:
    run = Run(tmp_path, "wait", "--start", start)
    run.wait_for("running-0-0", "running-1-0")
    guard = run.announced()
    os.kill(guard, signal.SIGSTOP)  # it would be replaced after a while, and goes on when torchrun is gone
    os.kill(guard, signal.SIGKILL)
    run.process.kill()
    run.process.communicate()
    within(lambda: not of_folder(tmp_path))


# Ctrl-C


@pytest.mark.slow
def test_the_grace_holds_for_the_death_of_a_rank(tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open('deaf-' + os.environ['RANK'], 'w').close()\n"
        "while os.environ['RANK'] == '1' and not os.path.exists('deaf-0'): time.sleep(0.01)\n"
        "if os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(300)"
    )
    words = ddplaunch("run", "2", "--device", "cpu", "--grace", "1", "--run-id", RUN_ID, "--", "deaf.py")
    done = subprocess.run(words, cwd=tmp_path, env=clean_environment(), stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3 and "rank 1" in done.stderr
    deaf, died = json.loads((tmp_path / ".ddplaunch/runs" / RUN_ID / "outcome.json").read_text())["attempts"][0][
        "ranks"
    ]
    assert deaf["signal"] == "SIGKILL"
    assert deaf["ended_s"] - died["ended_s"] < 25, "torchrun itself waits 30 s for the others"


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.03, 1.0])
def test_an_early_interrupt_prints_no_traceback(after_s: float, tmp_path: Path) -> None:
    """Whether it comes in ddplaunch, in torchrun's import of torch, or when ranks run, which are no Python here."""
    begins = "import os; from ddplaunch.__main__ import main; os.write(1, b'up'); main()"
    words = ddplaunch("run", "2", "--device", "cpu", "--show", "1", "--", "sleep", "300")
    words[1:3] = ["-c", begins]
    ends: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    launch = subprocess.Popen(words, cwd=tmp_path, env=clean_environment(), **ends)
    assert launch.stdout and launch.stdout.read(2) == b"up"
    time.sleep(after_s)
    launch.send_signal(signal.SIGINT)
    _, err = launch.communicate(timeout=DEADLINE_S)
    assert launch.returncode in (130, -signal.SIGINT), err
    assert b"Traceback" not in err and b"KeyboardInterrupt" not in err
    within(lambda: not of_folder(tmp_path))


@pytest.mark.parametrize("how", ["command", "module"])
def test_nothing_is_imported_while_an_interrupt_prints_a_traceback(how: str, tmp_path: Path) -> None:
    """SIGINT comes as the first module of ddplaunch's is imported; before it nothing is that Python's start had not."""
    (tmp_path / "ddplaunch").mkdir()
    begins = "import os, time\nif not os.environ.get('IMPORTS'):\n    os.kill(os.getpid(), 2)\n    time.sleep(60)\n"
    (tmp_path / "ddplaunch" / "__init__.py").write_text(begins if how == "command" else "")
    (tmp_path / "ddplaunch" / "cli").mkdir()
    (tmp_path / "ddplaunch" / "cli" / "__init__.py").write_text("")
    (tmp_path / "ddplaunch" / "cli" / "main.py").write_text(f"{begins}def main():\n    pass\n")
    (tmp_path / "ddplaunch" / "__main__.py").write_text((ROOT / "ddplaunch" / "__main__.py").read_text())
    words = [str(ROOT / "bin" / "ddplaunch")] if how == "command" else ["-m", "ddplaunch"]
    given = {**clean_environment(), "PYTHONPATH": str(tmp_path)}
    ends: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 60, "check": False}
    done = subprocess.run([sys.executable, *words], env=given, **ends)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    if how == "module":  # where Python itself imports what it runs modules with
        return
    listed = subprocess.run([sys.executable, "-X", "importtime", *words], env={**given, "IMPORTS": "1"}, **ends)
    names = [line.rpartition("|")[2].strip() for line in listed.stderr.splitlines()]
    assert names[names.index("site") + 1] == "ddplaunch"


def test_torchrun_reads_what_makes_it_interruptible_and_nothing_of_it_stays(tmp_path: Path) -> None:
    shows = "import json, os, signal; print(json.dumps([signal.getsignal(2) == signal.SIG_DFL, dict(os.environ)]))"
    (tmp_path / "shows.py").write_text(f"{shows}\nimport gc, torch; assert gc.isenabled()")
    (tmp_path / "torch.py").write_text("import gc; assert not gc.isenabled()")
    given = clean_environment(PYTHONPATH=str(tmp_path))
    argv = (sys.executable, "-P" if sys.version_info >= (3, 11) else "-u", "-m", "shows")
    environ = {**given, **interruptible(argv, given)}
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ends, seen = json.loads(done.stdout)
    assert ends is True and seen["PYTHONPATH"] == str(tmp_path)
    assert not {"DDPLAUNCH_SITE", "DDPLAUNCH_INTERRUPTIBLE"} & seen.keys()
    assert interruptible((sys.executable, "-I", "-m", "shows"), {}) == {}


# What schedulers and users give a meaning

CATCHES = """
import os, signal, time
from pathlib import Path
rank = os.environ["RANK"]
if rank == "0":
    for each in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, lambda number, _: Path(f"caught-{number}").touch())
Path("up-" + rank).write_text(str(os.getpid()))
while not Path("go").exists():
    time.sleep(0.01)
"""


def cpu_s(pids: Sequence[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


@pytest.mark.slow
def test_a_launch_waits_without_work_and_ranks_get_what_they_catch(tmp_path: Path) -> None:
    """A hangup that was ignored before, as nohup does, ends nothing."""
    (tmp_path / "train.py").write_text(CATCHES)
    words = ["nohup", *ddplaunch("run", "2", "--device", "cpu", "--", "train.py")]
    ends: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    launch = subprocess.Popen(words, cwd=tmp_path, env=clean_environment(), text=True, **ends)
    files = [tmp_path / f"up-{rank}" for rank in range(2)]
    within(lambda: all(file.exists() and file.read_text() for file in files))
    ranks = [int(file.read_text()) for file in files]
    beside = [launch.pid, *(pid for pid in children(launch.pid) if pid not in ranks)]
    assert len(beside) == 2, "torchrun and the guard"

    def idle() -> bool:
        before = cpu_s(beside)
        time.sleep(2.0)
        return cpu_s(beside) - before < 0.1

    within(idle)
    launch.send_signal(signal.SIGHUP)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        launch.send_signal(number)
        within(lambda number=number: (tmp_path / f"caught-{number}").exists())  # type: ignore[misc]
    (tmp_path / "go").touch()
    _, err = launch.communicate(timeout=DEADLINE_S)
    assert launch.returncode == 0
    assert "ddplaunch: SIGUSR1 passed on to 1 rank\n" in err and "error[" not in err


def test_a_signal_that_no_rank_catches_does_nothing_and_one_that_all_processes_got_is_not_passed_on(
    tmp_path: Path,
) -> None:
    with (tmp_path / "err").open("wb") as err, Guarded(tmp_path, 2, err) as guarded:
        guarded.attempt([WAIT])
        until(lambda: b"up" in guarded.file("attempt-0/rank-0.out"), "the rank runs")
        guarded.signalled(signal.SIGUSR1)
        until(lambda: b"SIGUSR1 received" in (tmp_path / "err").read_bytes(), "it is said")
        assert (tmp_path / "err").read_bytes() == b"ddplaunch: SIGUSR1 received, but no rank catches it: ignored\n"
        guarded.guard.send_signal(signal.SIGUSR2)
        guarded.signalled(signal.SIGUSR2)
        time.sleep(0.3)
        assert guarded.ranks[0].poll() is None and b"SIGUSR2" not in (tmp_path / "err").read_bytes()
        guarded.ranks[0].kill()
        guarded.wait()
        announced = guarded.end("failed")[1].announced
        assert announced is not None and announced[0] == "SIGUSR2", "it was for the ranks"
