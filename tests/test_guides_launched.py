"""The guides' own commands, each launched for real on CPU: environment, shards, numbers and rank-0-only saving."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ports import free_port
from tests.test_guides import Guide, distributed

pytestmark = pytest.mark.slow

#: Ranks that start warm import torch once. Each script of these has launches that start cold, as it does by itself.
WARM = {"DDPLAUNCH_OPTIONS": "--start warm"}


def test_underwater_train_ddp_2_4_20_256_and_the_fix_of_its_refusal(tmp_path: Path) -> None:
    """Whoever never typed `ddplaunch` can follow the fix, and so does this."""
    guide, typed = Guide("underwater-ir", tmp_path), ("train_ddp.sh", "2", "4", "20", "256")
    refused = guide.start(*typed)
    said = " ".join(refused.stdout.split())
    assert refused.returncode == 4 and "Dataset/train" in said and not list(guide.out.iterdir())
    assert "--> TRAIN_ROOT, VAL_REF_ROOT, VAL_NONREF_ROOT or PSEUDO_ROOT" in said
    assert "fix: name the right path with `TRAIN_ROOT, VAL_REF_ROOT, VAL_NONREF_ROOT or PSEUDO_ROOT`" in said
    assert "put `DDPLAUNCH_OPTIONS='--ignore data-missing'` before the command" in said
    places = {name: str(tmp_path) for name in ("TRAIN_ROOT", "VAL_REF_ROOT", "VAL_NONREF_ROOT", "PSEUDO_ROOT")}
    run = guide.run(*typed, **places, **WARM)
    distributed(run, world_size=2, epochs=20, batch_size=4)
    assert run.ranks[0]["arguments"]["img_size"] == "256"
    assert run.ranks[0]["arguments"]["val_nonref_root"] == str(tmp_path)
    assert (guide.folder / "experiments" / "daclip_student_ddp.pt").is_file()


def test_crowd_bt_train_distributed(tmp_path: Path) -> None:
    run = Guide("crowd-bt", tmp_path).run("train_distributed.sh", "2", "--epochs", "20", "--batch-size", "16", **WARM)
    distributed(run, world_size=2, epochs=20, batch_size=16)
    assert run.ranks[0]["arguments"]["world_size"] == "2"
    assert "Distributed training initialized with 2 processes" in run.output


def test_retriever_run_ddp(tmp_path: Path) -> None:
    """The projection is True where an option stands in its place."""
    guide = Guide("retriever-distillation", tmp_path)
    run = guide.run("run_ddp.sh", "2", "--batch_size=5", "--skip_phase1", **WARM)
    distributed(run, world_size=2, epochs=3, batch_size=5)
    assert run.ranks[1]["arguments"]["use_projection"] == "True"
    assert (guide.folder / "checkpoints" / "model.pt").is_file()


def test_uniref50_with_a_configuration(tmp_path: Path) -> None:
    guide = Guide("uniref50", tmp_path)
    data = guide.folder / "data" / "processed_uniref50.pt"
    data.parent.mkdir()
    data.write_bytes(b"not really")
    config = guide.folder / "configs" / "my_ddp_config.yaml"
    (guide.folder / "configs" / "config_uniref50_ddp.yaml").rename(config)
    words = ("--config", "configs/my_ddp_config.yaml", "--work_dir", "my work")
    run = guide.run("run_train_uniref50_ddp.sh", *words, NPROC="2", **WARM)
    distributed(run, world_size=2, epochs=1, batch_size=6)
    assert run.ranks[1]["arguments"]["config"] == "configs/my_ddp_config.yaml"
    assert (guide.folder / "my work" / "checkpoints" / "sedd.pt").is_file()


def test_quantumgrav_as_its_yaml_says(tmp_path: Path) -> None:
    port = free_port()
    guide = Guide("quantumgrav", tmp_path)
    config = guide.folder / "configs" / "train_ddp.yaml"
    config.write_text(config.read_text().replace("12355", str(port)).replace("world_size: 3", "world_size: 2"))
    run = guide.run("train_quantumgrav.sh", "configs/train_ddp.yaml")
    distributed(run, world_size=2, epochs=2, batch_size=8)
    assert run.ranks[1]["environment"]["MASTER_PORT"] == str(port)
    assert run.ranks[1]["arguments"]["world_size"] == "2"
    assert (guide.folder / "output" / "model.pt").is_file()
