"""Whether ranks are forked or start cold, what is said of it, and what the command line is then."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.cli.prepare import interpreter, shadowing
from ddplaunch.machine.facts import TorchFacts
from ddplaunch.machine.software import shadowing_file
from ddplaunch.planning.launch import Launch, Target
from ddplaunch.planning.resolve import Situation, decide_start
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Source, Unavailable
from ddplaunch.values.variable_names import SETTINGS
from tests.checks.healthy import healthy_facts, healthy_script
from tests.planning.test_capture import FOUND, TORCH
from tests.planning.test_resolve import decide, variables
from tests.planning.test_topology import said

CPU_TORCH = replace(TORCH, cuda=None)


def launched(shadow: str | None = None, torch: TorchFacts = CPU_TORCH, **options: Any) -> Launch:
    changes = {name: options.pop(name) for name in ("script", "environ", "pairs") if name in options}
    asked = said(**{"nproc": "2", "device": "cpu", **options})
    facts = healthy_facts(torch=torch)
    return decide(asked, facts, plugin=FOUND, python=("python", "-P"), shadowing=shadow, **changes)


def settings(launch: Launch) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(variables(launch).get(SETTINGS, "{}"))
    return found


def test_a_warm_launch_runs_torchrun_as_ranks_are_run() -> None:
    launch = launched(start="warm", preload="torchvision, torchvision,package.module")
    assert launch.argv[:4] == ("python", "-u", "-m", "torch.distributed.run")
    told = settings(launch)
    assert (told["start"], told["preload"]) == ("warm", ["torchvision", "package.module"])
    assert launch.notes == ("start warm: torch is imported once",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": "warm", "capture": False}, "no capture: `--no-capture`; "),
        ({"start": "warm", "preload": "a", "torchrun_arg": ["--tee 3"]}, "no capture: `--tee`"),
        ({"preload": "a", "nproc": "1"}, "`--preload` without effect: the ranks start cold"),
        ({"start": "cold", "preload": "a"}, "`--preload` without effect: the ranks start cold"),
    ],
)
def test_what_cannot_be_warm_says_why_and_starts_cold(options: dict[str, Any], words: str) -> None:
    launch = launched(**options)
    assert launch.notes[0].startswith(words) and "start warm: torch is imported once" not in launch.notes
    assert launch.argv[1] == "-P" and "start" not in settings(launch)


def test_a_program_of_its_own_is_never_forked() -> None:
    program = Target("executable", "./train.sh", ())
    situation = Situation(healthy_facts(torch=CPU_TORCH), healthy_script(), {}, (), None, ("python",), "run-1", "/runs")
    start = decide_start(said(start="warm", preload="a"), program, 2, "cpu", situation)
    assert not start.warm and start.preload == ()
    (note,) = start.notes
    assert note.startswith("cold start: `./train.sh` is a program of its own")
    for target, warm in (
        (Target("module", "train"), True),
        (None, True),
        (Target("script", "train.py", (), ("uv",)), False),
    ):
        assert decide_start(said(start="warm"), target, 2, "cpu", situation).warm is warm


@pytest.mark.parametrize(
    "changes",
    [
        {"nproc": "1"},
        {"device": "cuda"},
        {"torch": TORCH},
        {"torch": replace(CPU_TORCH, hip="6.0")},
        {"script": Unavailable("train.py is a binary")},
        {"script": healthy_script(code=())},  # it could not be read
    ],
)
def test_auto_is_cold_where_forks_were_not_proven_and_says_nothing(changes: dict[str, Any]) -> None:
    launch = launched(**changes)
    assert launch.argv == launched(start="auto", **changes).argv
    assert launch.argv[1] == "-P" and "start" not in settings(launch)
    assert launch.notes == ()
    if "script" not in changes:
        assert settings(launched(start="warm", **changes))["start"] == "warm"


@pytest.mark.parametrize("start", ["auto", "warm"])
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"script": healthy_script(early="train.py names OMP_NUM_THREADS before it imports torch")}, "train.py names"),
        ({"environ": {"LD_PRELOAD": "libjemalloc.so"}}, "LD_PRELOAD is set"),
        ({"environ": {"COVERAGE_PROCESS_START": "x"}}, "COVERAGE_PROCESS_START is set"),
        ({"environ": {"PYDEVD_USE_CYTHON": "x"}}, "PYDEVD_USE_CYTHON is set"),
        ({"pairs": (("MALLOC_CONF", "a:b", Source("flag", "--env")),)}, "MALLOC_CONF is set"),
        ({"shadow": "queue.py"}, "`queue.py` in this directory"),
    ],
)
def test_what_a_fork_would_do_otherwise_makes_the_start_cold(start: str, changes: dict[str, Any], why: str) -> None:
    launch = launched(start=start, **changes)
    assert launch.argv[1] == "-P" and "start" not in settings(launch)
    assert launch.notes[0].startswith(f"cold start: {why}")
    in_a_notebook = launched(start=start, environ={"PYDEVD_USE_FRAME_EVAL": "NO"})
    assert settings(in_a_notebook)["start"] == settings(launched())["start"] == "warm"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": "hot"}, "--start"),
        ({"start": "warm", "preload": ""}, "names no module"),
        ({"start": "warm", "preload": "a."}, "names no module"),
        ({"start": "warm", "preload": "-m"}, "names no module"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"capture": False}])
def test_words_that_say_nothing_are_refused(options: dict[str, Any], words: str, more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=words):
        said(**options, **more)


@pytest.mark.parametrize("name", ["random.py", "types.cpython-311-x86_64-linux-gnu.so", "numpy/__init__.py"])
def test_a_file_named_like_a_library_is_found(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert shadowing_file(str(tmp_path)) == name.partition("/")[0]
    (tmp_path / name).unlink()
    for other in ("train.py", "test.py", "logging", "queue.txt", "torch.yaml", "random.md"):
        (tmp_path / other).touch()
    (tmp_path / "json").mkdir()  # without __init__.py any other json goes before it
    assert shadowing_file(str(tmp_path)) is shadowing_file(str(tmp_path / "absent")) is None


@pytest.mark.slow  # imports torch
def test_every_package_that_torch_looks_for_has_a_name_that_is_kept_out() -> None:
    program = (
        "import sys; from types import SimpleNamespace\n"
        "from ddplaunch.machine.software import _OF_TORCH as known\n"
        "find = lambda name, *_: names.add(name.partition('.')[0])\n"
        "names = set(); sys.meta_path.insert(0, SimpleNamespace(find_spec=find)); import torch.distributed.run\n"
        "print(*names - sys.stdlib_module_names - known)"
    )
    names = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert set(names) <= {"ddplaunch", "envwrap", "org"}, "envwrap is a part of tqdm, org of Jython"


def test_the_directory_is_looked_at_only_where_it_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "queue.py").touch()
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    assert shadowing(said(start="cold"), tmp_path) is None
    assert shadowing(said(), tmp_path) == shadowing(said(start="warm"), tmp_path)
    assert shadowing(said(start="warm"), tmp_path) == ("queue.py" if "-P" in interpreter() else None)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert shadowing(said(start="warm"), tmp_path) is None
