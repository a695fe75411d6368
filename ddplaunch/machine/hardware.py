"""CPUs, memory, /dev/shm and limits that this process may use, and the GPUs that the kernel shows.

Limits are from affinity, cgroups v1 and v2, and rlimits; GPUs are NVIDIA's on the PCI bus and AMD's in sysfs.

psutil reports the machine's CPUs and memory but no cgroups, and importing it takes 17 ms of the 100 ms that `run` has.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ddplaunch.machine import files
from ddplaunch.machine.cgroups import CgroupLevels, levels
from ddplaunch.machine.facts import CpuFacts, LimitFacts, MemoryFacts, NvidiaFacts, ShmFacts
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable


def probe_cpu(root: Path = Path("/")) -> CpuFacts:
    """Return how many CPUs the machine has, and how many the affinity mask and the cgroup quota leave this process."""
    affinity = len(os.sched_getaffinity(0))
    quota = _quota(levels("cpu", root))
    usable = affinity if quota is None else min(affinity, math.floor(quota))
    return CpuFacts(logical=os.cpu_count() or affinity, affinity=affinity, quota_cpus=quota, usable=max(1, usable))


def _quota(levels: CgroupLevels) -> float | None:
    """Return the smallest quota of all levels; a parent's quota binds its children too.

    v1 has cpu.cfs_quota_us (-1: none) and cpu.cfs_period_us, v2 has "QUOTA PERIOD" in cpu.max
    (https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files).
    """
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if levels.version == 1 else ("cpu.max",)
    quotas = []
    for folder in levels.folders:
        words = " ".join(files.read(f"{folder}/{name}") or "" for name in names).split()
        if len(words) == 2 and all(word.isdigit() and int(word) > 0 for word in words):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


_NAMED_NUMBER = re.compile(r"^([^\s:]+):?[ \t]+(\d+)", re.MULTILINE)
_MEMORY_FILES = {  # cgroup version: limit, usage, the reclaimable page cache's line in memory.stat
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def probe_memory(root: Path = Path("/")) -> MemoryFacts | Unavailable:
    """Return total, limit and available bytes; a cgroup limit at or above the machine's memory is ignored."""
    meminfo = _table(f"{root}/proc/meminfo")
    if not {"MemTotal", "MemAvailable"} <= meminfo.keys():
        return Unavailable("/proc/meminfo does not tell MemTotal and MemAvailable")
    total, available = meminfo["MemTotal"] * 1024, meminfo["MemAvailable"] * 1024
    tightest = total
    hierarchy = levels("memory", root)
    limit_file, usage_file, cache_name = _MEMORY_FILES[hierarchy.version]
    for folder in hierarchy.folders:
        limit = files.number(f"{folder}/{limit_file}")
        if limit is None or limit >= total:  # "max", or v1's 2^63 rounded down to a page
            continue
        tightest = min(tightest, limit)
        usage = files.number(f"{folder}/{usage_file}") or 0
        cache = _table(f"{folder}/memory.stat").get(cache_name, 0)
        available = min(available, max(0, limit - usage + min(cache, usage)))
    return MemoryFacts(total_bytes=total, available_bytes=available, limit_bytes=tightest if tightest < total else None)


def _table(path: str) -> dict[str, int]:
    """Return the numbers in a file with lines ``name number`` or ``name: number kB``; nothing if it cannot be read."""
    return {name: int(number) for name, number in _NAMED_NUMBER.findall(files.read(path) or "")}


def probe_shm(root: Path = Path("/")) -> ShmFacts | Unavailable:
    """Return the size and free space of /dev/shm, where NCCL and DataLoader workers share memory."""
    try:
        status = os.statvfs(f"{root}/dev/shm")
    except OSError as error:
        return Unavailable(f"/dev/shm: {error.strerror}")
    return ShmFacts(size_bytes=status.f_blocks * status.f_frsize, free_bytes=status.f_bavail * status.f_frsize)


def probe_limits(root: Path = Path("/")) -> LimitFacts:
    """Return soft and hard limits (None means unlimited); ranks inherit them through torchrun."""
    pids = [files.number(f"{folder}/pids.max") for folder in levels("pids", root).folders]  # None for "max"
    import resource  # not available on Windows

    files_soft, files_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LimitFacts(
        open_files_soft=_finite(files_soft),
        open_files_hard=_finite(files_hard),
        memlock_bytes=_finite(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        processes_soft=_finite(resource.getrlimit(resource.RLIMIT_NPROC)[0]),
        cgroup_pids_max=min((limit for limit in pids if limit is not None), default=None),
    )


def _finite(limit: int) -> int | None:
    return None if limit < 0 else limit  # RLIM_INFINITY is -1


_NVIDIA = "0x10de"
# PCI base class 03, display: VGA (00) as on workstation cards, 3D controller (02) as on data-centre cards.
_GPU_CLASSES = ("0x0300", "0x0302")
_MODULE_VERSION = re.compile(r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)?)\s")


