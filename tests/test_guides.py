"""The five guides' launch scripts and commands, run for real on CPU with stand-ins that take the guides' arguments."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
STANDINS = TESTS / "standins"
SCRIPTS = TESTS.parent / "scripts"
SAMPLES = 48
STALE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Run:
    """What one launch left behind: the evidence of every rank, who saved, and what was printed."""

    ranks: tuple[dict[str, Any], ...]
    savers: tuple[str, ...]
    output: str


class Guide:
    """A guide's project in a folder of its own (with a space and a quote in its path), ready to be launched."""

    def __init__(self, name: str, tmp_path: Path) -> None:
        self.folder = tmp_path / "a guide's project"
        shutil.copytree(STANDINS / name, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.out = tmp_path / "evidence"
        self.out.mkdir()
        self.environment = {name: value for name, value in os.environ.items() if name not in STALE} | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(STANDINS),
            "STANDIN_OUT": str(self.out),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``command`` in the project's folder; a name ending in .sh is one of our scripts."""
        words = ["bash", str(SCRIPTS / command[0]), *command[1:]] if command[0].endswith(".sh") else [*command]
        return subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )

    def run(self, *command: str, **environment: str) -> Run:
        """Run ``command``, which has to succeed, and collect the evidence."""
        done = self.start(*command, **environment)
        assert done.returncode == 0, done.stdout
        count = len(list(self.out.glob("rank-*.json")))
        ranks = tuple(json.loads((self.out / f"rank-{rank}.json").read_text()) for rank in range(count))
        return Run(ranks, tuple(sorted(path.name for path in self.out.glob("saved-by-*"))), done.stdout)

    def words(self, *command: str, **environment: str) -> list[str]:
        """Return what ``command`` hands to ddplaunch, which is replaced by a recorder."""
        recorder = self.out / "ddplaunch"
        recorder.write_text('#!/bin/sh\nprintf "%s\\0" "$@" >"$STANDIN_OUT/words"\n')
        recorder.chmod(0o755)
        path = f"{self.out}{os.pathsep}{self.environment['PATH']}"
        done = self.start(*command, **({"PATH": path} | environment))
        assert done.returncode == 0, done.stdout
        return (self.out / "words").read_text().split("\0")[:-1]


