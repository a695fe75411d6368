"""What a script sees and does is the same under torchrun and where its ranks were forked, case by case."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plugin_runs import DEADLINE_S, Run, of_folder
from tests.hosts.launching import clean_environment, ddplaunch, run_and_read
from tests.warm.programs import PROGRAMS, ROOT

#: What differs and stays so; docs/warm-start.md says it.
KNOWN = {
    "recursion depth before",  # Python 3.11 counts the calls of C functions below the script
    "recursion depth after",
    "warning filters before",  # torch's are there before torch is imported
    "loggers before",
}
EARLY = "OMP_NUM_THREADS=2 TORCH_DISTRIBUTED_DEBUG=DETAIL TORCH_LOGS=+dynamo"


def launch(way: str, folder: Path) -> str:
    """Run the cases in three ranks by torchrun, cold or warm; $PROBE is ``folder``/``way``. Return what was said.

    What is ddplaunch's own, for which cold ranks are looked at, has nothing to do with torch.
    """
    (folder / way).mkdir()
    plain = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    ours = ddplaunch("run", "3", "--device", "cpu", "--no-checks", "--start", way, "--")
    env = clean_environment(OMP_NUM_THREADS="1", DDPLAUNCH_DIR=str(folder / "runs"), PROBE=str(folder / way))
    env["EARLY"] = EARLY
    script = ["./../programs/cases.py", "plain" if way == "cold" else "torch", "--an", "argument"]
    command = [*(plain if way == "torchrun" else ours), *script]
    done = subprocess.run(command, cwd=PROGRAMS, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stderr


def told(folder: Path, way: str, name: str) -> Any:
    return json.loads((folder / way / f"{name}.json").read_text().replace(f"{folder}/{way}", "FOLDER"))


@pytest.mark.slow
def test_cases_and_the_losses_of_trainings(tmp_path: Path) -> None:
    ways = ("torchrun", "cold", "warm")
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as a shell's `&` does
    try:
        for way in ways:
            said = launch(way, tmp_path)
            assert "cold start" not in said and "too late" not in said
    finally:
        signal.signal(signal.SIGQUIT, before)
    different = set()
    for rank in range(2):
        plain, cold, warm = (told(tmp_path, way, f"{rank}") for way in ways)
        assert plain["frozen"] == 0 < 1000 < warm["frozen"], "the rank was not forked"
        names = plain["answers"].keys()
        # what is ddplaunch's own, such as faulthandler, a cold rank has too
        own = {
            **cold["answers"],
            **{name.replace("before", "after"): cold["answers"][name] for name in cold["answers"]},
        }
        equal = {name for name in names if warm["answers"][name] in (plain["answers"][name], own.get(name))}
        different |= names - equal
        losses = told(tmp_path, "torchrun", f"losses-{rank}")
        assert len(losses) == 3 and all(len(set(one)) > 1 for one in losses.values())
        assert losses == told(tmp_path, "warm", f"losses-{rank}")
    assert different <= KNOWN
    promised = " ".join((ROOT / "docs/warm-start.md").read_text().split())
    assert f"{len(names)} things that a script can ask its process" in promised and "3 small trainings" in promised
    first, second = (told(tmp_path, "warm", f"{rank}")["chance"] for rank in range(2))
    assert [name for name, value in first.items() if second[name] == value] == []
    plain, warm = told(tmp_path, "torchrun", "2"), told(tmp_path, "warm", "2")  # its variables nothing saw before
    different = {name for name, value in plain.items() if warm[name] != value}
    assert different <= {"blas threads", "log level"}, "torch takes OMP_NUM_THREADS, numpy cannot any more"
    said = "".join(path.read_text() for path in (tmp_path / "runs").glob("runs/*/node-0/attempt-0/rank-2.err"))
    (line,) = (line for line in said.splitlines() if line.startswith("ddplaunch: "))
    assert "TORCH_LOGS came too late" in line


LOOKS = """
import gc, os, queue
print(gc.get_freeze_count() > 1000, getattr(queue, "mine", None), os.environ.get("CUSTOM"), flush=True)
"""
CUSTOM = "import os\nos.environ['CUSTOM'] = os.environ.get('RANK', 'none')\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "printed", "why"),
    [
        ("queue", "mine = 'own'\n", ["False own None"] * 2, "`queue.py` beside the script is named like what torch"),
        ("sitecustomize", CUSTOM, ["False None 0", "False None 1"], "sitecustomize.py is run by each interpreter that"),
    ],
)
def test_a_module_of_the_users_own_makes_the_start_cold(
    name: str, text: str, printed: list[str], why: str, tmp_path: Path
) -> None:
    (folder := tmp_path / "code").mkdir()
    (folder / f"{name}.py").write_text(text)
    (folder / "train.py").write_text(LOOKS)
    command = ddplaunch("run", "2", "--device", "cpu", "--no-checks", "--start", "warm", "--show", "all", "--")
    path = str(folder) if name == "sitecustomize" else ""
    env = clean_environment(COLUMNS="300", DDPLAUNCH_DIR=str(tmp_path / "runs"), PYTHONPATH=path)
    done = run_and_read([*command, "code/train.py"], tmp_path, env, timeout=DEADLINE_S)
    assert done.returncode == 0 and "cold start: " in done.stderr and why in done.stderr, done.stderr
    assert sorted(line.partition("] ")[2] for line in done.stdout.splitlines()) == printed


# A pasted command line, an import that is broken off, and what is left

LOOK = 'import gc, sys; print(gc.get_freeze_count() > 1000, "colorsys" in sys.modules, __spec__ and __spec__.name)'


@pytest.mark.slow
def test_the_pasted_dry_run_is_warm_and_imports_modules_once(tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    words = ("run", "2", "--device", "cpu", "--no-checks", "--dry-run", "--preload", "colorsys,not_there")
    command, env = ddplaunch(*words, "--start", "warm", "--", "-m", "look"), clean_environment()
    text = subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    done = subprocess.run(["sh"], input=text, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (0, "True True look\n"), done.stderr
    assert "ddplaunch: `--preload not_there`: ModuleNotFoundError: No module named 'not_there'\n" in done.stderr


@pytest.mark.slow
def test_a_long_import_can_be_broken_off(tmp_path: Path) -> None:
    (tmp_path / "never_ready.py").write_text(f"import time; open('importing', 'w'); time.sleep({2 * DEADLINE_S})")
    run = Run(tmp_path, "workers", "--start", "warm", "--no-checks", "--preload", "never_ready")
    run.wait_for("importing")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == -signal.SIGINT and "Traceback" not in run.err
    assert of_folder(tmp_path) == []
