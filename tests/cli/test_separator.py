"""The ``--``: what stands behind it is the script's alone, and its absence is told with the command that works."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.cli_calls import Call
from tests.golden import sections


@pytest.mark.parametrize(("line", "corrected"), sections(Path(__file__).with_name("separators.txt")))
def test_the_corrected_command_runs_as_pasted(call: Call, folder: Path, line: str, corrected: str) -> None:
    """In ``separators.txt`` the command that is told stands below each line."""
    (folder / "my train.py").write_text((folder / "train.py").read_text())
    (folder / "t.py").touch()
    (folder / "e.py").write_text("A=1\n")
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o755)
    said = call(*shlex.split(line))
    assert said.status == 2 and "error[separator-missing]" in said.err
    fix = re.search(r"fix: `(.*?)`\n", re.sub(r"\n {7}", " ", said.err), re.DOTALL)
    assert fix, said.err
    assert f"{fix[1]}\n" == f"ddplaunch {corrected}"
    pasted = call("run", "--dry-run", *shlex.split(fix[1])[2:])
    assert pasted.status == 0, pasted.err


HOSTILE = ["--help", "-h", "--r=16", "--", "--batch-size", "3", "", " ", "a\n\udcff\x1b[31m", "{X}", "{{lr}}"]


@pytest.mark.parametrize(
    "typed", ["2 \u2014 t.py", "2 \u2013\u2013 t.py", "2 \u2014accum 1 -- t.py", "2 \u2013accum=1 -\u2014 t.py"]
)
def test_dashes_of_a_web_page_are_hyphens(call: Call, folder: Path, typed: str) -> None:
    (folder / "t.py").touch()
    said = call("run", "--dry-run", *typed.split(), "\u2014x")
    assert said.status == 0 and said.out.endswith("-- t.py '\u2014x'\n"), said.out


def test_a_launch_line_is_converted_without_a_separator(call: Call) -> None:
    line = "torchrun --nproc_per_node=4 -- train.py"
    said = call("convert", *line.split())
    assert (said.status, said.out) == (0, "ddplaunch run 4 -- train.py\n"), said.err
    assert "`torchrun.sh` cannot be read" in call("convert", "torchrun.sh").err


@pytest.mark.parametrize(
    "name", ["a b.py", "it's.py", "new\nline.py", "$HOME.py", "{lr}.py", "b\udcffad.py", "-x.py", "日本.py"]
)
def test_what_stands_behind_is_untouched(call: Call, folder: Path, name: str) -> None:
    (folder / name).write_text((folder / "train.py").read_text())
    said = call("plan", "2", "--json", "--no-forward", "--", name, *HOSTILE)
    assert said.status == 0, said.err
    plan, named = json.loads(said.out), "./-x.py" if name == "-x.py" else name
    expected = ["{lr}" if word == "{{lr}}" else word for word in HOSTILE]
    assert plan["target"] == {"kind": "script", "name": named, "args": expected, "before": []}
    assert plan["argv"][plan["argv"].index("--") :] == ["--", named, *expected]


def test_the_launch_of_another_launcher_is_said(call: Call, folder: Path) -> None:
    said = call("run", "--no-checks", "--dry-run", "--", "bash", "old.sh")
    assert said.status == 0  # there is no such script, and nothing says otherwise
    (folder / "old.sh").write_text("cd .\ntorchrun --nproc_per_node=2 train.py --x\n")
    for shell in ("bash", "sh"):
        said = call("run", "--", shell, "old.sh")
        assert said.status == 4 and "fix: `ddplaunch run 2 -- train.py --x`" in said.err
    for launcher in ("accelerate launch", "deepspeed --num_gpus 2"):  # installed or not
        said = call("run", "2", "--device", "cpu", "--", *launcher.split(), "train.py")
        assert said.status == 4 and "error[script-is-launcher]" in said.err
    said = call("run", "2", "--device", "cpu", "--dry-run", "--", "train.py", "old.sh")
    assert "script-is-launcher" not in said.err
