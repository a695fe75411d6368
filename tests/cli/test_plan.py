"""What ``plan`` and ``--dry-run`` print for programs, and profiles behind them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.cli_calls import Call, call, folder

__all__ = ["call", "folder"]
NUMBERS = ["--batch-size", "8", "--accum", "2", "--base-lr", "1e-4", "--base-warmup", "10", "--dataset-size", "1000"]
LAUNCH = ["4", *NUMBERS, "--run-id", "r1", "--env", 'A=it\'s "a" $b\n*', "--no-checks"]
TARGET = ["--", "train.py", "--note", "é 日 \t"]


def exported(text: str) -> dict[str, str]:
    """Return what a shell has after evaluating ``text``."""
    script = f"{text}\nenv -0"
    result = subprocess.run(["sh", "-c", script], env={"PATH": os.environ["PATH"]}, capture_output=True, check=True)
    pairs = (item.split(b"=", 1) for item in result.stdout.split(b"\0") if item)
    return {os.fsdecode(name): os.fsdecode(value) for name, value in pairs}


def test_the_formats_agree(call: Call) -> None:
    plan: dict[str, Any] = json.loads(call("plan", *LAUNCH, "--json", *TARGET).out)
    assert plan["schema"] == 1
    assert plan["numbers"]["global_batch_size"]["value"] == 64
    assert plan["numbers"]["lr"]["value"] == pytest.approx(4e-4)
    assert plan["passed"][0]["arguments"] == ["--batch-size", "8"]
    assert yaml.safe_load(call("plan", *LAUNCH, "--yaml", *TARGET).out) == plan
    assert json.loads(call("run", *LAUNCH, "--dry-run", "--json", *TARGET).out) == plan
    shell = exported(call("plan", *LAUNCH, "--env", *TARGET).out)
    for variable in plan["environment"]:
        assert shell[variable["name"]] == variable["value"]
    assert shell["A"] == 'it\'s "a" $b\n*'
    assert json.loads(shell["DDPLAUNCH_PLAN"])["global_batch_size"] == 64


def test_env_with_and_without_a_pair(call: Call) -> None:
    assert "export A=1\n" in call("plan", "2", "--env", "A=1", "--env").out
    assert "export A=1\n" in call("plan", "2", "--env", "--env", "A=1").out
    assert "\nexport " not in call("plan", "2", "--env", "A=1").out
    assert call("plan", "2", "--env", "A").status == 2
    assert call("run", "2", "--dry-run", "--env", "--", "train.py").status == 2


def test_compare(call: Call) -> None:
    said = json.loads(call("plan", "1", *NUMBERS, "--compare", "1,2,4", "--json").out)
    assert [each["world_size"]["value"] for each in said["numbers"]] == [1, 2, 4]
    assert [each["global_batch_size"]["value"] for each in said["numbers"]] == [16, 32, 64]


@pytest.mark.slow
def test_the_dry_run_runs_when_pasted(call: Call, folder: Path) -> None:
    said = call(
        "run", "2", "--batch-size", "3", "--show", "all", "--dry-run", "--", "train.py", "--note", "it's {lr", "--", "x"
    )
    assert said.status == 0 and said.err == ""
    result = subprocess.run(
        ["sh"], input=said.out, cwd=folder, text=True, capture_output=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    lines = sorted(line.partition("] ")[2] for line in result.stdout.splitlines() if ":" in line.partition("] ")[0])
    assert [line.partition(" [")[0] for line in lines] == ["rank 0 of 2: 3 it's {lr", "rank 1 of 2: 3 it's {lr"]


def test_a_launch_that_would_be_refused_is_still_shown(call: Call) -> None:
    said = call("run", "2", "--data", "nowhere", "--dry-run", "--json", "--", "train.py")
    assert said.status == 4 and "error[data-missing]" in said.err
    assert [finding["code"] for finding in json.loads(said.out)["findings"]] == ["data-missing"]


PROFILE = """
batch-size = 2
accum = 2
env = ["A=profile", "B=profile"]

