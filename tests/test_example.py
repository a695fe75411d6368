"""The example training: its loss falls on two ranks, and only a whole checkpoint is left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hosts.launching import clean_environment, ddplaunch, run_to_end

EXAMPLE = Path(__file__).parent.parent / "ddplaunch" / "examples" / "train_char.py"

pytestmark = pytest.mark.slow


def test_two_ranks_learn_and_rank_0_alone_speaks_and_saves(tmp_path: Path) -> None:
    """By ddplaunch: a tenth of the ranks of plain torchrun abort at their end, where nobody waits for gloo."""
    words = ddplaunch("run", "2", "--device", "cpu", "--start", "warm", "--", str(EXAMPLE), "--device", "cpu")
    more = ("--epochs", "1", "--steps-per-epoch", "40", "--batch-size", "8", "--save", "models/char.pt")
    environment = clean_environment(OMP_NUM_THREADS="1")
    status, said = run_to_end([*words, *more], tmp_path, environment, 240)
    assert status == 0, said
    seen = [float(match[1]) for match in re.finditer(r"^epoch .* loss ([0-9.]+) ", said, re.MULTILINE)]
    assert len(seen) == 3, "one line for steps 1, 20 and 40"
    assert 4.2 < seen[0] < 5.2, "an untrained model is near log(97)"
    assert seen[-1] < 3.3
    assert "2 x cpu" in said
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["char.pt"]
    (other,) = tmp_path.rglob("attempt-0/rank-1.out")
    assert other.read_text() == ""
