"""``init`` writes what a first launch needs and replaces nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddplaunch import examples
from tests.cli.cli_calls import Call

OWN = """import argparse, torch
p = argparse.ArgumentParser()
p.add_argument("--batch-size", type=int, default=16)
p.add_argument("--lr", type=float, default=0.05)
a = p.parse_args()
torch.utils.data.DataLoader([], batch_size=a.batch_size)
torch.optim.SGD([torch.zeros(1)], lr=a.lr)
"""


def test_a_profile_has_the_numbers_of_the_script(call: Call, folder: Path) -> None:
    (folder / "own.py").write_text(OWN)
    said = call("init", "own.py")
    assert said.status == 0 and "`ddplaunch run 2 --profile own -- own.py`" in " ".join(said.err.split())
    profile = (folder / "ddplaunch.toml").read_text().partition("\n[profiles.own]\n")[2].splitlines()
    assert profile == [
        "batch-size = 16  # script: default at own.py:3",
        "# base-lr = 0.05  # script: default at own.py:4",
    ]
    planned = json.loads(call("plan", "2", "--device", "cpu", "--profile", "own", "--json", "--", "own.py").out)
    batch = planned["numbers"]["batch_size"]
    assert (batch["value"], batch["source"]) == (16, "profile")
    commented = (folder / "ddplaunch.toml").read_text().replace("# ", "", 3).replace("# ", "")
    assert "max-restarts = 3" in commented


def test_a_script_is_written_that_can_be_launched(call: Call, folder: Path) -> None:
    said = call("init", "mine.py", "--script")
    assert said.status == 0 and said.err.startswith("wrote mine.py and ddplaunch.toml; ")
    example = Path(examples.__file__).with_name("train_char.py")
    assert (folder / "mine.py").read_text() == example.read_text().replace("train_char.py", "mine.py")
    said = call("run", "2", "--device", "cpu", "--profile", "mine", "--dry-run", "--", "mine.py")
    assert said.status == 0 and "error" not in said.err


@pytest.mark.parametrize(
    ("words", "there", "says"),
    [
        ((), "ddplaunch.toml", "`ddplaunch.toml` exists"),
        (("--script",), "train.py", "`ddplaunch init train2.py --script`"),
        (("2",), "ddplaunch.toml", "`2` does not exist"),
    ],
)
def test_nothing_is_replaced(call: Call, folder: Path, words: tuple[str, ...], there: str, says: str) -> None:
    (folder / there).write_text("# mine\n")
    said = call("init", *words)
    assert said.status == 2 and says in said.err
    assert (folder / there).read_text() == "# mine\n"
    assert sorted(path.name for path in folder.iterdir()) == sorted({there, "train.py"})
    said = call("init", "new.py", "--script")
    assert said.status == 0 and (folder / there).read_text() == "# mine\n" and (folder / "new.py").exists()


def test_without_a_script_at_hand(call: Call, folder: Path) -> None:
    (folder / "train.py").rename(folder / "other.py")
    said = call("init")
    assert said.status == 2 and "`train.py` does not exist" in said.err and not (folder / "ddplaunch.toml").exists()
