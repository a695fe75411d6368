"""The checks of a launch against its Slurm step: each with steps that contradict and steps that do not."""

from __future__ import annotations

from dataclasses import replace

from ddplaunch.machine.facts import HostFacts
from ddplaunch.planning.launch import Launch, Topology
from ddplaunch.values.resolved import Resolved, Source
from tests.checks.cases import fires, judged, silent
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
ELSEWHERE_OR_NONE = ("SLURMD_NODENAME", "SLURM_STEP_GPUS")
DETECTED = Source("detected", "torch is a CPU build")
ELSEWHERE = HostFacts("gpu-node-1", ("10.0.0.5",), "6.8.0", None, "ada", slurm_task=False)
RANK, TASKS = "slurm-node-rank-contradicts", "slurm-tasks-contradict"
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
    fires(RANK, "this node 1 of 2 … leave `--node-rank` out", launch=launch(rank=0), environment=STEP),
    fires(RANK, "`unset NODE_RANK`", launch=launch(rank=0, source=EXPORTED), environment=STEP),
    silent(RANK, launch=launch(), environment=STEP),
    silent(RANK, "tasks count", launch=launch(rank=0), environment=FOUR_TASKS),
    silent(RANK, launch=launch(rank=0), environment={}),
    silent(RANK, launch=launch(1, None), environment=STEP),
    fires("slurm-nodes-contradict", "that never come … --nodes=4", launch=launch(4, 0), environment=STEP),
    fires("slurm-nodes-contradict", "a model of its own … srun --nodes=1", launch=launch(1, 0), environment=STEP),
    silent("slurm-nodes-contradict", "elastic", launch=launch(4, 0, min_nodes=2), environment=STEP),
    silent("slurm-nodes-contradict", launch=launch(4, 0), environment={}),
    fires(TASKS, "4 tasks on this node make 16 ranks, for 4 GPUs", launch=launch(8), environment=FOUR_TASKS),
    # they do not divide among three tasks
    fires(TASKS, "4 GPUs", launch=launch(6, processes=1), environment=THREE_TASKS),
    fires(TASKS, "4 ranks each: 16 ranks … run 1 -- train", "warning", launch=launch(), environment=ON_CPUS),
    silent(TASKS, launch=launch(processes=1), environment=ON_CPUS),
    silent(TASKS, launch=launch(8, processes=1), environment=FOUR_TASKS),
    silent(TASKS, launch=launch(6, processes=1), environment=THREE_TASKS | {"CUDA_VISIBLE_DEVICES": "0"}),
    silent(TASKS, launch=launch(processes=8), environment=STEP),
    fires("slurm-gpus-uneven", "5 of the job's 6 GPUs … per-node=3", launch=launch(), environment=UNEVEN),
    silent("slurm-gpus-uneven", launch=launch(), environment=STEP | {"SLURM_GPUS": "8"}),
    silent("slurm-gpus-uneven", "one rank a task", launch=launch(), environment=FOUR_TASKS | {"SLURM_GPUS": "6"}),
    fires("slurm-gpus-unused", "torch is a CPU b", "warning", launch=on_cpu(DETECTED), environment=STEP),
    silent("slurm-gpus-unused", "asked for", launch=on_cpu(Source("flag", "--device")), environment=STEP),
    fires("slurm-gpus-unused", "no GPU was found", "warning", launch=on_cpu(Source("detected")), environment=STEP),
    silent("slurm-gpus-unused", launch=launch(), environment=STEP),
    *(
        silent("slurm-gpus-unused", "not here, or not given", launch=on_cpu(DETECTED), environment=without)
        for without in ({name: text for name, text in STEP.items() if name != gone} for gone in ELSEWHERE_OR_NONE)
    ),
    fires("slurm-elsewhere", "job 7 does not run on gpu-node-1", host=ELSEWHERE, environment=STEP),
    silent("slurm-elsewhere", environment=STEP),
    silent("slurm-elsewhere", host=replace(ELSEWHERE, container="docker"), environment=STEP),
)
test_fires_with_words_and_stays_silent_without = judged(*CASES)
