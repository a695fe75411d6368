"""The checks of a launch against its Slurm step: each with steps that contradict and steps that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddplaunch.planning.launch import Launch, Topology
from ddplaunch.values.resolved import Resolved, Source
from tests.checks.cases import Case, fires, judge, silent
from tests.checks.healthy import healthy_launch
from tests.planning.test_inside import environ_of

STEP = environ_of(
    "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=gpu[1-2] SLURM_STEP_NUM_TASKS=2 "
    "SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_NODEID=1 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_STEP_GPUS=0,1,2,3 "
    "CUDA_VISIBLE_DEVICES=0,1,2,3 SLURMD_NODENAME=gpu2"
)
FOUR_TASKS = STEP | {"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_PROCID": "5"}
THREE_TASKS = FOUR_TASKS | {"SLURM_STEP_TASKS_PER_NODE": "3(x2)", "SLURM_STEP_NUM_TASKS": "6"}
ON_CPUS = {name: text for name, text in FOUR_TASKS.items() if "SLURM_STEP_GPUS" not in name}
UNEVEN = STEP | {"SLURM_GPUS": "6", "SLURM_STEP_GPUS": "0,1,2,3,4"}
TYPED, EXPORTED = Source("flag", "--node-rank"), Source("environment", "NODE_RANK")


def launch(
    nodes: int = 2, rank: int | None = 1, processes: int = 4, source: Source = TYPED, min_nodes: int | None = None
) -> Launch:
    node_rank = None if rank is None else Resolved(rank, source)
    shape = Topology(Resolved(nodes, source), Resolved(processes, source), min_nodes or nodes, node_rank)
    return replace(healthy_launch(), topology=shape)


def on_cpu(source: Source) -> Launch:
    return replace(launch(), device=Resolved("cpu", source))


CASES = (
    fires(
        "slurm-node-rank-contradicts",
        "node rank 0 was given, but Slurm made this node 1 of 2 … leave `--node-rank` out … "
        "srun --kill-on-bad-exit=1 --ntasks-per-node=1",
        launch=launch(rank=0),
        environment=STEP,
    ),
    fires("slurm-node-rank-contradicts", "`unset NODE_RANK`", launch=launch(rank=0, source=EXPORTED), environment=STEP),
    silent("slurm-node-rank-contradicts", launch=launch(), environment=STEP),
    silent("slurm-node-rank-contradicts", "tasks count", launch=launch(rank=0), environment=FOUR_TASKS),
    silent("slurm-node-rank-contradicts", launch=launch(rank=0), environment={}),
    silent("slurm-node-rank-contradicts", launch=launch(1, None), environment=STEP),
    fires(
        "slurm-nodes-contradict",
        "2 nodes in the Slurm step … nodes that never come … srun --nodes=4",
        launch=launch(4, 0),
        environment=STEP,
    ),
    fires("slurm-nodes-contradict", "a model of its own … srun --nodes=1", launch=launch(1, 0), environment=STEP),
    silent("slurm-nodes-contradict", launch=launch(), environment=STEP),
    silent("slurm-nodes-contradict", "elastic", launch=launch(4, 0, min_nodes=2), environment=STEP),
    silent("slurm-nodes-contradict", launch=launch(4, 0), environment={}),
    fires(
        "slurm-tasks-contradict",
        "4 tasks on this node make 16 ranks, for 4 GPUs",
        launch=launch(8),
        environment=FOUR_TASKS,
    ),
    fires(
        "slurm-tasks-contradict", "4 GPUs", launch=launch(6, processes=1), environment=THREE_TASKS
    ),  # they do not divide among three tasks
    fires(
        "slurm-tasks-contradict",
        "4 tasks on this node start 4 ranks each: 16 ranks … in each task: `ddplaunch run 1 -- train.py`",
        "warning",
        launch=launch(),
        environment=ON_CPUS,
    ),
    silent("slurm-tasks-contradict", launch=launch(processes=1), environment=ON_CPUS),
    silent("slurm-tasks-contradict", launch=launch(8, processes=1), environment=FOUR_TASKS),
    silent(
        "slurm-tasks-contradict", launch=launch(6, processes=1), environment=THREE_TASKS | {"CUDA_VISIBLE_DEVICES": "0"}
    ),
    silent("slurm-tasks-contradict", launch=launch(processes=8), environment=STEP),
    fires(
        "slurm-gpus-uneven",
        "5 of the job's 6 GPUs are on this node of 2 … per-node=3",
        launch=launch(),
        environment=UNEVEN,
    ),
    silent("slurm-gpus-uneven", launch=launch(), environment=STEP | {"SLURM_GPUS": "8"}),
    fires(
        "slurm-gpus-unused",
        "torch is a CPU build",
        "warning",
        launch=on_cpu(Source("detected", "torch is a CPU build")),
        environment=STEP,
    ),
    silent("slurm-gpus-unused", "asked for", launch=on_cpu(Source("flag", "--device")), environment=STEP),
    silent("slurm-gpus-unused", launch=launch(), environment=STEP),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fires_with_words_and_stays_silent_without(case: Case) -> None:
    judge(case)
