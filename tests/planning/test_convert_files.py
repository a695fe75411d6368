"""The file of `accelerate config`: the launch that it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_calls import Call, call, folder

__all__ = ["call", "folder"]

TWO_NODES = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
fsdp_config: {}
machine_rank: 1
main_process_ip: gpu-a
main_process_port: 29511
mixed_precision: bf16
num_machines: 2
num_processes: 8
use_cpu: false
"""


def test_accelerates_file(call: Call, folder: Path) -> None:
    (folder / "a.yaml").write_text(TWO_NODES)
    said = call("convert", "a.yaml")
    command = "ddplaunch run 2x4 --node-rank 1 --master-addr gpu-a --master-port 29511"
    assert (said.status, said.out) == (0, f"{command} --env ACCELERATE_MIXED_PRECISION=bf16 -- train.py\n")


def test_what_was_typed_wins_over_the_file(call: Call, folder: Path) -> None:
    (folder / "a.yaml").write_text(TWO_NODES)
    for line in (
        ["--num_processes", "2", "--config_file", "a.yaml"],
        ["--config_file", "a.yaml", "--num_processes", "2"],
    ):
        said = call("convert", "--", "accelerate", "launch", *line, "t.py")
        assert said.out.startswith("ddplaunch run 2x1 "), said.out


@pytest.mark.parametrize(
    ("text", "typed", "command"),
    [
        ("distributed_type: 'NO'\nnum_processes: 4\n", [], "run 1 -- t.py"),
        ("distributed_type: NO\nnum_processes: 4\n", ["--multi_gpu"], "run 4 -- t.py"),
        (
            "distributed_type: MULTI_CPU\nnum_processes: 4\nuse_cpu: true\n",
            [],
            "run 1 --device cpu --env ACCELERATE_USE_CPU=True -- t.py",
        ),
        ("distributed_type: MULTI_GPU\nnum_processes: 2\nuse_cpu: true\n", [], "run 2 -- t.py"),
    ],
)
def test_the_kind_of_accelerates_file_says_how_many(
    call: Call, folder: Path, text: str, typed: list[str], command: str
) -> None:
    """As accelerate 1.15 does: https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/commands/launch.py."""
    (folder / "a.yaml").write_text(text)
    said = call("convert", "--", "accelerate", "launch", "--config_file", "a.yaml", *typed, "t.py")
    assert (said.status, said.out) == (0, f"ddplaunch {command}\n")


def test_what_accelerates_file_has_beyond_that_is_said(call: Call, folder: Path) -> None:
    line = ["convert", "--", "accelerate", "launch", "--config_file", "a.yaml", "t.py"]
    (folder / "a.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nnew_key: 7\n")
    said = call(*line)
    assert said.status == 0 and "dropped `new_key`" in said.err
    for part in ("megatron_lm_config", "fsdp_config", "dynamo_config"):
        (folder / "a.yaml").write_text(f"distributed_type: MULTI_GPU\nnum_processes: 2\n{part}:\n  a: 2\n")
        said = call(*line)
        assert said.status == 1 and f"as it is: `{part}`" in said.err
    (folder / "a.yaml").write_text("distributed_type: FSDP\nnum_processes: 2\n")
    assert "as it is: `--use-fsdp`" in call(*line).err
    (folder / "a.yaml").write_text("num_processes: 2\n")
    assert "has no `distributed_type`" in " ".join(call(*line).err.split())


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "", "a: &x [*x]\n"])
def test_other_yaml_is_no_launch(call: Call, folder: Path, text: str) -> None:
    (folder / "a.yaml").write_text(text)
    said = call("convert", "a.yaml")
    assert said.status == 2 and "error[launcher-missing]" in said.err


def test_a_component_of_torchx_is_no_script(call: Call, folder: Path) -> None:
    (folder / "app.py").write_text("from torchx.components import dist\napp = dist.ddp(script='train.py', j='2x4')\n")
    said = call("convert", "app.py")
    assert said.status == 2 and "`app.py` is a program of Python" in said.err
