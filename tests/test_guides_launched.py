"""The guides' own commands, each launched for real on CPU: environment, shards, numbers and rank-0-only saving."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ports import free_port
from tests.test_guides import Guide, distributed, quantumgrav, underwater, uniref50

pytestmark = pytest.mark.slow

#: Ranks that start warm import torch once. Each script of these has launches that start cold, as it does by itself.
WARM = {"DDPLAUNCH_OPTIONS": "--start warm"}
MODULE = ("-m", "underwater_ir.student.train_student")
PATHS = ("--train-root", "Dataset/train", "--pseudo-root", "pseudo-labels/daclip")


def test_underwater_train_ddp_4_4_20_256(tmp_path: Path) -> None:
    guide = underwater(tmp_path)
    run = guide.run("train_ddp.sh", "4", "4", "20", "256", **WARM)
    distributed(run, world_size=4, epochs=20, batch_size=4)
    assert run.ranks[0]["arguments"]["img_size"] == "256"
    assert run.ranks[0]["arguments"]["val_nonref_root"] == "Dataset/testset(non-ref)"
    assert (guide.folder / "experiments" / "daclip_student_ddp.pt").is_file()


def test_underwater_torchrun_directly_becomes_run_with_a_port(tmp_path: Path) -> None:
    port = free_port()
    run = underwater(tmp_path).run(
        "ddplaunch", "run", "2", "--master-port", str(port), "--", *MODULE, *PATHS, "--epochs", "2", "--batch-size",
        "16", "--ddp",
    )  # fmt: skip
    distributed(run, world_size=2, epochs=2, batch_size=16)
    assert run.ranks[0]["environment"]["MASTER_PORT"] == str(port)


def test_underwater_port_from_the_environment(tmp_path: Path) -> None:
    port = free_port()
    run = underwater(tmp_path).run("train_ddp.sh", "2", "8", "1", MASTER_PORT=str(port))
    distributed(run, world_size=2, epochs=1, batch_size=8)
    assert run.ranks[1]["environment"]["MASTER_PORT"] == str(port)


def test_underwater_missing_data_launches_nothing(tmp_path: Path) -> None:
    guide = Guide("underwater-ir", tmp_path)
    done = guide.start("train_ddp.sh", "2")
    assert done.returncode == 4, done.stdout
    assert "Dataset/train" in done.stdout
    assert not list(guide.out.iterdir())
    # Whoever never typed `ddplaunch` can follow the fix, and so does this.
    said = " ".join(done.stdout.split())
    assert "--> TRAIN_ROOT, VAL_REF_ROOT, VAL_NONREF_ROOT or PSEUDO_ROOT" in said
    assert "fix: name the right path with `TRAIN_ROOT, VAL_REF_ROOT, VAL_NONREF_ROOT or PSEUDO_ROOT`" in said
    assert "put `DDPLAUNCH_OPTIONS='--ignore data-missing'` before the command" in said
    places = {name: str(tmp_path) for name in ("TRAIN_ROOT", "VAL_REF_ROOT", "VAL_NONREF_ROOT", "PSEUDO_ROOT")}
    distributed(guide.run("train_ddp.sh", "2", "8", "1", **places, **WARM), world_size=2, epochs=1, batch_size=8)


def test_the_way_around_a_refusal_of_a_script_works_as_it_is_said(tmp_path: Path) -> None:
    guide = underwater(tmp_path)
    for picture in guide.folder.rglob("picture.png"):
        picture.unlink()
    typed = ("train_ddp.sh", "2", "--batch-size=8", "--epochs", "1")
    refused = guide.start(*typed)
    said = " ".join(refused.stdout.split())
    assert refused.returncode == 4
    assert "put `DDPLAUNCH_OPTIONS='--ignore data-empty'` before the command" in said
    run = guide.run(*typed, DDPLAUNCH_OPTIONS="--ignore data-empty --start warm")
    distributed(run, world_size=2, epochs=1, batch_size=8)


def test_crowd_bt_train_distributed_4(tmp_path: Path) -> None:
    run = Guide("crowd-bt", tmp_path).run("train_distributed.sh", "4", "--epochs", "20", "--batch-size", "16", **WARM)
    distributed(run, world_size=4, epochs=20, batch_size=16)
    assert run.ranks[0]["arguments"]["world_size"] == "4"
    assert "Distributed training initialized with 4 processes" in run.output


def test_crowd_bt_by_hand_on_another_port_with_custom_settings(tmp_path: Path) -> None:
    port = free_port()
    run = Guide("crowd-bt", tmp_path).run(
        "ddplaunch", "run", "2", "--master-port", str(port), "--", "train.py", "--distributed", "--world-size", "2",
        "--data-source", "s3", "--backbone", "efficientnet_b5", "--lr", "5e-5",
    )  # fmt: skip
    distributed(run, world_size=2, epochs=1, batch_size=16)
    assert run.ranks[1]["environment"]["MASTER_PORT"] == str(port)
    assert [run.ranks[1]["arguments"][name] for name in ("backbone", "lr")] == ["efficientnet_b5", "5e-05"]


@pytest.mark.parametrize(
    ("typed", "projection", "epochs", "batch_size"),
    [(("False",), "False", 4, 64), (("--batch_size=5", "--skip_phase1"), "True", 3, 5)],
)
def test_retriever_run_ddp(
    tmp_path: Path, typed: tuple[str, ...], projection: str, epochs: int, batch_size: int
) -> None:
    """The projection is True where an option stands in its place."""
    guide = Guide("retriever-distillation", tmp_path)
    run = guide.run("run_ddp.sh", "2", *typed)
    distributed(run, world_size=2, epochs=epochs, batch_size=batch_size)
    assert run.ranks[1]["arguments"]["use_projection"] == projection
    assert (guide.folder / "checkpoints" / "model.pt").is_file()


def test_retriever_four_processes_with_a_batch_size_of_their_own(tmp_path: Path) -> None:
    run = Guide("retriever-distillation", tmp_path).run(
        "ddplaunch", "run", "4", "--batch-size", "5", "--", "train_ddp.py", "--batch_size={batch_size}"
    )
    distributed(run, world_size=4, epochs=4, batch_size=5)


def test_retriever_batch_size_is_filled_in_where_the_script_declares_it(tmp_path: Path) -> None:
    run = Guide("retriever-distillation", tmp_path).run(
        "ddplaunch", "run", "2", "--batch-size", "3", "--", "train_ddp.py", "--skip_phase1"
    )
    distributed(run, world_size=2, epochs=3, batch_size=3)


def test_retriever_mrl_mode_with_custom_learning_rates_saved_to_artifacts(tmp_path: Path) -> None:
    guide = Guide("retriever-distillation", tmp_path)
    own = ("--use_projection=False", "--phase1_lr=3e-5", "--phase2_lr=1e-5")
    save = ("--save_to_artifacts", "--artifacts_dir=./my_models")
    run = guide.run("ddplaunch", "run", "2", "--", "train_ddp.py", *own, *save)
    distributed(run, world_size=2, epochs=4, batch_size=64)
    arguments = run.ranks[0]["arguments"]
    assert [arguments[name] for name in ("use_projection", "phase1_lr", "phase2_lr")] == ["False", "3e-05", "1e-05"]
    assert (guide.folder / "my_models" / "model.pt").is_file()


def test_uniref50_with_a_configuration(tmp_path: Path) -> None:
    guide = uniref50(tmp_path)
    config = guide.folder / "configs" / "my_ddp_config.yaml"
    (guide.folder / "configs" / "config_uniref50_ddp.yaml").rename(config)
    run = guide.run(
        "run_train_uniref50_ddp.sh", "--config", "configs/my_ddp_config.yaml", "--work_dir", "my work", NPROC="2"
    )
    distributed(run, world_size=2, epochs=1, batch_size=6)
    assert run.ranks[1]["arguments"]["config"] == "configs/my_ddp_config.yaml"
    assert (guide.folder / "my work" / "checkpoints" / "sedd.pt").is_file()


def test_quantumgrav_as_its_yaml_says(tmp_path: Path) -> None:
    port = free_port()
    guide = quantumgrav(tmp_path, port)
    run = guide.run("train_quantumgrav.sh", "configs/train_ddp.yaml")
    distributed(run, world_size=3, epochs=2, batch_size=8)
    assert run.ranks[2]["environment"]["MASTER_PORT"] == str(port)
    assert run.ranks[2]["arguments"]["world_size"] == "3"
    assert (guide.folder / "output" / "model.pt").is_file()
