"""On which CPUs ranks run, decided from machines of several shapes: near their GPUs, apart, or left to the kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.machine.facts import CpuFacts, CpuLayout, Facts
from ddplaunch.planning.launch import Launch, Placement, Target
from ddplaunch.planning.ranks.placement import said_workers, workers_typed
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, ScriptReport
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.variable_names import SETTINGS
from ddplaunch.values.words import numbers_of
from tests.checks.healthy import healthy_facts, healthy_gpu, healthy_nvml, healthy_torch
from tests.machine.cpu_trees import add_gpus, cpu_tree, machine
from tests.planning.test_resolve import decide
from tests.planning.test_topology import said

FLAGS = frozenset({"--logs-specs", "--shutdown-timeout", "--numa-binding"})
PLUGIN = "/site-packages/ddplaunch-1.dist-info/entry_points.txt"
FOUR = (0, 0, 1, 1)  # the NUMA nodes of four GPUs


def facts(layout: CpuLayout, gpus: int = 0) -> Facts:
    count = len(layout.cpus)
    cpu = CpuFacts(layout.online, count, None, count)
    nvml = healthy_nvml(*(healthy_gpu(each) for each in range(gpus))) if gpus else Unavailable("no driver")
    return healthy_facts(cpu=cpu, cpu_layout=layout, nvml=nvml, torch=healthy_torch(torchrun_flags=FLAGS))


def launched(found: Facts, nproc: int, environ: dict[str, str] | None = None, **options: Any) -> Launch:
    pairs = options.pop("pairs", ())
    options = {"nproc": str(nproc), **options}
    return decide(said(**options), found, environ=environ or {}, pairs=pairs, plugin=PLUGIN)


def on_gpus(tmp_path: Path, nodes: tuple[int, ...] = FOUR, usable: str = "", **options: Any) -> Launch:
    """Decide a rank for each of the GPUs on ``nodes``, on two sockets with 16 cores and hyper-threads each."""
    add_gpus(cpu_tree(tmp_path, cores=16), *nodes)
    layout = machine(tmp_path, len(nodes), usable)
    return launched(facts(layout, len(nodes)), options.pop("nproc", len(nodes)), **options)


def on_cpus(tmp_path: Path, nproc: int, usable: str = "", **options: Any) -> Placement:
    tree = cpu_tree(tmp_path, **options.pop("shape", {"cores": 8}))
    options = {"placement": "cores", **options}
    return launched(facts(machine(tree, usable=usable)), nproc, **options).placement


def threads(launch: Launch) -> str | None:
    return next((each.value for each in launch.environment if each.name == "OMP_NUM_THREADS"), None)


def told(launch: Launch) -> list[str]:
    """Return the CPUs that the plug-in is told."""
    (text,) = [each.value for each in launch.environment if each.name == SETTINGS and each.value]
    return list(json.loads(text).get("cpus", []))


def test_each_rank_runs_on_the_node_of_its_gpu(tmp_path: Path) -> None:
    launch = on_gpus(tmp_path)
    assert launch.placement.cpus == ("0-15,32-47", "0-15,32-47", "16-31,48-63", "16-31,48-63")
    assert told(launch) == list(launch.placement.cpus)
    assert launch.placement.text == "ranks 0, 1 on NUMA node 0, ranks 2, 3 on NUMA node 1, as their GPUs"
    assert threads(launch) == "8", "16 cores of a node for its two ranks; hyper-threads do not count"
    assert launch.placement.reason == "a rank's share of its node is 8 physical cores"


@pytest.mark.parametrize(
    ("options", "cpus", "text"),
    [
        # in the order of the GPUs
        ({"nproc": 2, "environ": {"CUDA_VISIBLE_DEVICES": "3,0"}}, ("16-31,48-63", "0-15,32-47"), "as their GPUs"),
        ({"capture": False}, (), "not bound: without capture nobody is there to do it"),
        ({"placement": "none"}, (), "left to the kernel"),
        ({"placement": "cores"}, ("0-7,32-39", "8-15,40-47", "16-23,48-55", "24-31,56-63"), "each of 4 ranks on 8"),
    ],
)
def test_ranks_on_gpus(tmp_path: Path, options: dict[str, Any], cpus: tuple[str, ...], text: str) -> None:
    launch = on_gpus(tmp_path, **options)
    assert launch.placement.cpus == cpus and text in launch.placement.text
    assert launch.placement.apart == (options.get("placement") == "cores")
    assert told(launch) == list(cpus) if "capture" not in options else True


@pytest.mark.parametrize(
    ("nodes", "usable", "says"),
    [
        ((0, 0, -1, 1), "", "the kernel does not tell the NUMA node of rank 2's GPU"),
        (FOUR, "0-15,32-47", "rank 2's GPU is on NUMA node 1, of which no CPU may be used"),
    ],
)
def test_gpu_ranks_in_doubt_are_not_bound(tmp_path: Path, nodes: tuple[int, ...], usable: str, says: str) -> None:
    if usable:  # a cpuset: nobody chose within it
        (cpu_tree(tmp_path, cores=16) / "proc/1/status").write_text(f"Cpus_allowed_list: {usable}\n")
    add_gpus(tmp_path, *nodes)
    if not usable:
        cpu_tree(tmp_path, cores=16)
    launch = launched(facts(machine(tmp_path, len(nodes), usable), len(nodes)), len(nodes))
    assert launch.placement.cpus == () and told(launch) == []
    limit = "; 32 of 64 CPUs are usable" if usable else ""
    assert launch.placement.text == f"not bound: {says}{limit}" and launch.placement.shown


def test_one_node_leaves_gpu_ranks_alone(tmp_path: Path) -> None:
    add_gpus(cpu_tree(tmp_path, sockets=1), 0, 0)
    launch = launched(facts(machine(tmp_path, 2), 2), 2)
    reason = "4 usable physical cores / 2 processes; unset, torchrun would say 1"  # of 8 hyper-threads
    assert launch.placement == Placement(threads=2, reason=reason) and threads(launch) == "2"
    apart = launched(facts(machine(tmp_path, 2), 2), 2, placement="cores").placement
    assert apart.cpus == ("0-1,4-5", "2-3,6-7")


@pytest.mark.parametrize(
    ("nproc", "sizes", "text"),
    [
        (4, [4] * 4, "each of 4 ranks on 4 physical cores of its own"),
        (3, [5, 5, 6], "each of 3 ranks on 5 physical cores of its own"),  # as evenly as they can be divided
        (16, [1] * 16, "each of 16 ranks on 1 physical core of its own"),
        (17, [], "not bound: 16 physical cores for 17 ranks"),
    ],
)
def test_cpu_ranks_get_cores_of_their_own(tmp_path: Path, nproc: int, sizes: list[int], text: str) -> None:
    found = on_cpus(tmp_path, nproc)
    sets = [set(numbers_of(cpus)) for cpus in found.cpus]
    assert sorted(len(cpus) // 2 for cpus in sets) == sizes and found.text == text, "hyper-threads stay together"
    assert sum(map(len, sets)) == len(set().union(*sets)), "no CPU twice"
    if nproc == 4:
        assert found.cpus == ("0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31")
        assert (found.threads, found.apart, found.shown, found.source.kind) == (4, True, True, "flag")
        assert found.reason == "each rank has 4 physical cores of its own"


@pytest.mark.parametrize(
    ("placement", "says"),
    [("auto", ""), ("none", "left to the kernel"), ("node", "not bound: ranks on the CPU have no GPU to be near to")],
)
def test_ranks_on_the_cpu_are_left_to_the_kernel(tmp_path: Path, placement: str, says: str) -> None:
    found = on_cpus(tmp_path, 4, placement=placement)
    assert (found.cpus, found.text, found.threads) == ((), says, 4)


def test_a_cpuset_of_odd_cpus_is_divided_and_named(tmp_path: Path) -> None:
    tree = cpu_tree(tmp_path, sockets=1, cores=8)
    (tree / "proc/1/status").write_text("Cpus_allowed_list:\t1,3,5,7,9\n")
    found = launched(facts(machine(tree, usable="1,3,5,7,9")), 2, placement="cores").placement
    assert found.cpus == ("1,3,9", "5,7"), "1 and 9 are one core"
    assert found.text.endswith("; 5 of 16 CPUs are usable")
    alone = launched(facts(machine(tree, usable="1,3,5,7,9")), 1).placement
    assert (alone.text, alone.shown) == ("5 of 16 CPUs are usable", True)


@pytest.mark.parametrize(
    ("environ", "who", "kind"),
    [({}, "what started ddplaunch (`taskset`, `numactl`)", "environment"), ({"SLURM_JOB_ID": "7"}, "Slurm", "Slurm")],
)
def test_who_was_bound_stays_as_it_is(tmp_path: Path, environ: dict[str, str], who: str, kind: str) -> None:
    found = on_cpus(tmp_path, 2, "0-7,16-23", environ=environ, placement="auto")
    assert found.cpus == ()
    assert found.text == f"CPUs 0-7,16-23 of 32, bound by {who}"
    assert (found.source.kind, found.shown, found.threads) == (kind, True, 4)
    asked = on_cpus(tmp_path, 2, "0-7,16-23", environ=environ)
    assert asked.cpus == ("0-3,16-19", "4-7,20-23"), "within what there is"
    assert asked.text.endswith("; 16 of 32 CPUs are usable")


def test_all_cpus_of_a_slurm_job_are_no_choice_among_them(tmp_path: Path) -> None:
    bound = {"SLURM_JOB_ID": "7", "SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPUS_ON_NODE": "32"}
    usable = "0-7,16-23,32-39,48-55"
    found = on_gpus(tmp_path, (0, 1), usable, environ=bound).placement
    assert found.cpus == ("0-7,32-39", "16-23,48-55")
    assert found.text.endswith("; 32 of 64 CPUs are usable")
    assert on_gpus(tmp_path, (0, 1), usable, environ={**bound, "SLURM_CPUS_ON_NODE": "64"}).placement.cpus == ()


def test_the_users_own_words_to_torchrun_win(tmp_path: Path) -> None:
    launch = on_gpus(tmp_path, torchrun_arg=["--numa-binding=exclusive"])
    assert [word for word in launch.argv if "numa" in word] == ["--numa-binding=exclusive"]
    assert launch.placement.text == "as torchrun's `--numa-binding=exclusive` says" and not told(launch)
    with pytest.raises(UsageError) as caught:
        on_gpus(tmp_path, torchrun_arg=["--numa_binding=node"], placement="none")
    assert "--placement none" in caught.value.findings[0].what


def test_without_a_layout_threads_are_counted_as_ever() -> None:
    unknown = healthy_facts(cpu=CpuFacts(16, 16, None, 16), cpu_layout=Unavailable("no sysfs"))
    launch = decide(said(nproc="4"), unknown)
    assert (threads(launch), launch.placement.text) == ("4", "")


@pytest.mark.parametrize(
    ("flags", "more", "typed"),
    [
        (("--lr", "--num_workers"), {}, "--num_workers 4"),
        (("-j", "--workers"), {"same": True}, "--workers 4"),
        (("data.num_workers",), {"spelling": "k=v"}, "data.num_workers=4"),
        (("--workers",), {"takes_value": False}, ""),
    ],
)
def test_how_a_script_takes_workers(flags: tuple[str, ...], more: dict[str, Any], typed: str) -> None:
    where = DeclaredAt("train.py", 3)
    groups = [flags] if more.pop("same", False) else [(each,) for each in flags]
    report = ScriptReport("train.py", tuple(DeclaredOption(each, where, **more) for each in groups))
    assert workers_typed(report, "4") == typed
    for word, workers in (("4", 4), ("many", None), ("²", None)):
        assert said_workers(Target("script", "train.py", ("--workers", word))) == workers
