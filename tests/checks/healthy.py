"""A healthy node of eight H100s, a launch that fills it, and its script."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from ddplaunch.machine.facts import (
    CpuFacts,
    CpuLayout,
    Facts,
    Gpu,
    HostFacts,
    InfinibandPort,
    Interface,
    LimitFacts,
    MemoryFacts,
    NetworkFacts,
    NumaNode,
    NvidiaFacts,
    NvmlFacts,
    PathFact,
    PythonFacts,
    ShmFacts,
    TorchFacts,
    TorchImport,
)
from ddplaunch.planning.launch import Launch, Target, Topology
from ddplaunch.planning.options import Options
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, ScriptReport
from ddplaunch.values.resolved import Resolved, Source

GIB = 1024**3
FLAG = Source("flag")
PYTHON = "/opt/env/bin/python"


def healthy_gpu(index: int = 0, **replace: Any) -> Gpu:
    """Return one idle H100; ``replace`` overrides its fields."""
    gpu = Gpu(
        index=index,
        uuid=f"GPU-{index:08x}-1111-2222-3333-444444444444",
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"00000000:{0x10 + index:02X}:00.0",
        compute_capability=(9, 0),
        memory_total_bytes=80 * GIB,
        memory_used_bytes=GIB // 2,
        utilization_percent=0,
        processes=(),
        ecc_uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        recovery_action="none",
        throttle_reasons=(),
        temperature_c=35,
        compute_mode="default",
        mig_enabled=False,
    )
    return dataclasses.replace(gpu, **replace)


def healthy_nvml(*gpus: Gpu, **replace: Any) -> NvmlFacts:
    """Return NVML's view of ``gpus``, or of eight healthy ones when none is given."""
    nvml = NvmlFacts("570.124.06", (12, 8), gpus or tuple(healthy_gpu(index) for index in range(8)))
    return dataclasses.replace(nvml, **replace)


def with_gpu(index: int, **replace: Any) -> NvmlFacts:
    """Return eight GPUs of which number ``index`` differs by ``replace``."""
    return healthy_nvml(*(healthy_gpu(each, **(replace if each == index else {})) for each in range(8)))


def healthy_torch(**replace: Any) -> TorchFacts:
    """Return an installed CUDA 12.8 build of torch 2.8."""
    flags = frozenset({"--nnodes", "--nproc-per-node", "--logs-specs", "--rdzv-conf", "--local-addr", "--standalone"})
    torch = TorchFacts("2.8.0+cu128", "/opt/env/lib/python3.11/site-packages/torch", "12.8", None, flags, "2.27.3")
    return dataclasses.replace(torch, **replace)


def healthy_torch_import(**replace: Any) -> TorchImport:
    """Return what importing that torch tells on this node."""
    imported = TorchImport(
        version="2.8.0+cu128",
        nccl_available=True,
        cuda_available=True,
        cuda_error=None,
        device_count=8,
        arch_list=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"),
    )
    return dataclasses.replace(imported, **replace)


def healthy_network(**replace: Any) -> NetworkFacts:
    """Return a loopback, one routable interface and one active InfiniBand port; no master address was named."""
    interfaces = (
        Interface("lo", True, True, ("127.0.0.1", "::1")),
        Interface("eth0", True, False, ("10.0.0.5",), 25_000),
    )
    network = NetworkFacts(interfaces, (InfinibandPort("mlx5_0", 1, "ACTIVE", "InfiniBand"),))
    return dataclasses.replace(network, **replace)


def healthy_facts(**replace: Any) -> Facts:
    """Return the healthy node; ``replace`` overrides fields of ``Facts``."""
    return dataclasses.replace(_node(), **replace)


@cache
def _node() -> Facts:
    """Hundreds of cases start from it. Two sockets of 32 cores with hyper-threads have four of the GPUs each."""
    nodes = tuple(
        NumaNode(node, node, tuple((core, core + 64) for core in range(32 * node, 32 * node + 32))) for node in range(2)
    )
    return Facts(
        host=HostFacts("gpu-node-1", ("10.0.0.5",), "6.8.0-45-generic", None, "ada"),
        python=PythonFacts(PYTHON, "3.11.9"),
        torch=healthy_torch(),
        torch_import=healthy_torch_import(),
        nvidia=NvidiaFacts(pci_gpus=8, kernel_module_version="570.124.06", device_nodes=8),
        nvml=healthy_nvml(),
        cpu=CpuFacts(logical=128, affinity=128, quota_cpus=None, usable=128),
        cpu_layout=CpuLayout(nodes, 128, 128, {healthy_gpu(index).pci_bus_id: index // 4 for index in range(8)}),
        memory=MemoryFacts(total_bytes=1024 * GIB, available_bytes=900 * GIB, limit_bytes=None),
        shm=ShmFacts(size_bytes=512 * GIB, free_bytes=510 * GIB),
        limits=LimitFacts(open_files_soft=1 << 20, open_files_hard=1 << 20, memlock_bytes=None, processes_soft=None),
        network=healthy_network(),
        data_paths=(PathFact("/data/text", "directory", True, True, False, 800 * GIB, 1000 * GIB, 10**7, "ext4"),),
        output_paths=(PathFact("/data/out", "directory", True, True, True, 800 * GIB, 1000 * GIB, 10**7, "ext4"),),
        environment={"PATH": "/opt/env/bin:/usr/bin:/bin", "HOME": "/home/ada", "LANG": "C.UTF-8"},
    )


def topology(nproc: int, nnodes: int = 1, **replace: Any) -> Topology:
    """Return ``nnodes`` nodes of ``nproc`` ranks each, as said on the command line."""
    shape = Topology(Resolved(nnodes, Source("default")), Resolved(nproc, Source("flag", "NPROC")), nnodes)
    return dataclasses.replace(shape, **replace)


def healthy_launch(nproc: int = 8, **replace: Any) -> Launch:
    """Return a launch of ``nproc`` ranks on CUDA that the healthy node can run; ``replace`` overrides its fields."""
    argv = ("-m", "torch.distributed.run", "--nproc-per-node", str(nproc), "train.py", "--batch-size", "32")
    launch = Launch(
        run_id="20260101-120000-abcd",
        target=Target("script", "train.py", ("--batch-size", "32")),
        topology=topology(nproc),
        device=Resolved("cuda", Source("detected", "8 GPUs")),
        gpus=None,
        numbers=Numbers(world_size=Resolved(nproc, Source("computed"))),
        passed=(),
        environment=(),
        argv=(PYTHON, *argv),
        options=Options(nproc=Resolved(nproc, FLAG)),
        receives=("batch_size", "accum", "lr", "warmup_steps"),
    )
    return dataclasses.replace(launch, **replace)


def healthy_script(**replace: Any) -> ScriptReport:
    """Return what a plain DDP script's source says: one batch-size option, ``init_process_group``."""
    batch_size = DeclaredOption(("--batch-size",), DeclaredAt("train.py", 31), meaning="batch_size")
    report = ScriptReport("train.py", options=(batch_size,), reads_env=("LOCAL_RANK",), code=(("train.py", "0123"),))
    return dataclasses.replace(report, **replace)
