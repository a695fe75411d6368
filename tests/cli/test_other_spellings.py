"""Command lines as people of other launchers type them, and the words they are read as."""

from __future__ import annotations

import shlex

import pytest

from ddplaunch.cli.other_spellings import as_spelled_here, unknown_command
from tests.cli.cli_calls import Call, call, folder

__all__ = ["call", "folder"]


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
        ("4 --exclude a,b:0,2,c --include=d,e", "4 --exclude a --exclude b:0,2 --exclude c --include d --include e"),
        ("4 --env A=1,B=2", "4 --env A=1,B=2"),  # a value may hold commas
        ("4 -e A=1", "4 --env A=1"),
        ("4 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 --rdzv_id 7", "4"),
        ("4 --rdzv_backend c10d --rdzv_endpoint localhost:29555", "4 --master-port 29555"),
        ("--nnodes=2 --rdzv_endpoint=gpu-a:29500 4", "--nnodes=2 --master-addr gpu-a --master-port 29500 4"),
        ("2x4 --rdzv_endpoint=localhost", "2x4 --master-addr localhost --master-port 29400"),
        ("--nnodes 1:2 --rdzv-endpoint [::1]:5 4", "--nnodes 1:2 --master-addr ::1 --master-port 5 4"),
        ("--include localhost:0,1 --master_port 5", "--gpus 0,1 --master-port 5"),
        ("--include=localhost:2", "--gpus 2"),
        ("4 --use_fsdp --fsdp_version 2", "4 --env ACCELERATE_USE_FSDP=true --env FSDP_VERSION=2"),
        ("4 --num_cpu_threads_per_process=3", "4 --env OMP_NUM_THREADS=3"),
        ("4 --mixed_precision fp16", "4 --env ACCELERATE_MIXED_PRECISION=fp16"),
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
        ("4 --rdzv_backend etcd", "--rdzv_backend etcd"),
        ("--hosts localhost,b --include localhost:0,1", "--include localhost:0,1"),
        ("4 --gradient_accumulation_steps 2", "--gradient_accumulation_steps 2"),  # also scripts have it
        ("4 --fp16_opt_level O1", "--fp16_opt_level O1"),  # the script's
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
        ("logs", "-r 0", "--rank 0"),
        ("stop", "-a", "--all"),
        ("top", "-n 1 -d 2", "--count 1 --interval 2"),
        ("clean", "-f", "--yes"),
        ("run", "2 -d", "2 --detach"),
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
        ("follow aurora", None, "ddplaunch logs --follow aurora"),
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


@pytest.mark.parametrize(
    ("typed", "what", "fix"),
    [
        (
            "run 2 --foo 3 -- train.py --lr 1",
            "there is no option `--foo`",
            "`ddplaunch run 2 -- train.py --lr 1 --foo 3` if it is the script's",
        ),
        (
            "run 2 --config_file a.yaml -- train.py",
            "there is no option `--config_file`",
            "`ddplaunch convert -- accelerate launch --config_file a.yaml train.py` says what stands for it here",
        ),
        ("explain data-mising", "is no code, no run and no file", "did you mean `ddplaunch explain data-missing`?"),
        ("run --batch-sze=8 2 -- train.py", "no option `--batch-sze`", "`ddplaunch run --batch-size=8 2 -- train.py`"),
        ("top --jsno", "no option `--jsno`", "did you mean `ddplaunch top --json`?"),
        ("--verison", "no option `--verison`", "did you mean `ddplaunch --version`?"),
        (
            "run 2 --num_processes 4 -- train.py",
            "`--num_processes 4` is not read here",
            "`ddplaunch run 4 -- train.py`",
        ),
        ("run -n x -- train.py", "`-n x` is not a number of processes", "`ddplaunch run 4 -- train.py`"),
        ("run --nproc_per_node -- train.py", "`--nproc_per_node` needs a value", "`ddplaunch run 4 -- train.py`"),
        ("run 2 --nnodes 2 --standalone -- train.py", "`--standalone` means one node", "leave `--standalone` out"),
        (
            "launch --nproc_per_node 2 train.py",
            "`launch` is not a command",
            "did you mean `ddplaunch run 2 -- train.py`?",
        ),
        ("help frob", "`frob` is not a command", "`ddplaunch --help` says what each does"),
    ],
)
def test_what_is_not_understood_is_answered_with_the_line_corrected(
    call: Call, typed: str, what: str, fix: str
) -> None:
    said = call(*shlex.split(typed))
    text = " ".join(said.err.split())
    assert said.status == 2 and what in text and fix in text


@pytest.mark.parametrize("typed", ["ps foo", "ps -- foo", "top a b", "logs --lines", "stop --frob x"])
def test_where_there_is_no_separator_none_is_advised(call: Call, typed: str) -> None:
    said = call(*shlex.split(typed))
    assert said.status == 2 and "`--`" not in said.err


def test_the_version_is_told_by_any_of_its_spellings(call: Call) -> None:
    answers = {call(word).out for word in ("--version", "-V", "-v", "version")}
    assert len(answers) == 1 and answers.pop().startswith("ddplaunch 0.")


def test_behind_a_separator_stands_the_run(call: Call) -> None:
    assert "there is no record of a run `xyz`" in call("stop", "--", "xyz").err
    both = call("stop", "--all", "xyz")
    assert both.status == 2 and "`xyz` and `--all` together" in both.err
    assert call("stop", "--all").status == 0  # none runs here