[profiles.big]
batch-size = 16
"""


@pytest.mark.parametrize(("name", "head"), [("ddplaunch.toml", ""), ("pyproject.toml", "[tool.ddplaunch]")])
def test_profiles(call: Call, folder: Path, name: str, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PROFILE.replace("[profiles.big]", "[tool.ddplaunch.profiles.big]") if head else PROFILE
    (folder / name).write_text(head + text)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    plain = json.loads(call("plan", "2", "--json").out)
    assert plain["numbers"]["batch_size"] == {"value": 2, "source": "profile", "detail": name}
    big = json.loads(call("plan", "2", "--profile", "big", "--json").out)
    assert big["numbers"]["batch_size"] == {"value": 16, "source": "profile", "detail": f"{name}, big"}
    assert big["numbers"]["accum"]["value"] == 2
    said = json.loads(call("plan", "2", "--profile", "big", "--batch-size", "4", "--env", "A=flag", "--json").out)
    assert said["numbers"]["batch_size"] == {"value": 4, "source": "flag", "detail": "--batch-size"}
    variables = {each["name"]: (each["value"], each["source"]) for each in said["environment"]}
    assert variables["A"] == ("flag", "flag") and variables["B"] == ("profile", "profile")
    assert variables["OMP_NUM_THREADS"] == ("7", "environment")
    assert "profile: " + name in call("plan", "2").out


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"batch-sise = 1", "did you mean `batch-size`?"),
        (b"batch-size = 'a'", "`batch-size = 'a'` is not an integer"),
        (b"batch-size = true", "`batch-size = True` is not an integer"),
        (b"lr = 1979-05-27", "is not a number"),
        (b"checks = 1", "as in `checks = true`"),
        (b"env = {A = 'b'}", 'as in `env = ["NAME=VALUE"]`'),
        (b"env = 3", "profile: ddplaunch.toml"),
        (b"batch-size = -3", "`--batch-size` is -3"),
        (b"batch-size = 1\nbatch_size = 2", "`batch-size` is set twice"),
        (b"batch-size = ", "cannot be read"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b"accum = " + b"1" * 5000, "cannot be read"),
        (b"accum = " + b"[" * 9000, "brackets are nested too deeply"),
        (b'run-dir = "a\\u0000"', "holds a null byte"),
        (b'device = "tpu"', "`--device tpu` is not known"),
        (b'ignore = ["shm_small"]', "`--ignore shm-too-small`"),
        (b"profiles = 3", "`profiles` is not a table"),
        (b"[profiles]\nbig = 3", "`profiles.big` is not a table"),
        (b"[profiles.bug]\n", "did you mean `bug`?"),
        (b"[profiles.big]\nlr = nan", "`--lr` is nan"),
    ],
)
def test_a_configuration_that_is_wrong(call: Call, folder: Path, content: bytes, says: str) -> None:
    (folder / "ddplaunch.toml").write_bytes(content)
    said = call("run", "2", *(["--profile", "big"] if b"profiles" in content else []), "--", "train.py")
    assert said.status == 2 and "nothing was launched" in said.err
    assert says in " ".join(said.err.split()), said.err
    assert not (folder / ".ddplaunch").exists()


def test_a_configuration_that_is_no_file(call: Call, folder: Path) -> None:
    (folder / "ddplaunch.toml").mkdir()
    said = call("plan", "2")
    assert said.status == 2 and "`ddplaunch.toml` cannot be read: Is a directory" in said.err
    (folder / "ddplaunch.toml").rmdir()
    (folder / "pyproject.toml").write_text("[tool]\nddplaunch = 3\n")
    assert "`tool.ddplaunch` in pyproject.toml is not a table" in call("plan", "2").err


def test_the_shell_text_of_a_dry_run_is_one_command(call: Call) -> None:
    text = call("run", *LAUNCH, "--dry-run", "--", "train.py", "--note", "é 日").out
    words = shlex.split(text, comments=True)
    behind = words[words.index("--") + 1 :]
    assert words[0] == "env" and behind[0] == "train.py"
    assert " ".join(behind).count("--batch-size 8") == 1 and behind[behind.index("--note") + 1] == "é 日"
    assert 'A=it\'s "a" $b\n*' in words


def test_environment_file_with_a_mark_and_foreign_line_ends(call: Call, folder: Path) -> None:
    (folder / "e").write_bytes("\ufeffA=1\r\nexport B='x y' # why\nC=a\u2028b\x0cc\n".encode())
    plan = json.loads(call("plan", "2", "--env-file", "e", "--json").out)
    values = {each["name"]: each["value"] for each in plan["environment"]}
    assert (values["A"], values["B"], values["C"]) == ("1", "x y", "a\u2028b\x0cc")
