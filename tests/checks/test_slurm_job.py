"""The checks of a launch against its Slurm step: each with steps that contradict and steps that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddplaunch.checks.slurm_job import CHECKS
from ddplaunch.planning.launch import Launch, Topology
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Resolved, Source
from tests.checks.cases import found, silent_when_healthy
from tests.checks.healthy import healthy_facts, healthy_launch

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[1-2]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_GPUS": "0,1,2,3",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    "SLURMD_NODENAME": "gpu2",
}
FOUR_TASKS = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_PROCID": "5"}


def launch(
    nodes: int = 2, rank: int | None = 1, *, processes: int = 4, kind: str = "flag", min_nodes: int | None = None
) -> Launch:
    source = Source("environment", "NODE_RANK") if kind == "environment" else Source("flag", "--node-rank")
    topology = Topology(
        Resolved(nodes, source),
        Resolved(processes, source),
        min_nodes or nodes,
        None if rank is None else Resolved(rank, source),
    )
    return replace(healthy_launch(), topology=topology)


def find(code: str, environ: dict[str, str], about: Launch) -> Finding | None:
    return found(CHECKS, code, healthy_facts(environment=environ), about)


def test_a_healthy_node_outside_of_slurm_has_none_of_these() -> None:
    silent_when_healthy(CHECKS)


def test_a_node_rank_that_was_expanded_too_early_is_named_with_the_true_one() -> None:
    finding = find("slurm-node-rank-contradicts", STEP, launch(rank=0))
    assert finding and finding.what == "node rank 0 was given, but Slurm made this node 1 of 2"
    assert "leave `--node-rank` out" in finding.fix and "srun --kill-on-bad-exit=1 --ntasks-per-node=1" in finding.fix
    exported = find("slurm-node-rank-contradicts", STEP, launch(rank=0, kind="environment"))
    assert exported and exported.fix.startswith("`unset NODE_RANK`")


@pytest.mark.parametrize(
    ("environ", "about"),
    [(STEP, launch(rank=1)), (STEP | FOUR_TASKS, launch(rank=0)), ({}, launch(rank=0)), (STEP, launch(1, None))],
)
def test_a_node_rank_that_agrees_or_means_something_else_is_left_alone(environ: dict[str, str], about: Launch) -> None:
    assert find("slurm-node-rank-contradicts", environ, about) is None


@pytest.mark.parametrize(("nodes", "why"), [(4, "nodes that never come"), (1, "a model of its own")])
def test_another_number_of_nodes_than_the_step_has(nodes: int, why: str) -> None:
    finding = find("slurm-nodes-contradict", STEP, launch(nodes, 0))
    assert finding and "2 nodes in the Slurm step" in finding.what and why in finding.why
    assert f"srun --nodes={nodes}" in finding.fix


def test_the_steps_own_number_of_nodes_and_an_elastic_range_around_it_pass() -> None:
    assert find("slurm-nodes-contradict", STEP, launch(2)) is None
    assert find("slurm-nodes-contradict", STEP, launch(4, 0, min_nodes=2)) is None
    assert find("slurm-nodes-contradict", {}, launch(4, 0)) is None


def test_tasks_that_each_start_as_many_ranks_as_there_are_gpus() -> None:
    finding = find("slurm-tasks-contradict", STEP | FOUR_TASKS, launch(8, processes=4))
    assert finding and finding.what == "4 tasks on this node make 16 ranks, for 4 GPUs"
    three = STEP | FOUR_TASKS | {"SLURM_STEP_TASKS_PER_NODE": "3(x2)", "SLURM_STEP_NUM_TASKS": "6"}
    assert find("slurm-tasks-contradict", three, launch(6, processes=1)), "four GPUs do not divide among three tasks"


def test_one_task_for_each_gpu_or_one_for_each_node_fits() -> None:
    assert find("slurm-tasks-contradict", STEP | FOUR_TASKS, launch(8, processes=1)) is None
    bound = STEP | FOUR_TASKS | {"SLURM_STEP_TASKS_PER_NODE": "3(x2)", "CUDA_VISIBLE_DEVICES": "0"}
    assert find("slurm-tasks-contradict", bound, launch(6, processes=1)) is None
    assert find("slurm-tasks-contradict", STEP, launch(2, processes=8)) is None


def test_gpus_that_slurm_spread_unevenly() -> None:
    uneven = STEP | {"SLURM_GPUS": "6", "SLURM_STEP_GPUS": "0,1,2,3,4"}
    finding = find("slurm-gpus-uneven", uneven, launch())
    assert finding and finding.what == "5 of the job's 6 GPUs are on this node of 2" and "per-node=3" in finding.fix
    assert find("slurm-gpus-uneven", STEP | {"SLURM_GPUS": "8"}, launch()) is None


def test_gpus_that_slurm_gave_for_a_launch_on_the_cpu() -> None:
    on_cpu = replace(launch(), device=Resolved("cpu", Source("detected", "torch is a CPU build")))
    finding = find("slurm-gpus-unused", STEP, on_cpu)
    assert finding and finding.why.startswith("torch is a CPU build")
    asked = replace(launch(), device=Resolved("cpu", Source("flag", "--device")))
    assert find("slurm-gpus-unused", STEP, asked) is None
    assert find("slurm-gpus-unused", STEP, launch()) is None


def test_tasks_and_ranks_that_multiply_on_cpus_are_named() -> None:
    environ = {name: text for name, text in (STEP | FOUR_TASKS).items() if "SLURM_STEP_GPUS" not in name}
    finding = find("slurm-tasks-contradict", environ, launch())
    assert finding and finding.what == "4 tasks on this node start 4 ranks each: 16 ranks"
    assert "one rank in each task: `ddplaunch run 1 -- train.py`" in finding.fix
    assert find("slurm-tasks-contradict", environ, launch(processes=1)) is None
