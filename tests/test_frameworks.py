"""The scripts of docs/frameworks.md, by its commands and with the frameworks themselves, and the example training."""

from __future__ import annotations

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

from tests.conftest import skip
from tests.hosts.launching import clean_environment, ddplaunch, run_to_end
from tests.readme_blocks import samples

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[1] / "docs" / "frameworks.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ddplaunch (run 2 --device cpu .*)$", PAGE, re.M)
SCRIPTS = [name for name in samples(PAGE) if name.endswith(".py")]
#: The package of each name of the page.
TRACKERS = {"wandb": "wandb", "mlflow": "mlflow", "SummaryWriter": "tensorboard"}
TRACKER_LINES = re.findall(r"^    ((\w+)\S* ?.*ddplaunch\.current\(\).*)$", PAGE, re.M)
#: What each launch of the page plans for a rank: twice the rate of one process, with and without accumulation.
BATCH_SIZE, LEARNING_RATE = 8, 0.02


def test_every_script_of_the_page_has_a_command() -> None:
    assert [command.partition(" -- ")[2].partition(" ")[0] for command in COMMANDS] == SCRIPTS


@pytest.mark.parametrize("command", COMMANDS, ids=SCRIPTS)
def test_ranks_train_together_by_the_planned_numbers(command: str, tmp_path: Path) -> None:
    for package in ("accelerate", "transformers", "lightning", "hydra"):
        if find_spec(package) is None:
            skip(f"{package} is not installed")
    train_by_plan(command, tmp_path)


def test_deepspeed_has_the_planned_numbers(tmp_path: Path) -> None:
    """DeepSpeed compiles its exchange on CPUs, once for a user, which takes a minute."""
    if find_spec("deepspeed") is None or which("g++") is None:
        skip("deepspeed or g++ is not installed")
    (made,) = re.findall(r"```py\n(config = .*?)```", PAGE, re.S)
    options, _, others = samples(PAGE)["accelerated.py"].partition("accelerator = ")
    (inputs,) = re.findall(r"^inputs = .*$", others, re.M)
    script = f"""import deepspeed
{options.replace("from accelerate import Accelerator", "").replace("DataLoader, ", "")}
{inputs}
samples, model = TensorDataset(inputs, inputs.sum(1)), torch.nn.Linear(4, 1)
{made}
for batch, labels in loader:
    engine.backward((engine(batch).squeeze(-1) - labels).square().mean())
    engine.step()
assert engine.train_batch_size() == {BATCH_SIZE} * 2 * 2
"""
    (tmp_path / "sharded.py").write_text(script, encoding="utf-8")
    train_by_plan("run 2 --device cpu --batch-size 8 --accum 2 --base-lr 0.01 -- sharded.py", tmp_path)


def train_by_plan(command: str, tmp_path: Path) -> None:
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
        assert note["ddp"] or (note["exchanged"] and "sharded.py" in command), note
        assert note["loaders"][0]["batch_size"] == BATCH_SIZE
        assert note["optimizers"][0]["rates"][0] == pytest.approx(LEARNING_RATE)


@pytest.mark.parametrize(("line", "name"), TRACKER_LINES, ids=[name for _, name in TRACKER_LINES])
def test_a_tracker_has_the_values_of_the_launch_once(line: str, name: str, tmp_path: Path) -> None:
    if find_spec(TRACKERS[name]) is None:
        skip(f"{TRACKERS[name]} is not installed")
    made_by = f"import {name}" if name == TRACKERS[name] else "from torch.utils.tensorboard import SummaryWriter"
    script = f"""import ddplaunch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    {made_by}
    {line}
dist.barrier()
dist.destroy_process_group()
"""
    (tmp_path / "tracked.py").write_text(script, encoding="utf-8")
    words = ddplaunch("run", "2", "--device", "cpu", "--lr", "0.0625", "--run-id", "only-once", "--", "tracked.py")
    status, said = run_to_end(words, tmp_path, clean_environment(WANDB_MODE="offline"), 240)
    assert status == 0, said
    paths = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".log"]
    paths = [path for path in paths if ".ddplaunch" not in path.parts]  # and without wandb's own logs
    logged = [text for path in paths if b"only-once" in (text := path.read_bytes())]
    assert [text.count(b"only-once") for text in logged] == [1], paths
    assert b"world_size" in logged[0]


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
