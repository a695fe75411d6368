"""Environments that somebody else set up: Slurm, Kubeflow; as seen, or as their manuals have them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddplaunch.machine.facts import CpuFacts
from ddplaunch.planning.flag import NodeRange
from ddplaunch.planning.inside.complete import SIGNS, complete, notes, recognise, within_allocation
from ddplaunch.planning.inside.slurm import expand_hosts, read_slurm, repeated_counts
from ddplaunch.planning.inside.systems import systems
from ddplaunch.planning.launch import Topology
from ddplaunch.planning.options import Options
from ddplaunch.planning.ranks.topology import resolve_topology
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.checks.healthy import healthy_facts
from tests.planning.test_topology import said


def environ_of(text: str) -> dict[str, str]:
    return dict(word.split("=") for word in text.split())


#: Node 1 of a real Slurm 22.05 after `sbatch -N2 --gpus-per-node=3 --cpus-per-task=4` and `srun`.
STEP = environ_of(
    "CUDA_VISIBLE_DEVICES=0,1,2 SLURMD_NODENAME=vn2 SLURM_CPUS_ON_NODE=4 SLURM_CPUS_PER_TASK=4 "
    "SLURM_GPUS_ON_NODE=3 SLURM_GPUS_PER_NODE=3 SLURM_JOB_GPUS=0,1,2 SLURM_JOB_ID=12 SLURM_JOB_NODELIST=vn[1-2] "
    "SLURM_JOB_NUM_NODES=2 SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_NODEID=1 SLURM_NTASKS=2 SLURM_PROCID=1 "
    "SLURM_STEP_GPUS=0,1,2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=vn[1-2] SLURM_STEP_NUM_NODES=2 "
    "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_TASKS_PER_NODE=1(x2)"
)
BATCH = {name: value for name, value in STEP.items() if "STEP" not in name} | {"SLURM_NODEID": "0", "SLURM_PROCID": "0"}
TASKS = {"SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "3(x2)", "SLURM_PROCID": "4", "SLURM_LOCALID": "1"}


def topology(options: Options, environ: dict[str, str], processes: int = 3) -> Topology:
    done = complete(options, environ)
    known = done.nproc is not None and done.nproc.value != "auto"
    count: Any = done.nproc if known else Resolved(processes, Source("detected"))
    return resolve_topology(count, done.nnodes, done.node_rank, done.master_addr, done.master_port, environ)


def test_node_lists_are_spelled_out_in_order_or_not_guessed_at() -> None:
    for text, hosts in {
        "vn[1-3]": "vn1 vn2 vn3",
        "gpu[08-10,2]": "gpu08 gpu09 gpu10 gpu2",
        "a,b[1-2]-ib,c": "a b1-ib b2-ib c",
        "r[1-2]n[01-02]": "r1n01 r1n02 r2n01 r2n02",
        "login": "login",
    }.items():
        assert expand_hosts(text) == tuple(hosts.split())
    for text in ("", "a[1-", "a[]", "a[2-1]", "a[1-99999999]", "a[x]", "a,,b", "a]b", "n[1-999][1-999]"):
        assert expand_hosts(text) is None, text
    assert repeated_counts("2(x3),1") == (2, 2, 2, 1) and repeated_counts("2(x") is repeated_counts("2(x0)") is None


@given(st.text("ab019[],-()x", max_size=30))
def test_no_node_list_raises(text: str) -> None:
    expand_hosts(text)
    repeated_counts(text)


def test_a_step_decides_everything_and_is_the_source() -> None:
    found = topology(Options(), STEP)
    assert (found.nnodes.value, found.nproc_per_node.value, found.world_size) == (2, 3, 6)
    assert found.node_rank == Resolved(1, Source("Slurm", "SLURM_NODEID"))
    assert found.master_addr == Resolved("vn1", Source("Slurm", "SLURM_STEP_NODELIST"))
    assert found.master_port is not None and 15000 <= found.master_port.value < 25000
    options = complete(Options(), STEP)
    assert options.run_id is not None and options.run_id.value == "slurm-12.0"
    unseen = {name: value for name, value in STEP.items() if name != "CUDA_VISIBLE_DEVICES"}
    assert complete(Options(), unseen).nproc == Resolved(3, Source("Slurm", "SLURM_GPUS_ON_NODE"))
    # one of one task has the step's run id too, and stays on one node
    alone = {**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    options = complete(Options(), alone | {"SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_RESTART_COUNT": "1"})
    assert options.run_id is not None and options.run_id.value == "slurm-12.0-r1"
    assert options.nnodes is None and options.node_rank is None
    assert complete(Options(), BATCH).run_id is None, "a batch script may start several"


def test_the_gpus_of_a_node_are_counted_where_each_task_is_shown_its_own_alone() -> None:
    bound = {"SLURMD_TRES_BIND": "gpu:per_task:1", "SLURM_STEP_GPUS": "1", "CUDA_VISIBLE_DEVICES": "1"}
    slurm = read_slurm(STEP | TASKS | bound)
    assert slurm is not None and slurm.gpus_on_node == 3
    found = topology(Options(), STEP | TASKS | bound)
    assert (found.nnodes.value, found.nproc_per_node.value) == (6, 1)


def test_what_the_user_says_outranks_slurm() -> None:
    flags = said(nproc="2", node_rank=0, master_addr="10.0.0.1", master_port=29511, run_id="mine")
    found = topology(flags, STEP)
    assert found.nproc_per_node.value == 2 and found.nnodes.source.kind == "Slurm"
    assert found.node_rank and found.node_rank.value == 0 and found.master_addr and found.master_port
    assert (found.master_addr.value, found.master_port.value) == ("10.0.0.1", 29511)
    assert [each.value for each in complete(said(env=["A=b"]), STEP | TASKS).env][1:] == [("A", "b")]
    exported = topology(Options(), STEP | {"MASTER_ADDR": "vn9", "MASTER_PORT": "1234", "NODE_RANK": "0"})
    assert exported.master_addr == Resolved("vn9", Source("environment", "MASTER_ADDR"))
    assert exported.node_rank == Resolved(0, Source("environment", "NODE_RANK"))


SIX_GPUS = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5", "SLURM_STEP_GPUS": "0,1,2,3,4,5"}


@pytest.mark.parametrize(
    ("environ", "typed", "name", "value"),
    [
        ({"SLURM_STEP_RESV_PORTS": "12000-12003"}, {}, "master_port", 12000),
        (TASKS, {}, "nnodes", NodeRange(6, 6)),  # tasks for each GPU become one rank each with that GPU
        (TASKS, {}, "node_rank", 4),
        (TASKS, {}, "env", ("CUDA_VISIBLE_DEVICES", "1")),
        (TASKS | {"CUDA_VISIBLE_DEVICES": "0"}, {}, "env", None),  # Slurm bound it
        (TASKS | SIX_GPUS, {}, "env", ("CUDA_VISIBLE_DEVICES", "2,3")),
        (TASKS | SIX_GPUS, {}, "nproc", 2),
        (TASKS, {"device": "cpu"}, "nproc", 1),
        (TASKS, {"gpus": "0"}, "env", None),
        (TASKS | {"SLURM_STEP_GPUS": "0,1,2,3,4,5,6,7,8"}, {}, "nproc", 3),  # its own three of nine
        (TASKS | dict.fromkeys(SIX_GPUS, "0,1,2,3"), {}, "nproc", 1),  # do not divide evenly
        ({"CUDA_VISIBLE_DEVICES": "0"}, {}, "nproc", None),  # somebody narrowed what Slurm gave
        ({}, {"gpus": "0,1"}, "nproc", None),
        ({}, {"device": "cpu"}, "nproc", None),
    ],
)
def test_what_a_step_decides(environ: dict[str, str], typed: dict[str, str], name: str, value: object) -> None:
    decided = getattr(complete(said(**typed), STEP | environ), name)
    (found,) = decided or (None,) if isinstance(decided, tuple) else (decided,)
    assert (found and found.value) == value
    if name == "nnodes":
        assert found.source == Source("Slurm", "SLURM_NTASKS")


def test_a_batch_script_is_outside_of_a_step() -> None:
    slurm = read_slurm(BATCH)
    assert slurm is not None and slurm.step is None and slurm.on_node and slurm.nodes == 2
    assert complete(Options(), BATCH).nnodes is None and complete(Options(), BATCH).nproc is not None
    login = {name: value for name, value in BATCH.items() if name not in ("SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES")}
    assert complete(Options(), login).nproc is None, "the GPUs are elsewhere"
    for inside in ({"SLURM_STEP_ID": "4294967290"}, {"SLURM_STEP_ID": "0", "SLURM_PTY_PORT": "4711"}):
        interactive = read_slurm(BATCH | inside)
        assert interactive is not None and interactive.step is None


def test_cpus_that_slurm_gave_count_where_it_does_not_bind_them() -> None:
    facts = healthy_facts(cpu=CpuFacts(logical=64, affinity=64, quota_cpus=None, usable=64))
    cpu = within_allocation(facts, STEP).cpu
    assert isinstance(cpu, CpuFacts) and cpu.usable == 4
    cpu = within_allocation(facts, STEP | TASKS | {"SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "2"}).cpu
    assert isinstance(cpu, CpuFacts) and cpu.usable == 1, "tasks of a step may share CPUs"
    login = {name: value for name, value in STEP.items() if name != "SLURMD_NODENAME"}
    for environ in ({}, login, {"SLURM_JOB_ID": "x"}, {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "vn1"}):
        assert within_allocation(facts, environ) == facts
    unknown = healthy_facts(cpu=Unavailable("no /proc"))
    assert within_allocation(unknown, STEP) == unknown


def test_the_note_says_what_slurm_gave_and_how_much_time_is_left() -> None:
    (note,) = notes(STEP | {"SLURM_JOB_END_TIME": "4600"}, now_s=1000)
    assert note == "Slurm job 12.0: node 1 of 2 nodes (vn[1-2]), 3 GPUs on this node, 4 CPUs a task, 1 h left"
    (of_array,) = notes(STEP | {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "3"}, 0)
    assert of_array.startswith("Slurm job 12.0 (array 9_3): "), "as squeue names it"
    assert notes({}, 0) == ()
    assert notes(environ_of("SLURM_JOB_ID=7 SLURM_JOB_NODELIST=vn1"), 0) == ("Slurm job 7: vn1",)


@pytest.mark.parametrize("value", ["", "x", "-1", "999999999999999999999"])
def test_malformed_numbers_of_slurm_count_as_not_said(value: str) -> None:
    names = ("SLURM_NODEID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID")
    slurm = read_slurm(STEP | dict.fromkeys(names, value) | {"SLURM_TASKS_PER_NODE": value})
    assert slurm is not None and (slurm.node_rank, slurm.tasks, slurm.task) == (0, 2, 0)
    assert (slurm.tasks_here, slurm.local_task) == (1, 0)


POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
PLACE = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "1"}
KUBEFLOW = {
    **POD,
    **PLACE,
    "HOSTNAME": "train-worker-2",
    "PET_MASTER_ADDR": "train-node-0-0.train",
    "PET_MASTER_PORT": "29400",
}
ELASTIC = {
    **{**POD, "HOSTNAME": "train-worker-2", "PET_NNODES": "1:3"},
    **{"PET_RDZV_ENDPOINT": "train-worker-0:23456", "PET_RDZV_BACKEND": "c10d"},
}
SKYPILOT = {
    **{"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"},
    **{"SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n", "SKYPILOT_NUM_GPUS_PER_NODE": "4"},
}
DSTACK = {
    **{"DSTACK_NODES_NUM": "3", "DSTACK_NODE_RANK": "2"},
    **{"DSTACK_MASTER_NODE_IP": "10.1.0.1", "DSTACK_GPUS_PER_NODE": "8"},
}
SAGEMAKER = {"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2", "SM_NUM_GPUS": "1"}


@pytest.mark.parametrize(
    ("environ", "kind", "expected"),
    [
        (KUBEFLOW, "Kubeflow", (2, 4, 1, "train-node-0-0.train", 29400)),
        (ELASTIC, "Kubeflow", (3, 3, 2, "train-worker-0", 23456)),
        (SKYPILOT, "environment", (2, 4, 1, "10.0.0.4", 29500)),
        ({**SKYPILOT, "SKYPILOT_NUM_GPUS_PER_NODE": "0"}, "environment", (2, 3, 1, "10.0.0.4", 29500)),
        (DSTACK, "environment", (3, 8, 2, "10.1.0.1", 29500)),
        (SAGEMAKER, "environment", (2, 1, 1, "algo-1", 29500)),
    ],
)
def test_others_are_recognised_and_shown_as_source(
    environ: dict[str, str], kind: str, expected: tuple[Any, ...]
) -> None:
    found = topology(Options(), environ)
    assert found.nnodes.source.kind == kind
    addr, port, rank = found.master_addr, found.master_port, found.node_rank
    assert addr and port and rank and rank.source.kind == kind
    assert (found.nnodes.value, found.nproc_per_node.value, rank.value, addr.value, port.value) == expected
    assert found.min_nodes == (1 if environ is ELASTIC else expected[0])


def test_what_was_typed_wins_over_other_systems_too() -> None:
    one = Options(nnodes=Resolved(NodeRange(1, 1), Source("flag")))
    assert topology(one, SKYPILOT).world_size == 4, "on this node alone"
    assert topology(said(nproc="2"), SKYPILOT).world_size == 4
    assert topology(said(device="cpu"), SKYPILOT, processes=1).world_size == 2, "their GPUs count none of the CPU's"
    assert notes(SKYPILOT, 0) == ("SkyPilot: node 1 of 2",)


@pytest.mark.parametrize(
    ("environ", "by"),
    [
        ({"PBS_NODEFILE": "c1\nc1\nc2\nc2\n"}, "PBS"),
        ({"LSB_MCPU_HOSTS": "c1 2 c2 2"}, "LSF"),
        ({"LSB_HOSTS": "c1 c1 c2 c2"}, "LSF"),
    ],
)
def test_a_job_whose_other_hosts_would_stand_idle_is_refused(environ: dict[str, str], by: str) -> None:
    with pytest.raises(UsageError, match=f"{by} gave this job several hosts, c1,c2"):
        complete(Options(), environ)
    alone = Options(nnodes=Resolved(NodeRange(1, 1), Source("flag")))
    assert complete(alone, environ) == alone
    one_host = {name: value.split("\n")[0].partition(" c2")[0] for name, value in environ.items()}
    assert complete(Options(), one_host).nnodes in (None, Resolved(NodeRange(1, 1), Source("environment")))


def test_each_system_has_a_sign_that_is_looked_for_first_and_stale_ones_decide_nothing() -> None:
    assert {row["signs"][0] for row in systems()} == {*SIGNS} - {"SLURM_JOB_ID"}
    for environ in ({}, PLACE, {"SLURM_JOB_ID": "x"}, {"SKYPILOT_NUM_NODES": "two"}):
        assert recognise(environ) is None
        assert complete(Options(), environ) == Options()
    # a pod of an indexed job knows its rank, and no number of nodes
    environ = {"JOB_COMPLETION_INDEX": "1"}
    assert complete(Options(), environ) == Options()
    two = Options(nnodes=Resolved(NodeRange(2, 2), Source("flag")))
    assert complete(two, environ).node_rank == Resolved(1, Source("environment", "JOB_COMPLETION_INDEX"))


@pytest.mark.parametrize(
    ("variable", "fix"),
    [("JOB_COMPLETION_INDEX", "`--nnodes N --master-addr HOST` joins N pods"), ("RAY_RAYLET_PID", "`--hosts a,b`")],
)
def test_a_launch_on_one_node_is_told_of_others_that_there_may_be(variable: str, fix: str) -> None:
    (note,) = notes({variable: "1"}, 0)
    assert note.startswith(f"{variable}: ") and "trains alone" in note and fix in note
    assert notes({variable: "1"}, 0, nodes=2) == (), "which were told of"
    assert notes(BATCH, 0, nodes=2) == notes(BATCH, 0) != (), "a job of Slurm stays one"


def test_a_launch_that_mpirun_starts_several_times_is_refused() -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE"):
        for typed in (Options(), said(nproc="1x4")):
            with pytest.raises(UsageError, match="mpirun started this command 4 times"):
                complete(typed, {name: "4"})
        placed = Options(nnodes=Resolved(NodeRange(4, 4), Source("flag")))
        assert complete(placed, {name: "4"}) == placed
        assert complete(Options(), {name: "1"}) == Options()
    assert complete(Options(), STEP | {"PMI_SIZE": "2"}).nnodes is not None, "srun sets it as well"
    with pytest.raises(UsageError, match="mpirun started"):
        complete(Options(), BATCH | {"OMPI_COMM_WORLD_SIZE": "4"})
