"""The scripts of docs/frameworks.md, by its commands and with the frameworks themselves, and the example training."""

from __future__ import annotations

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import skip
from tests.hosts.launching import clean_environment, ddplaunch, run_to_end
from tests.readme_blocks import samples

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[1] / "docs" / "frameworks.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ddplaunch (run 2 --device cpu .*)$", PAGE, re.M)
SCRIPTS = [name for name in samples(PAGE) if name.endswith(".py")]
#: What each launch of the page plans for a rank: twice the rate of one process, with and without accumulation.
BATCH_SIZE, LEARNING_RATE = 8, 0.02


def test_every_script_of_the_page_has_a_command() -> None:
    assert [command.partition(" -- ")[2].partition(" ")[0] for command in COMMANDS] == SCRIPTS


@pytest.mark.parametrize("command", COMMANDS, ids=SCRIPTS)
def test_ranks_train_together_by_the_planned_numbers(command: str, tmp_path: Path) -> None:
    for package in ("accelerate", "transformers", "lightning", "hydra"):
        if find_spec(package) is None:
            skip(f"{package} is not installed")
    for name, text in samples(PAGE).items():
        tmp_path.joinpath(name).write_text(text, encoding="utf-8")
    status, said = run_to_end(ddplaunch(*shlex.split(command)), tmp_path, clean_environment(), 550)
    assert status == 0, said
    record = tmp_path / ".ddplaunch" / "latest"
    outcome = json.loads((record / "outcome.json").read_text(encoding="utf-8"))
    notes = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(record.rglob("*.observed.json"))]
    assert outcome["findings"] == []
    assert [note["rank"] for note in notes] == [0, 1]
    for note in notes:
        assert note["ddp"], note
        assert note["loaders"][0]["batch_size"] == BATCH_SIZE
        assert note["optimizers"][0]["rates"][0] == pytest.approx(LEARNING_RATE)


# The example training: its loss falls on two ranks, and only a whole checkpoint is left


def test_two_ranks_learn_and_rank_0_alone_speaks_and_saves(tmp_path: Path) -> None:
    """By ddplaunch: a tenth of the ranks of plain torchrun abort at their end, where nobody waits for gloo."""
    example = Path(__file__).parents[1] / "ddplaunch" / "examples" / "train_char.py"
    words = ddplaunch("run", "2", "--device", "cpu", "--start", "warm", "--", str(example), "--device", "cpu")
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
