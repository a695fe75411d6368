"""Command lines as people of other launchers type them, and the words they are read as."""

from __future__ import annotations

import shlex

import pytest

from ddplaunch.cli.other_spellings import as_spelled_here, unknown_command


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("4 --batch_size 8 --no_checks", "4 --batch-size 8 --no-checks"),
        ("--batch_size=8 4", "--batch-size=8 4"),
        ("--nproc_per_node=4 --nnodes=2 --node_rank 1", "4 --nnodes=2 --node-rank 1"),
        ("--nproc-per-node gpu --standalone", "auto"),
        ("--nnodes 1 --standalone --nproc_per_node 2", "--nnodes 1 2"),
        ("--num_processes 8 --num_machines 2 --machine_rank 1", "4 --nnodes 2 --node-rank 1"),
        ("--num_machines=2 --num_processes=8", "--nnodes=2 4"),
        ("--multi_gpu --gpu_ids 0,1 --main_process_port 29501", "--gpus 0,1 --master-port 29501"),
        ("--main_process_ip=10.0.0.1", "--master-addr=10.0.0.1"),
        ("--num_gpus 4 --num_nodes 2", "4 --nnodes 2"),
        ("-n 4", "4"),
        ("4 --cpu", "4 --device cpu"),
        ("4 --device gpu", "4 --device cuda"),
        ("--use_env 4", "4"),
        ("4 --tee 3 --log_dir=logs", "4 --torchrun-arg=--tee=3 --torchrun-arg=--log-dir=logs"),
        ("4 --ignore disk-space,gpu-busy", "4 --ignore disk-space --ignore gpu-busy"),
    ],
)
def test_what_means_the_same_is_read_as_such(typed: str, read: str) -> None:
    assert as_spelled_here("run", typed.split()) == read.split()


@pytest.mark.parametrize(
    ("typed", "stays"),
    [
        ("--nproc_per_node", "--nproc_per_node"),  # without its value
        ("--num_processes 7 --num_machines 2", "--num_processes 7"),  # does not divide
        ("--num_processes 8 --hosts a,b", "--num_processes 8"),  # on how many nodes is not known yet
        ("--nnodes 2 --standalone", "--standalone"),  # contradict each other
        ("--nnodes 1:4 -n 8", "-n 8"),
        ("4 --mixed_precision fp16", "--mixed_precision fp16"),  # the script's
        ("4 --env A=--use_env --chdir -n", "--env A=--use_env"),  # a value
        ("4 --torchrun-arg --rdzv-conf=timeout=8", "--torchrun-arg --rdzv-conf=timeout=8"),
    ],
)
def test_what_has_no_equal_stays_as_it_was_typed(typed: str, stays: str) -> None:
    assert stays in " ".join(as_spelled_here("run", typed.split()))


@pytest.mark.parametrize(
    ("command", "typed", "read"),
    [
        ("logs", "-f -n 5", "--follow --lines 5"),
        ("logs", "--tail=5", "--lines=5"),
        ("ps", "-a", "--all"),
        ("clean", "-y --run_dir x", "--yes --run-dir x"),
        ("logs", "-n", "--lines"),
        ("stop", "-n 4 --cpu", "-n 4 --cpu"),  # mean nothing here
    ],
)
def test_habits_of_other_commands(command: str, typed: str, read: str) -> None:
    assert as_spelled_here(command, typed.split()) == read.split()


@pytest.mark.parametrize(
    ("typed", "script", "fix"),
    [
        ("launch 4", "train.py --lr 1", "ddplaunch run 4 -- train.py --lr 1"),
        ("rnu 4", "train.py", "ddplaunch run 4 -- train.py"),
        ("4", "train.py", "ddplaunch run 4 -- train.py"),
        ("4 train.py --epochs 3", None, "ddplaunch run 4 -- train.py --epochs 3"),
        ("train.py", None, "ddplaunch run -- train.py"),
        ("kill abc", None, "ddplaunch stop abc"),
        ("xyzzy", None, "ddplaunch run 4 -- train.py"),
    ],
)
def test_a_wrong_first_word_is_answered_with_the_line_corrected(typed: str, script: str | None, fix: str) -> None:
    problem = unknown_command(typed.split(), None if script is None else shlex.split(script))
    assert f"`{fix}`" in problem.findings[0].fix
