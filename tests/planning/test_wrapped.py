"""Words after ``--`` that start a script: which is the script, and what torchrun gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddplaunch.planning.launch import Target
from ddplaunch.planning.wrapped import looked_through
from tests.cli.cli_calls import Call


@pytest.mark.parametrize(
    ("front", "script"),
    [
        ("uv run", "train.py --lr 1"),
        ("conda run -n env python -u", "train.py"),
        ("nsys profile -o out -t cuda python", "-m pkg.train --lr 1"),
        ("numactl -N 0 -m 0 python3.11", "train.py"),
        ("/opt/bin/python", "train.py --resume old.py"),
    ],
)
def test_the_script_is_found_behind_what_starts_it(front: str, script: str) -> None:
    target = looked_through((*front.split(), *script.split()), ("train.py", "old.py").__contains__)
    assert target.before == tuple(front.split())
    named = ("-m", target.name) if target.kind == "module" else (target.name,)
    assert " ".join((*named, *target.args)) == script


@pytest.mark.parametrize(
    "line",
    [
        "python -c import(train.py) train.py",
        "python - train.py",
        "python -m",
        "uv run missing.py",
        "python3-config train.py",
        "docker run image python train.py",
        "bash train.sh train.py",
    ],
)
def test_any_other_program_stays_what_the_ranks_run(line: str) -> None:
    words = tuple(line.split())
    assert looked_through(words, "train.py".__eq__) == Target("executable", words[0], words[1:])


@pytest.mark.parametrize(
    ("front", "module"), [(("env", "A=1", "python", "-u"), False), (("env", "python"), True), (("python",), False)]
)
def test_numbers_reach_a_wrapped_script_and_torchrun_runs_the_wrapper(
    call: Call, folder: Path, front: tuple[str, ...], module: bool
) -> None:
    (folder / "own.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int)\n"
        "a = p.parse_args()\nimport torch\ntorch.utils.data.DataLoader([], batch_size=a.batch_size)\n"
    )
    words = ("-m", "own") if module else ("own.py",)
    done = call("run", "2", "--device", "cpu", "--batch-size", "3", "--dry-run", "--", *front, *words, "x")
    assert done.status == 0, done.err
    started = " ".join(done.out.split()).rpartition(" --no-python ")[2].replace("\\ ", "").split()
    assert started[2:] == [*front[1:], *words, "--batch-size", "3", "x"] and started[1].endswith(front[0])
