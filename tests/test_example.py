"""The example training: its loss falls, alone and on two ranks, and only a whole checkpoint is left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "ddplaunch" / "examples" / "train_char.py"

pytestmark = pytest.mark.slow


def run(*words: str, folder: Path) -> str:
    """Run the interpreter with ``words`` in ``folder``, and return what was printed; it has to succeed."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def losses(output: str) -> list[float]:
    """Return the losses of the progress lines, in order."""
    return [float(match[1]) for match in re.finditer(r"^epoch .* loss ([0-9.]+) ", output, re.MULTILINE)]


def test_two_ranks_learn_and_rank_0_alone_speaks_and_saves(tmp_path: Path) -> None:
    """By ddplaunch: a tenth of the ranks of plain torchrun abort at their end, where nobody waits for gloo."""
    words = ("-m", "ddplaunch", "run", "2", "--device", "cpu", "--start", "warm", "--", str(EXAMPLE), "--device", "cpu")
    output = run(*words, "--epochs", "1", "--steps-per-epoch", "60", "--save", "models/char.pt", folder=tmp_path)
    seen = losses(output)
    assert len(seen) == 4, "one line for steps 1, 20, 40 and 60"
    assert 4.2 < seen[0] < 5.2, "an untrained model is near log(97)"
    assert seen[-1] < 3.0
    assert "2 x cpu" in output
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["char.pt"]
    (other,) = tmp_path.rglob("attempt-0/rank-1.out")
    assert other.read_text() == ""


def test_plain_python_trains_one_rank(tmp_path: Path) -> None:
    output = run(
        str(EXAMPLE), "--device", "cpu", "--epochs", "1", "--steps-per-epoch", "8", "--log-every", "4", folder=tmp_path
    )
    assert "1 x cpu" in output
    assert len(losses(output)) == 3
    assert not list(tmp_path.iterdir()), "nothing is written unless --save asks for it"


#: Each training is a fork of a process that has imported torch once.
ONE_AFTER_ANOTHER = """
import os, runpy, sys
import torch._dynamo  # an optimizer imports it
example, *trainings = sys.argv[1:]
for number, words in enumerate(trainings):
    if os.fork() == 0:
        os.dup2(os.open(str(number), os.O_CREAT | os.O_WRONLY), 1)
        os.dup2(1, 2)
        sys.argv = [example, *words.split()]
        runpy.run_path(example, run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_accumulation_and_the_seed_decide_the_numbers(tmp_path: Path) -> None:
    common = "--device cpu --epochs 1 --steps-per-epoch 3 --log-every 1 --batch-size"
    trainings = ("8 --accum 2", "8 --accum 2", "8 --accum 2 --seed 1", "16", "99999999")
    statuses = run(
        "-c", ONE_AFTER_ANOTHER, str(EXAMPLE), *(f"{common} {words}" for words in trainings), folder=tmp_path
    )
    assert statuses.split() == ["0", "0", "0", "0", "1"]
    *printed, too_large = ((tmp_path / str(number)).read_text() for number in range(len(trainings)))
    first, again, other, whole = map(losses, printed)
    assert len(first) == 3 and first == again != other
    assert whole == pytest.approx(first, abs=0.002), "two micro-batches of 8 are the samples of one batch of 16"
    assert "--batch-size 99999999 is more than a rank's share" in too_large
