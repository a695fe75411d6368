"""A line of another launcher becomes the command of ddplaunch that starts the same ranks."""

from __future__ import annotations

import shlex
import sysconfig
from pathlib import Path

import pytest

from ddplaunch.machine.software import torchrun_flags
from ddplaunch.planning.convert.launch_words import Word, known_word, known_words
from ddplaunch.planning.convert.launcher_line import translate
from ddplaunch.planning.convert.launcher_options import LAUNCHERS
from ddplaunch.planning.convert.translation import Translation


def said(line: str) -> Translation:
    found = translate(known_words(shlex.split(line)))
    assert found is not None, line
    return found


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("torchrun --nproc_per_node=gpu train.py", "run auto -- train.py"),
        ("torchrun --nproc_per 2 -m pkg.train -- --x -- y", "run 2 -- -m pkg.train --x -- y"),
        ("torchrun --nproc_per_node 2 --no-python ./train.py", "run 2 -- env ./train.py"),
        ("torchrun --nproc_per_node 2 train", "run 2 -- python -u train"),
        ("torchrun --nproc_per_node 2 -- train.py -- --x", "run 2 -- train.py -- --x"),
        ("torchrun --master_port=29501 --nproc_per_node=4 train.py", "run 4 --master-port 29501 -- train.py"),
        ("torchrun --nproc_per_node 2 --rdzv-endpoint=localhost:0 train.py", "run 2 -- train.py"),
        ("torchrun --nproc_per_node 2 --standalone --master_port 29501 train.py", "run 2 -- train.py"),
        ("MASTER_PORT=29501 torchrun --nproc_per_node 2 train.py", "run 2 --master-port 0 -- train.py"),
        ("MASTER_PORT=29501 torchrun --master_port 29502 train.py", "run 1 --master-port 29502 -- train.py"),
        (
            "torchrun --nproc_per_node=4 --nnodes=2 --node_rank=1 --master_addr=h --master_port=1 train.py",
            "run 2x4 --node-rank 1 --master-addr h --master-port 1 -- train.py",
        ),
        (
            "torchrun --nnodes=1:4 --nproc_per_node=2 --max_restarts=3 --rdzv_endpoint=h:9 train.py",
            "run 2 --nnodes 1:4 --master-addr h --master-port 9 --max-restarts 3 -- train.py",
        ),
        ("torchrun -r 3 --tee=1 t.py", "run 1 --torchrun-arg=--redirects=3 --torchrun-arg=--tee=1 -- t.py"),
        ("torchrun --nproc_per_node 2 t.py {lr} {{lr}} '${lr}' {}", "run 2 -- t.py '{{lr}}' '{{{lr}}}' '${lr}' '{}'"),
        ("python3 -u -m torch.distributed.launch --use_env --nproc_per_node=2 t.py", "run 2 -- t.py"),
        ("python -m torch.distributed.launch t.py --x", "run 1 -- t.py '--local-rank=${local_rank}' --x"),
        ("accelerate launch train.py --x", "run auto -- train.py --x"),
        (
            "accelerate launch --multi_gpu --num_processes 8 --num_machines=2 --machine_rank 1 --main_process_ip h "
            "--main_process_port 5 --mixed_precision fp16 train.py",
            "run 2x4 --node-rank 1 --master-addr h --master-port 5 --env ACCELERATE_MIXED_PRECISION=fp16 -- train.py",
        ),
        (
            "accelerate launch --num_processes 2 --debug --num_cpu_threads_per_process 4 t.py",
            "run 2 --env ACCELERATE_DEBUG_MODE=true --env OMP_NUM_THREADS=4 -- t.py",
        ),
        ("accelerate launch --gpu_ids 0,2 --mixed_precision no t.py", "run 2 --gpus 0,2 -- t.py"),
    ],
)
def test_a_line(line: str, command: str) -> None:
    assert said(line).source == f"ddplaunch {command}"


@pytest.mark.parametrize(
    "line", ["python train.py", "echo torchrun t.py", "pip install deepspeed", "srun hostname", "accelerate config", ""]
)
def test_no_launch(line: str) -> None:
    assert translate(known_words(shlex.split(line))) is None


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("torchrun --frob 3 t.py", "`--frob`"),
        ("torchrun --nproc_per_node 3", "`torchrun` without a script"),
        ("torchrun --nnodes 2 --master_addr h t.py --nnodes 2", ""),
        ("torchrun --nnodes", "`--nnodes`"),
        ("accelerate launch --cpu --num_processes 2 t.py", "`--cpu`"),
        ("accelerate launch --num_processes 3 --num_machines 2 t.py", "3 processes on 2 nodes"),
        ("accelerate launch --num_processes 2 --use_fsdp --fsdp_offload_params True t.py", "`--use-fsdp`"),
        ("accelerate launch --num_processes 2 --zero_stage 3 t.py", "`--zero_stage`"),
        ("horovodrun -np 8 -H a:4,b:4 python train.py", "processes of MPI"),
        ("mpirun -np 4 -x A=1 --bind-to none python -u t.py", "processes of MPI"),
        ("torchx run dist.ddp -j 1x4 --script t.py", "an app of TorchX"),
        ("deepspeed --num_gpus=2 t.py --deepspeed ds.json", "a launch of DeepSpeed's"),
        ("accelerate launch --config_file missing.yaml t.py", "`--config-file missing.yaml`"),
    ],
)
def test_what_cannot_be_said_is_named(line: str, what: str) -> None:
    found = said(line)
    assert bool(found.words) == (what == "")
    if what:
        assert found.unknown[0].what == what and found.unknown[0].why


def test_what_is_dropped_and_what_nobody_knows_has_a_reason() -> None:
    found = said("torchrun --nproc_per_node 2 --rdzv_backend c10d --rdzv_id=5 --standalone --node_rank 0 t.py")
    assert [note.what for note in found.dropped] == ["`--rdzv-backend c10d`", "`--rdzv-id 5`", "`--node-rank 0`"]
    assert all(note.why for note in found.dropped)
    (note,) = said("accelerate launch t.py").unknown
    assert note.what == "how many processes accelerate starts" and "default_config.yaml" in note.why
    assert said("accelerate launch --num_processes 2 t.py").unknown == ()


def test_a_variable_stays_one() -> None:
    torchrun = [known_word("torchrun"), Word("--nproc_per_node=$N"), known_word("--nnodes"), Word('"$M"')]
    found = translate(
        [*torchrun, Word('--master_addr="$A"'), known_word("--node_rank=0"), known_word("t.py"), Word('"$@"')]
    )
    assert found is not None
    assert found.source == 'ddplaunch run $N --nnodes "$M" --node-rank 0 --master-addr "$A" -- t.py "$@"'


def test_every_option_of_the_installed_torchrun_is_known() -> None:
    source = Path(sysconfig.get_path("purelib"), "torch/distributed/run.py").read_text()
    flags = torchrun_flags(source)
    assert len(flags) > 20 and flags - {"--help"} <= LAUNCHERS["torchrun"].keys()