def probe_nvidia(nvml_error: str | None = None, root: Path = Path("/")) -> NvidiaFacts:
    """Return the GPUs on the PCI bus, device nodes and driver version under ``root``, with the given ``nvml_error``."""
    version = _MODULE_VERSION.search((files.read(f"{root}/proc/driver/nvidia/version") or "") + "\n")
    return NvidiaFacts(
        pci_gpus=_pci_gpus(f"{root}/sys/bus/pci/devices"),
        kernel_module_version=version[1] if version else None,
        device_nodes=sum(re.fullmatch(r"nvidia[0-9]+", name) is not None for name in files.names(f"{root}/dev")),
        nvml_error=nvml_error,
    )


def _pci_gpus(devices: str) -> int:
    def word(name: str, file: str) -> str:
        return files.read(f"{devices}/{name}/{file}") or ""

    names = files.names(devices)
    return sum(word(name, "vendor") == _NVIDIA and word(name, "class")[:6] in _GPU_CLASSES for name in names)


@dataclass(frozen=True)
class AmdDevice:
    """One of AMD's GPUs as Linux shows it: ``index`` and ``uuid`` are HIP's, ``folder`` is its device in sysfs.

    ``kfd_id`` is the kernel compute driver's number for it.
    """

    index: int
    uuid: str
    kfd_id: int
    pci_bus_id: str
    chip: str
    folder: str


def amd_devices(root: str = "") -> tuple[AmdDevice, ...]:
    """Return AMD's GPUs that this machine or container may use, in HIP's order.

    That is the order of the topology in sysfs, without GPUs whose device file is absent.
    https://github.com/ROCm/ROCR-Runtime/blob/master/libhsakmt/src/topology.c
    """
    nodes = f"{root}/sys/class/kfd/kfd/topology/nodes"
    devices: list[AmdDevice] = []
    for name in sorted(filter(str.isdigit, files.names(nodes)), key=int):
        kfd_id = files.number(f"{nodes}/{name}/gpu_id")  # 0: a CPU; unreadable: a GPU of another container
        properties = dict(line.split()[:2] for line in (files.read(f"{nodes}/{name}/properties") or "").splitlines())
        render = f"renderD{properties.get('drm_render_minor', 0)}"
        if not kfd_id or not os.access(f"{root}/dev/dri/{render}", os.F_OK):
            continue
        place, version = int(properties.get("location_id", 0)), int(properties.get("gfx_target_version", 0))
        bus = f"{int(properties.get('domain', 0)):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
        chip = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"  # 90010 is gfx90a
        uuid = f"GPU-{int(properties.get('unique_id', 0)):016x}"
        devices.append(AmdDevice(len(devices), uuid, kfd_id, bus, chip, f"{root}/sys/class/drm/{render}/device"))
    return tuple(devices)


def amd_denied(devices: Iterable[AmdDevice], root: str = "") -> tuple[str, ...]:
    """Return the device files that HIP opens and this user may not.

    https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html
    """
    paths = ["/dev/kfd", *(f"/dev/dri/{device.folder.split('/')[-2]}" for device in devices)]
    existing = [path for path in paths if os.access(root + path, os.F_OK)]
    return tuple(path for path in existing if not os.access(root + path, os.R_OK | os.W_OK))


def amd_holders(devices: Sequence[AmdDevice], root: str = "") -> dict[int, dict[int, int | None]]:
    """Return pid → GPU index → bytes of its memory that the process holds; pids are those of the host.

    https://github.com/torvalds/linux/blob/master/drivers/gpu/drm/amd/amdkfd/kfd_process.c (kfd_procfs_show)
    """
    processes, bytes_by_pid = f"{root}/sys/class/kfd/kfd/proc", dict[int, dict[int, int | None]]()
    for pid in filter(str.isdigit, files.names(processes)):
        for device in devices:
            size_bytes = files.number(f"{processes}/{pid}/vram_{device.kfd_id}")
            if size_bytes:
                bytes_by_pid.setdefault(int(pid), {})[device.index] = size_bytes
    return bytes_by_pid
