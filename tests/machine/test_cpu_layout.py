"""Cores, NUMA nodes, sockets and the devices near them, from trees of several machines' shape and from this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from ddplaunch.machine.cpu_layout import probe_layout
from ddplaunch.machine.facts import CpuLayout, NumaNode
from ddplaunch.values import codec
from ddplaunch.values.resolved import Unavailable
from tests.machine.cpu_trees import add_gpus, cpu_tree, machine, write


def test_two_sockets_with_hyper_threads(tmp_path: Path) -> None:
    add_gpus(cpu_tree(tmp_path), 0, 1, -1)
    found = machine(tmp_path, 3)
    assert found.nodes == (
        NumaNode(0, 0, ((0, 8), (1, 9), (2, 10), (3, 11))),
        NumaNode(1, 1, ((4, 12), (5, 13), (6, 14), (7, 15))),
    )
    assert (found.allowed, found.online) == (16, 16)
    assert list(found.gpu_nodes.values()) == [0, 1], "what the kernel does not know is not there"
    assert codec.from_json(codec.to_json(found), CpuLayout) == found, "hosts send it"


def test_four_nodes_in_a_socket_and_single_threads_and_empty_nodes_by_odd_cpus(tmp_path: Path) -> None:
    found = machine(cpu_tree(tmp_path / "four", sockets=2, nodes=4, cores=2, threads=1))
    assert [(node.index, node.package, node.cpus) for node in found.nodes][3:5] == [(3, 0, (6, 7)), (4, 1, (8, 9))]
    assert len(found.cores) == 16
    found = machine(cpu_tree(tmp_path / "odd"), usable="1,3,9")
    assert [node.cores for node in found.nodes] == [((1, 9), (3,)), ()]
    assert found.cpus == (1, 3, 9)


def test_the_cpuset_of_the_cgroup_is_told_from_an_affinity(tmp_path: Path) -> None:
    cpu_tree(tmp_path)
    write(tmp_path / "proc/self/cgroup", "0::/job")
    write(tmp_path / "proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    write(tmp_path / "sys/fs/cgroup/job/cpuset.cpus.effective", "0-7")
    assert machine(tmp_path, usable="0-7").allowed == 8
    assert machine(tmp_path, usable="0-3").allowed == 8, "somebody chose four of the eight"
    write(tmp_path / "sys/fs/cgroup/job/cpuset.cpus.effective", "")
    write(tmp_path / "proc/1/status", "Cpus_allowed_list:\t0-3")
    assert machine(tmp_path, usable="0-3").allowed == 4, "of a container its first process tells it"


def test_a_kernel_without_numa_or_topology_is_one_node_of_single_threads(tmp_path: Path) -> None:
    found = probe_layout(Unavailable("no NVML"), tmp_path, [0, 1, 2])
    assert found == CpuLayout((NumaNode(0, 0, ((0,), (1,), (2,))),), 3, 3)
    (cpu_tree(tmp_path) / "sys/devices/system/node/node1/cpulist").unlink()
    contradicting = probe_layout(Unavailable("no NVML"), tmp_path, range(16))
    assert isinstance(contradicting, Unavailable), "nor are contradictions of the kernel a layout"


def test_one_node_asks_for_no_devices_and_nodes_without_cpus_are_memory_alone(tmp_path: Path) -> None:
    add_gpus(cpu_tree(tmp_path, sockets=1), 0)
    write(tmp_path / "sys/devices/system/node/node7/cpulist", "")
    found = machine(tmp_path, 1)
    assert [node.index for node in found.nodes] == [0] and not found.gpu_nodes


def test_this_machine() -> None:
    found = probe_layout(Unavailable("not asked"))
    assert isinstance(found, CpuLayout)
    assert set(found.cpus) == os.sched_getaffinity(0)
    if program := shutil.which("lscpu"):
        lines = subprocess.run([program, "-p=CPU,CORE,NODE"], capture_output=True, text=True, check=True).stdout
        rows = [line.split(",") for line in lines.splitlines() if not line.startswith("#")]
        usable = [row for row in rows if int(row[0]) in os.sched_getaffinity(0)]
        assert len(found.cores) == len({row[1] for row in usable})
        assert sum(bool(node.cores) for node in found.nodes) == len({row[2] for row in usable})
