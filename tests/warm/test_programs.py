"""Forked programs end as `python -u PROGRAM` does: same output, same exit code."""

import json
import os
import re
import sys
import zipapp
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plugin_runs import DEADLINE_S
from tests.hosts.launching import run_and_read
from tests.warm.programs import PROGRAMS, ROOT, ends

WAYS_TO_END = [name for name, value in vars(ends).items() if callable(value) and not isinstance(value, type)]
COMMANDS = [
    *(["ends.py", name] for name in WAYS_TO_END if name not in ("exits", "signalled")),
    *(["ends.py", "exits", code] for code in ends.CODES),
    *(["ends.py", "signalled", f"SIG{name}"] for name in ("INT", "TERM", "KILL", "SEGV", "HUP")),
    *(["-m", "package.module", argument] for argument in ("an argument", "fail", "exit")),
    *(["-m", "package.missing"], ["-m", "package.relative"], ["-m", "package", "argument"], ["package/relative.py"]),
    *(["./../programs/ends.py", "raises"], ["folder", "argument"], ["folder", "fail"], ["program.zip", "argument"]),
    *([name] for name in ("broken_syntax.txt", "with_bom.txt", "in_latin.txt", "in_no_encoding.txt", "nowhere.py")),
]


def _run(folder: Path, commands: list[list[str]], *preload: str, **changes: str) -> dict[str, Any]:
    words = [sys.executable, "-u", str(ROOT / "tests/warm/both_ways.py"), str(folder), *preload]
    given = {"PYTHONPATH": f"{ROOT}{os.pathsep}{PROGRAMS}", "PYTHONFAULTHANDLER": "1", "COLUMNS": "80"}
    result = run_and_read(words, PROGRAMS, os.environ | given | changes, json.dumps(commands), timeout=DEADLINE_S)
    assert result.returncode == 0, result.stderr
    answers: dict[str, Any] = json.loads(result.stdout)
    return answers


@pytest.fixture(scope="module")
def ends_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ends")
    zipapp.create_archive(PROGRAMS / "folder", folder / "program.zip", filter=lambda path: path.suffix == ".py")
    commands = [[word.replace("program.zip", str(folder / "program.zip")) for word in each] for each in COMMANDS]
    answers = _run(folder, commands, "torch")  # which the programs never import
    assert answers["notes"] == []
    assert all(end["leads"] for end in answers["warm"]), "torchrun ends ranks by their process group"
    pairs = zip(answers["cold"], answers["warm"], strict=True)
    return {
        " ".join(command): {"cold": cold, "warm": warm} for command, (cold, warm) in zip(COMMANDS, pairs, strict=True)
    }


def _plain(end: dict[str, Any]) -> dict[str, Any]:
    """Without what two processes never share: pid and addresses."""
    texts = {key: re.sub(rf"0x[0-9a-f]+|\b{end['pid']}\b", "0x", end[key]) for key in ("out", "err")}
    return {"code": end["code"], "kept": end["kept"], **texts}


@pytest.mark.slow
@pytest.mark.parametrize("command", [" ".join(command) for command in COMMANDS])
def test_same_end(ends_of: dict[str, dict[str, Any]], command: str) -> None:
    both = ends_of[command]
    assert _plain(both["warm"]) == _plain(both["cold"])


@pytest.mark.slow
def test_programs_ended_in_different_ways(ends_of: dict[str, dict[str, Any]]) -> None:
    codes = {end["cold"]["code"] for end in ends_of.values()}
    assert codes >= {0, 1, 2, 3, 5, 7, -2, -9, -11, -15}
    assert f"{len(COMMANDS)} ways for a program to end" in (ROOT / "docs/warm-start.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "changes"),
    [
        (
            "cases.py",
            {"PYTHONWARNINGS": "error::BytesWarning,always:x", "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "7"}
            | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONSAFEPATH": "1"},
        ),
        ("cases.py", {"PYTHONDEVMODE": "1", "PYTHONOPTIMIZE": "2", "PYTHONTRACEMALLOC": "1", "TZ": "Asia/Kolkata"}),
        (
            "-m cases",
            {"PYTHONIOENCODING": "latin-1:replace", "PYTHONFAULTHANDLER": "", "PYTHONDONTWRITEBYTECODE": "1"}
            | {"PYTHONBREAKPOINT": "pprint.pprint", "PYTHONNOUSERSITE": "1", "PYTHONINTMAXSTRDIGITS": "5000"},
        ),
    ],
)
def test_the_world_of_other_settings(tmp_path: Path, command: str, changes: dict[str, str]) -> None:
    ended = _run(tmp_path, [[*command.split(), "an argument"]], **changes)
    assert [each["code"] for each in (*ended["cold"], *ended["warm"])] == [0, 0], ended
    texts = [(tmp_path / way / "0.json").read_text().replace(str(tmp_path / way), "FOLDER") for way in ("cold", "warm")]
    cold, warm = map(json.loads, texts)
    assert cold["frozen"] < 1000 < warm["frozen"]
    different = {name for name, answer in cold["answers"].items() if warm["answers"][name] != answer}
    known = {"stack", "printed stack", "error"} if command != "cases.py" else set()  # of what runs a module
    assert different <= {f"{name} before" for name in known | {"recursion depth"}}


def test_a_module_is_imported_once(tmp_path: Path) -> None:
    answers = _run(tmp_path, [["imports.py"], ["imports.py"]], "package.heavy", "package.missing")
    assert [end["out"] for end in answers["cold"]] == ["False True\n"] * 2
    assert [end["out"] for end in answers["warm"]] == ["True False\n"] * 2
    (note,) = answers["notes"]
    assert note == "`--preload package.missing`: ModuleNotFoundError: No module named 'package.missing'"


def test_a_thread_of_a_preloaded_module_makes_the_start_cold(tmp_path: Path) -> None:
    answers = _run(tmp_path, [["imports.py"]], "package.starts_thread", PYTHONWARNINGS="error")
    assert answers["notes"] == ["2 threads of C libraries run in torchrun's process already"]
    assert [end["out"] for end in answers["warm"]] == ["False True\n"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "which", "why"), [("SIGKILL", 0, ""), ("SIGKILL", 1, ""), ("SIGSTOP", 1, "timed out")]
)
def test_a_rank_starts_cold_where_the_process_that_was_forked_for_it_is_lost(number: str, which: int, why: str) -> None:
    words = [sys.executable, "-u", str(PROGRAMS / "loses_spare.py"), number, str(which)]
    done = run_and_read(words, PROGRAMS, os.environ | {"PYTHONPATH": str(ROOT)}, timeout=DEADLINE_S)
    *ranks, ends, left = done.stdout.splitlines()
    assert sorted(ranks) == (["0 0", "0 1"] if which == 0 else ["0 1", "1 0"]), done
    assert ends.startswith("[0, 0] cold start: the process that was forked for a rank was lost: ") and why in ends
    assert left == "[]"
