"""Machines as the files that the kernel shows of them: sockets, NUMA nodes, hyper-threads, GPUs and network cards."""

from __future__ import annotations

from pathlib import Path

from ddplaunch.machine.cpu_layout import probe_layout
from ddplaunch.machine.facts import CpuLayout
from ddplaunch.values.words import numbers_of, numbers_text
from tests.checks.healthy import healthy_gpu, healthy_nvml


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def cpu_tree(root: Path, sockets: int = 2, nodes: int = 1, cores: int = 4, threads: int = 2) -> Path:
    """Write a machine of ``sockets`` × ``nodes`` × ``cores``; second threads count on behind all cores."""
    total = sockets * nodes * cores
    system = root / "sys/devices/system"
    for core in range(total):
        siblings = [core + thread * total for thread in range(threads)]
        for cpu in siblings:
            topology = system / f"cpu/cpu{cpu}/topology"
            write(topology / "thread_siblings_list", ",".join(map(str, siblings)))
            write(topology / "physical_package_id", core // (nodes * cores))
    write(system / "cpu/online", f"0-{total * threads - 1}")
    for node in range(sockets * nodes):
        first = [node * cores + core for core in range(cores)]
        cpus = sorted(cpu + thread * total for cpu in first for thread in range(threads))
        write(system / f"node/node{node}/cpulist", numbers_text(cpus))
    write(root / "proc/1/status", f"Cpus_allowed_list:\t0-{total * threads - 1}")
    return root


def add_gpus(root: Path, *nodes: int) -> None:
    """Put healthy GPUs number 0, 1, … on these NUMA nodes; -1 is what the kernel says of one that it cannot place."""
    for index, node in enumerate(nodes):
        write(root / f"sys/bus/pci/devices/0000:{0x10 + index:02x}:00.0/numa_node", node)


def machine(root: Path, gpus: int = 0, usable: str = "") -> CpuLayout:
    """Return what is read of the tree below ``root``; ``usable`` is the affinity, all CPUs unless given."""
    text = usable or (root / "sys/devices/system/cpu/online").read_text()
    nvml = healthy_nvml(*(healthy_gpu(each) for each in range(gpus))) if gpus else healthy_nvml()
    found = probe_layout(nvml, root, numbers_of(text))
    assert isinstance(found, CpuLayout), found
    return found