def distributed(run: Run, world_size: int, epochs: int, batch_size: int) -> None:
    """Assert that ``run`` was one job of ``world_size`` ranks that split the data and saved once."""
    assert len(run.ranks) == world_size
    environments = [rank["environment"] for rank in run.ranks]
    for number, environment in enumerate(environments):
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(number)
        assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == str(world_size)
    assert len({(environment["MASTER_ADDR"], environment["MASTER_PORT"]) for environment in environments}) == 1
    assert {rank["backend"] for rank in run.ranks} <= {"gloo", "nccl"}
    for epoch in range(epochs):
        shards = [rank["seen"][epoch] for rank in run.ranks]
        assert sorted(index for shard in shards for index in shard) == list(range(SAMPLES))
    assert {len(rank["seen"]) for rank in run.ranks} == {epochs}
    assert {rank["largest_batch"] for rank in run.ranks} == {min(batch_size, SAMPLES // world_size)}
    assert all(rank["weights"] == run.ranks[0]["weights"] for rank in run.ranks), "the ranks did not stay in step"
    assert run.savers == ("saved-by-0.json",)


def underwater(tmp_path: Path) -> Guide:
    """Return the underwater-ir project with the folders of its guide, a picture in each."""
    guide = Guide("underwater-ir", tmp_path)
    for name in ("Dataset/train", "Dataset/testset(ref)", "Dataset/testset(non-ref)", "pseudo-labels/daclip"):
        folder = guide.folder / name
        folder.mkdir(parents=True)
        (folder / "picture.png").write_bytes(b"not really")
    return guide


def uniref50(tmp_path: Path) -> Guide:
    """Return the uniref50 project with its data file where the guide has it."""
    guide = Guide("uniref50", tmp_path)
    data = guide.folder / "data" / "processed_uniref50.pt"
    data.parent.mkdir()
    data.write_bytes(b"not really")
    return guide


def quantumgrav(tmp_path: Path, port: int, world_size: int = 3) -> Guide:
    """Return the quantumgrav project; its YAML file names ``port`` and ``world_size``."""
    guide = Guide("quantumgrav", tmp_path)
    config = guide.folder / "configs" / "train_ddp.yaml"
    text = config.read_text().replace("12355", str(port)).replace("world_size: 3", f"world_size: {world_size}")
    config.write_text(text)
    return guide


# What the scripts hand to ddplaunch, word by word.


def test_train_ddp_without_arguments_has_the_defaults_of_its_guide(tmp_path: Path) -> None:
    words = Guide("underwater-ir", tmp_path).words("train_ddp.sh")
    assert words[:4] == ["run", "4", "--batch-size", "4"]
    script = words[words.index("--") + 1 :]
    assert script[:2] == ["-m", "underwater_ir.student.train_student"]
    assert script[script.index("--val-ref-root") + 1] == "Dataset/testset(ref)"
    assert script[script.index("--epochs") + 1] == "20"
    assert script[script.index("--img-size") + 1] == "256"
    assert script[-1] == "--ddp"


def test_train_ddp_takes_four_positions_and_passes_the_rest(tmp_path: Path) -> None:
    words = Guide("underwater-ir", tmp_path).words(
        "train_ddp.sh", "2", "16", "5", "512", "--lr", "1e-4", "a b", TRAIN_ROOT="my 'data'/$HOME"
    )
    assert words[1:4] == ["2", "--batch-size", "16"]
    assert words[words.index("--train-root") + 1] == "my 'data'/$HOME"
    assert words[words.index("--img-size") + 1] == "512"
    assert words[-4:] == ["--ddp", "--lr", "1e-4", "a b"]


@pytest.mark.parametrize("positions", [(), ("",), ("x", "y z")])
def test_bad_positions_reach_ddplaunch_which_says_what_is_wrong(tmp_path: Path, positions: tuple[str, ...]) -> None:
    words = Guide("retriever-distillation", tmp_path).words("run_ddp.sh", *positions)
    nproc = positions[0] if positions and positions[0] else "auto"
    projection = positions[1] if len(positions) > 1 else "True"
    assert words == ["run", nproc, "--", "train_ddp.py", f"--use_projection={projection}"]


def test_uniref50_splits_the_launcher_options_from_the_modules(tmp_path: Path) -> None:
    words = Guide("uniref50", tmp_path).words(
        "run_train_uniref50_ddp.sh", "--nnodes", "2", "--node_rank=1", "--master_addr", "10.0.0.1", "--config=c d.yaml",
        "--wandb", "on", NPROC="4",
    )  # fmt: skip
    assert words[:8] == ["run", "4", "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1"]
    assert words[words.index("--") :][-4:] == ["--datafile", "data/processed_uniref50.pt", "--wandb", "on"]
    assert words[words.index("--config") + 1] == "c d.yaml"


def test_quantumgrav_reads_size_port_and_batch_from_yaml(tmp_path: Path) -> None:
    guide = Guide("quantumgrav", tmp_path)
    expected = ["run", "3", "--gpus", "3,4,5", "--master-port", "12355", "--batch-size", "8", "--"]
    assert guide.words("train_quantumgrav.sh", "--gpus", "3,4,5") == [*expected, "train_ddp_torchrun.py"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("training: {batch_size: 4}", "no `parallel:` section"),
        ("parallel: {world_size: null}", "`parallel.world_size` is None, not a positive integer"),
        ("parallel: {world_size: 2, master_port: no}", "`parallel.master_port` is False"),
        ("parallel: [", "while parsing"),
        (None, "No such file"),
    ],
)
def test_quantumgrav_names_what_is_wrong_in_the_yaml(tmp_path: Path, text: str | None, complaint: str) -> None:
    guide = Guide("quantumgrav", tmp_path)
    if text is not None:
        (guide.folder / "bad one.yaml").write_text(text)
    done = guide.start("train_quantumgrav.sh", "bad one.yaml")
    assert done.returncode == 2
    assert complaint in done.stdout and "bad one.yaml" in done.stdout and "nothing was launched" in done.stdout
