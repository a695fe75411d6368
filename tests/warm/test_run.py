"""`ddplaunch run --start warm` for real: what ranks see and print, how runs end, and that nothing is left of them."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plugin_runs import DEADLINE_S, RUN_ID, Run, of_folder
from tests.hosts.launching import clean_environment, ddplaunch

pytestmark = pytest.mark.slow

WARM = ("--start", "warm", "--no-checks")
LOOK = r"""
import gc, json, os, sys

main = sys.modules["__main__"]
print("forked" if gc.get_freeze_count() > 1000 else "cold", flush=True)
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "file": __file__, "name": __name__,
    "spec": __spec__ and __spec__.name, "main": main.__dict__ is globals(), "flags": list(sys.flags),
    "cwd": os.getcwd(), "loaded": "ddplaunch" in sys.modules, "umask": os.umask(0o22), "tty": os.isatty(1),
    "environ": {name: text for name, text in os.environ.items() if name.startswith(("DDPLAUNCH", "OMP", "PYTHON"))
                and name not in ("DDPLAUNCH_LAUNCH", "DDPLAUNCH_METRICS")},  # random; rank 0's alone
    "preloaded": "colorsys" in sys.modules,
}))
sys.stdout.write("no end of line")
sys.stderr.write(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\n")
if "child" in sys.argv and os.fork() == 0:
    import time
    time.sleep(120)
"""


def look(folder: Path, *words: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    (folder / "look.py").write_text(LOOK)
    command = ddplaunch("run", "2", "--device", "cpu", "--no-checks", "--run-id", RUN_ID, *words)
    env = clean_environment(NO_COLOR="1", COLUMNS="200", **changes)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_S)


def test_ranks_see_what_cold_ones_see(tmp_path: Path) -> None:
    told: dict[str, Any] = {}
    for way in ("cold", "warm"):
        done = look(tmp_path, "--start", way, "--", "look.py", "--x", "child")
        assert done.returncode == 0, done.stderr
        assert of_folder(tmp_path) == []
        assert "rank 0 of 2\n" in done.stderr and "rank 1" not in done.stderr
        first, world, rest = done.stdout.splitlines()
        assert (first, rest) == ({"cold": "cold", "warm": "forked"}[way], "no end of line")
        told[way] = json.loads(world)
        record = tmp_path / ".ddplaunch" / "runs" / RUN_ID
        attempt = record / "node-0" / "attempt-0"
        assert (attempt / "rank-0.out").read_text() == done.stdout == (attempt / "rank-1.out").read_text()
        assert (attempt / "rank-1.err").read_text() == "rank 1 of 2\n"
        assert json.loads((record / "outcome.json").read_text())["state"] == "succeeded"
        record.rename(tmp_path / way)
    assert told["warm"] == told["cold"]
    assert told["warm"]["argv"] == ["look.py", "--x", "child"] and told["warm"]["path"][0] == str(tmp_path)


def test_modules_are_imported_once_and_a_missing_one_is_named(tmp_path: Path) -> None:
    done = look(tmp_path, "--start", "warm", "--preload", "colorsys,not_there", "--", "-m", "look")
    assert done.returncode == 0, done.stderr
    first, world, _ = done.stdout.splitlines()
    assert first == "forked" and json.loads(world)["preloaded"] and json.loads(world)["spec"] == "look"
    (line,) = [line for line in done.stderr.splitlines() if "not_there" in line and "cpu" not in line]
    assert line == "ddplaunch: `--preload not_there`: ModuleNotFoundError: No module named 'not_there'"


def test_the_pasted_dry_run_is_warm_and_a_cold_start_says_why(tmp_path: Path) -> None:
    text = look(tmp_path, "--start", "warm", "--dry-run", "--", "look.py").stdout
    env = clean_environment()
    done = subprocess.run(["sh"], input=text, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0 and done.stdout.startswith("forked\n"), done.stderr
    text = text.replace("-u -m torch", "-u -X dev -m torch")
    done = subprocess.run(["sh"], input=text, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0 and done.stdout.startswith("cold\n"), done.stderr
    assert (
        done.stderr.count("ddplaunch: cold start: torchrun was not started as `python -u -m torch.distributed.run`")
        == 1
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Return what launches a mode of the script warm; what still runs when a test ends is killed."""
    started: list[Run] = []

    def run(mode: str, *options: str, **changes: Any) -> Run:
        started.append(Run(tmp_path, mode, *WARM, *options, **changes))
        return started[-1]

    yield run
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()


def test_an_exception_is_told_as_of_a_cold_rank(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start("exception")
    assert run.end() == 1
    assert "cold start" not in run.err and "ValueError: the cause" in run.err and "rank 1" in run.err
    assert run.err.rstrip().rpartition("\n")[2].startswith("  fix: ")
    outcome = run.outcome
    assert (outcome["state"], outcome["exit_status"], outcome["first_failed_rank"]) == ("failed", 1, 1)
    assert (outcome["diagnosis"]["code"], outcome["diagnosis"]["rank"]) == ("script-exception", 1)
    text = run.file("rank-1.err").decode()
    assert text.count('  File "') == 2 and "ddplaunch" not in text, "frames that a cold rank has not"
    assert of_folder(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_long_import_can_be_broken_off(number: int, start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "never_ready.py").write_text(f"import time; open('importing', 'w'); time.sleep({2 * DEADLINE_S})")
    run = start("workers", "--preload", "never_ready")
    run.wait_for("importing")
    run.process.send_signal(number)
    assert run.end() == -number and "Traceback" not in run.err
    assert of_folder(tmp_path) == []
