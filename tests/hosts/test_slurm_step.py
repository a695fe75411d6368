"""``ddplaunch run`` in a batch script or under ``salloc`` becomes the srun that starts a step, where one is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from ddplaunch.planning.inside.slurm import read_slurm
from ddplaunch.planning.job.sbatch import step_argv
from tests.cli.cli_calls import Call, Said
from tests.planning.test_inside import BATCH, STEP
from tests.planning.test_submit import put_in_front

LOGIN = {name: value for name, value in BATCH.items() if name not in ("SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES")}
ONE_NODE = {"SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1"}


class Became(NamedTuple):
    """What this process would have become."""

    path: str
    argv: list[str]


def run_in(environ: dict[str, str], call: Call, monkeypatch: pytest.MonkeyPatch, *words: str) -> Said | Became:
    """Run the command in this environment; return what it said, or what it became."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    command = ["run", *words, "--", "train.py", "it's", "--seed={array_index}"]
    monkeypatch.setattr(sys, "argv", ["ddplaunch", *command])

    caught: list[Became] = []

    def keep(path: str, argv: list[str], environ: Mapping[str, str]) -> None:
        caught.append(Became(path, argv))
        raise KeyboardInterrupt  # ends the command, as becoming another program does

    monkeypatch.setattr(os, "execve", keep)
    said = call(*command)
    return caught[0] if caught else said


def test_a_batch_script_becomes_one_task_on_each_node(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_front(tmp_path / "bin", monkeypatch, srun="exit 0")
    became = run_in(BATCH, call, monkeypatch, "--batch-size", "8")
    assert isinstance(became, Became) and became.path.endswith("/bin/srun")
    assert {"--kill-on-bad-exit=1", "--wait=60", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= set(became.argv)
    assert became.argv[-7:] == ["run", "--batch-size", "8", "--", "train.py", "it's", "--seed={array_index}"]


@pytest.mark.parametrize("environ", [LOGIN, LOGIN | ONE_NODE, BATCH | {"DDPLAUNCH_STEP": "11"}])
def test_the_shell_of_salloc_and_a_job_submitted_from_a_step_of_another_one_need_a_step_for_one_node_too(
    call: Call, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    said = run_in(environ, call, monkeypatch, "--dry-run")
    assert isinstance(said, Said) and said.status == 0
    assert said.out.startswith("# Slurm job 12: ") and "srun --kill-on-bad-exit=1" in said.out


HET = {"SLURM_HET_SIZE": "2", "SLURM_JOB_ID_HET_GROUP_0": "12", "SLURM_JOB_ID_HET_GROUP_1": "13"}


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (STEP, ()),
        (BATCH | {"DDPLAUNCH_STEP": "12"}, ("--nnodes", "1")),
        (BATCH | ONE_NODE, ()),
        (BATCH, ("1x1",)),
        (BATCH | HET, ("1x1",)),
        (STEP | HET, ()),
        ({}, ()),
    ],
)
def test_no_step_is_started_where_this_process_is_in_the_right_place(
    call: Call, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], words: tuple[str, ...]
) -> None:
    said = run_in(environ, call, monkeypatch, *words, "--device", "cpu", "--no-checks", "--dry-run")
    assert isinstance(said, Said) and "torch.distributed.run" in said.out and "srun" not in said.out


def test_the_index_of_an_array_reaches_the_script(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for environ, seed in (({}, "'--seed={array_index}'"), (STEP | {"SLURM_ARRAY_TASK_ID": "3"}, "--seed=3")):
        said = run_in(environ, call, monkeypatch, "--device", "cpu", "--no-checks", "--dry-run")
        assert isinstance(said, Said) and said.out.rstrip().endswith(f" {seed}"), said


def test_a_missing_srun_is_a_finding(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    said = run_in(BATCH, call, monkeypatch)
    assert isinstance(said, Said) and said.status == 4 and "error[srun-missing]" in said.err


@pytest.mark.parametrize(
    ("asked", "tasks", "cpus"),
    [
        ({"SLURM_CPUS_PER_TASK": "8", "SLURM_NTASKS_PER_NODE": "4"}, True, ["--cpus-per-task=32"]),
        ({"SLURM_CPUS_PER_TASK": "8", "SLURM_NTASKS_PER_NODE": "1"}, True, ["--cpus-per-task=8"]),
        ({"SLURM_GPUS_PER_TASK": "1", "SLURM_NTASKS_PER_NODE": "4"}, False, []),
    ],
)
def test_the_cpus_of_a_nodes_tasks_go_to_its_one_task_but_for_tasks_with_a_gpu_each(
    asked: dict[str, str], tasks: bool, cpus: list[str]
) -> None:
    slurm = read_slurm(BATCH | asked)
    assert slurm is not None
    argv = step_argv(slurm, BATCH | asked)
    assert any(word.startswith("--ntasks") for word in argv) is tasks
    assert [word for word in argv if word.startswith("--cpus-per-task")] == cpus


@pytest.mark.parametrize("environ", [BATCH | HET, BATCH | HET | ONE_NODE])
def test_a_heterogeneous_job_is_refused_with_the_step_over_all_of_it(
    call: Call, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    said = run_in(environ, call, monkeypatch)
    assert isinstance(said, Said) and said.status == 4 and "error[slurm-het-job]" in said.err
    assert "srun --het-group=0,1 --kill-on-bad-exit=1" in " ".join(said.err.split())
