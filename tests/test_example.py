"""The example training: its loss falls, with and without torchrun, and only a whole checkpoint is left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "ddplaunch" / "examples" / "train_char.py"

pytestmark = pytest.mark.slow


def start(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the interpreter with ``words`` in ``folder``."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )


def run(*words: str, folder: Path) -> str:
    """Run it, and return what was printed; it has to succeed."""
    done = start(*words, folder=folder)
    assert done.returncode == 0, done.stdout
    return done.stdout


def losses(output: str) -> list[float]:
    """Return the losses of the progress lines, in order."""
    return [float(match[1]) for match in re.finditer(r"^epoch .* loss ([0-9.]+) ", output, re.MULTILINE)]


def test_two_ranks_by_torchrun_learn_and_rank_0_alone_speaks_and_saves(tmp_path: Path) -> None:
    """Plain torchrun waits for no thread of gloo at its ranks' end, so that now and then one aborts: once more then."""
    by_torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE))
    options = ("--device", "cpu", "--epochs", "1", "--steps-per-epoch", "60", "--save", "models/char.pt")
    for _ in range(10):
        done = start(*by_torchrun, *options, folder=tmp_path)
        if "terminate called without an active exception" not in done.stdout:
            break
    output = done.stdout
    assert done.returncode == 0, output
    seen = losses(output)
    assert len(seen) == 4, "one line for steps 1, 20, 40 and 60, from one rank"
    assert 4.2 < seen[0] < 5.2, "an untrained model is near log(97)"
    assert seen[-1] < 3.0
    assert "2 x cpu" in output
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["char.pt"]


def test_plain_python_trains_one_rank(tmp_path: Path) -> None:
    output = run(
        str(EXAMPLE), "--device", "cpu", "--epochs", "1", "--steps-per-epoch", "8", "--log-every", "4", folder=tmp_path
    )
    assert "1 x cpu" in output
    assert len(losses(output)) == 3
    assert not list(tmp_path.iterdir()), "nothing is written unless --save asks for it"


def test_accumulation_and_the_seed_decide_the_numbers(tmp_path: Path) -> None:
    common = (str(EXAMPLE), "--device", "cpu", "--epochs", "1", "--steps-per-epoch", "3", "--log-every", "1")
    first = losses(run(*common, "--batch-size", "8", "--accum", "2", folder=tmp_path))
    again = losses(run(*common, "--batch-size", "8", "--accum", "2", folder=tmp_path))
    other = losses(run(*common, "--batch-size", "8", "--accum", "2", "--seed", "1", folder=tmp_path))
    assert first == again != other
    # Two micro-batches of 8 are one batch of 16: the same samples, the same loss.
    assert losses(run(*common, "--batch-size", "16", folder=tmp_path)) == pytest.approx(first, abs=0.002)


def test_a_batch_that_no_rank_can_fill_is_named(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE), "--batch-size", "99999999"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "--batch-size 99999999 is more than a rank's share" in done.stderr
