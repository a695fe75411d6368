"""The layout of this process's CPUs: physical cores, NUMA nodes and sockets, and the GPUs near each node.

Everything is read from sysfs, as `lscpu` does; on a machine with one node the GPUs' nodes are not looked up.
https://docs.kernel.org/admin-guide/cputopology.html, https://docs.kernel.org/admin-guide/mm/numaperf.html
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ddplaunch.machine import files
from ddplaunch.machine.cgroups import levels
from ddplaunch.machine.facts import CpuLayout, NumaNode, NvmlFacts
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import numbers_of

_CPUS, _NODES = "sys/devices/system/cpu", "sys/devices/system/node"


def probe_layout(
    nvml: NvmlFacts | Unavailable, root: Path = Path("/"), affinity: Iterable[int] | None = None
) -> CpuLayout | Unavailable:
    """Return the layout of the CPUs in ``affinity`` (default: this process's), from the sysfs below ``root``."""
    usable = set(os.sched_getaffinity(0) if affinity is None else affinity)
    online = set(_listed(f"{root}/{_CPUS}/online")) or usable
    nodes = _nodes(root, usable, online)
    if {cpu for node in nodes for cpu in node.cpus} != usable:
        return Unavailable("the kernel does not tell on which NUMA nodes the usable CPUs are")
    allowed = len(_allowed(root, online) | usable)
    return CpuLayout(nodes, allowed, len(online), _gpu_nodes(root, nvml) if len(nodes) > 1 else {})


def _listed(path: str) -> tuple[int, ...]:
    try:
        return numbers_of(files.read(path) or "")
    except ValueError:
        return ()


def _nodes(root: Path, usable: set[int], online: set[int]) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes that have CPUs; a single node with all usable CPUs if the kernel shows none."""
    nodes = []
    folder = f"{root}/{_NODES}"
    names = (name for name in files.names(folder) if re.fullmatch(r"node[0-9]{1,6}", name))
    for index in sorted(int(name[4:]) for name in names):
        cpus = [cpu for cpu in _listed(f"{folder}/node{index}/cpulist") if cpu in online]
        if cpus:  # a node without CPUs is memory only
            package = files.number(f"{root}/{_CPUS}/cpu{cpus[0]}/topology/physical_package_id")
            cores = _cores(root, [cpu for cpu in cpus if cpu in usable])
            nodes.append(NumaNode(index, index if package is None or package < 0 else package, cores))
    return tuple(nodes) or (NumaNode(0, 0, _cores(root, sorted(usable))),)


def _cores(root: Path, cpus: list[int]) -> tuple[tuple[int, ...], ...]:
    """Return the CPUs grouped into physical cores; a CPU without known siblings is a core of its own."""
    siblings = (_listed(f"{root}/{_CPUS}/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus)
    return tuple(dict.fromkeys(tuple(sorted({*core, cpu} & {*cpus})) for cpu, core in zip(cpus, siblings, strict=True)))


def _allowed(root: Path, online: set[int]) -> set[int]:
    """Return the online CPUs that the cgroup's cpuset and the affinity of process 1 (a container's first) allow.

    https://docs.kernel.org/admin-guide/cgroup-v2.html#cpuset, cpuset(7); without the controller its files are absent.
    """
    hierarchy = levels("cpuset", root)
    names = ("cpuset.effective_cpus", "cpuset.cpus") if hierarchy.version == 1 else ("cpuset.cpus.effective",)
    lists = (_listed(f"{folder}/{name}") for folder in hierarchy.folders for name in names)
    cpuset = next((set(cpus) for cpus in lists if cpus), online)
    first = re.search(r"^Cpus_allowed_list:\s*(\S+)$", files.read(f"{root}/proc/1/status") or "", re.MULTILINE)
    return online & cpuset & (set(numbers_of(first[1])) if first else cpuset)


def _gpu_nodes(root: Path, nvml: NvmlFacts | Unavailable) -> dict[str, int]:
    """Return the NUMA node of each GPU by PCI bus ID; GPUs whose node is unknown (-1, as in most VMs) are left out."""
    node_by_gpu = {}
    for gpu in () if isinstance(nvml, Unavailable) else nvml.gpus:
        domain, _, rest = gpu.pci_bus_id.lower().partition(":")  # NVML writes a domain with 8 digits, the kernel with 4
        if re.fullmatch(r"[0-9a-f]{1,8}", domain) and re.fullmatch(r"[0-9a-f:.]+", rest):
            node = files.number(f"{root}/sys/bus/pci/devices/{int(domain, 16):04x}:{rest}/numa_node")
            if node is not None and node >= 0:
                node_by_gpu[gpu.pci_bus_id] = node
    return node_by_gpu
