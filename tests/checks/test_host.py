"""The host family: shared memory, limits, CPUs, memory, processes."""

from __future__ import annotations

import dataclasses
from typing import Any

from ddplaunch.machine.facts import CpuFacts, LimitFacts, MemoryFacts, ShmFacts
from ddplaunch.planning.launch import Launch, Placement, Target
from ddplaunch.values.resolved import Resolved
from tests.checks.cases import NO_LAUNCH, fires, judged, silent
from tests.checks.healthy import FLAG, GIB, healthy_launch, healthy_network, topology

MIB = 1024**2
DOCKER, MORE = ShmFacts(64 * MIB, 64 * MIB), ShmFacts(65 * MIB, 65 * MIB)
CPU = Resolved("cpu", FLAG)
EIGHT, MANY = CpuFacts(8, 8, None, 8), CpuFacts(64, 64, None, 64)
OVER_NODES = healthy_launch(topology=topology(8, 2))


def launch(nproc: int = 8, workers: int | None = None, **replace: Any) -> Launch:
    args = () if workers is None else (f"--dataloader_num_workers={workers}",)
    return healthy_launch(nproc, **{"target": Target("script", "train.py", args), **replace})


def bound(workers: int) -> Launch:
    return dataclasses.replace(launch(4, workers), placement=Placement(("0-1", "0-1", "2-5", "6-9")))


def limits(soft: int | None = 65536, hard: int | None = 65536, memlock: int | None = None) -> dict[str, Any]:
    return {"limits": LimitFacts(soft, hard, memlock, None)}


def memory(available: int, limit: int | None = None) -> dict[str, Any]:
    return {"memory": MemoryFacts(64 * GIB, available, limit)}


CASES = (
    fires("shm-too-small", "/dev/shm is 64 MiB … 2 NCCL ranks allocate … --shm-size=16g", shm=DOCKER, launch=launch(2)),
    fires("shm-too-small", "4 DataLoader workers all", shm=DOCKER, launch=launch(2, workers=2, device=CPU)),
    fires("shm-too-small", "64 MiB", "warning", shm=DOCKER, launch=launch(1)),
    fires("shm-too-small", "65 MiB", "warning", shm=MORE, launch=launch(2)),
    fires("shm-too-small", "64 MiB", "warning", shm=DOCKER, launch=NO_LAUNCH),
    fires("shm-too-small", "64 MiB", "warning", shm=DOCKER, launch=2, environment={"NCCL_SHM_DISABLE": "1"}),
    silent("shm-too-small", shm=DOCKER, launch=launch(2, workers=0, device=CPU)),
    silent("shm-too-small", shm=MORE, launch=launch(2, device=CPU)),
    silent("shm-too-small", shm=ShmFacts(GIB, GIB), launch=launch(2, workers=8)),
    fires("shm-nearly-full", "/dev/shm has 20 MiB of 16 GiB free", "warning", shm=ShmFacts(16 * GIB, 20 * MIB)),
    silent("shm-nearly-full", shm=DOCKER),
    fires(
        "open-files-low", "about 416 files … `ulimit -n 65535`", "warning", launch=launch(8, 4), **limits(415, 1 << 20)
    ),
    fires("open-files-low", "`ulimit -n 416`", "warning", launch=launch(8, 4), **limits(256, 416)),
    silent("open-files-low", launch=launch(8, 4), **limits(416, 416)),
    fires("open-files-low", "`ulimit -n 4096`", "warning", launch=launch(8, 64), **limits(1024, 4096)),
    fires("open-files-low", "docker run --ulimit nofile=65535", "warning", launch=launch(8, 64), **limits(1024, 1024)),
    fires("open-files-low", "256, … `ulimit -n 65535`", "warning", launch=NO_LAUNCH, **limits(256, None)),
    silent("open-files-low", launch=launch(8, 64), **limits(None, None)),
    fires("memlock-low", "8 MiB, and mlx5_0:1 is", "warning", launch=OVER_NODES, **limits(memlock=8 * MIB)),
    fires("memlock-low", "8 MiB", "warning", launch=NO_LAUNCH, **limits(memlock=8 * MIB)),
    silent("memlock-low", "one node", **limits(memlock=8 * MIB)),
    silent("memlock-low", launch=OVER_NODES, network=healthy_network(infiniband=()), **limits(memlock=8 * MIB)),
    fires("cpus-short", "8 processes on 4 of 64 CPUs", "warning", cpu=CpuFacts(64, 4, 8.0, 4)),
    fires("cpus-short", "9 processes on 2 CPUs", "warning", cpu=CpuFacts(2, 2, None, 2), launch=9),
    fires("cpus-short", "32 DataLoader workers (4 × 8) on 8 CPUs", "warning", cpu=EIGHT, launch=launch(4, 8)),
    fires("cpus-short", "3 DataLoader workers of a rank on the 1 CPU that", "warning", cpu=MANY, launch=bound(3)),
    silent("cpus-short", cpu=MANY, launch=bound(2)),
    silent("cpus-short", cpu=MANY, launch=dataclasses.replace(launch(2), placement=Placement(("0", "0")))),
    silent("cpus-short", cpu=EIGHT, launch=launch(4, workers=4)),
    silent("cpus-short", "the quota says it", cpu=CpuFacts(64, 64, 4.0, 4)),
    fires("container-cpu-quota", "2.5 CPUs for 8 processes, although 64", "warning", cpu=CpuFacts(64, 64, 2.5, 2)),
    silent("container-cpu-quota", cpu=CpuFacts(64, 64, 8.0, 8)),
    silent("container-cpu-quota", cpu=CpuFacts(4, 4, None, 4)),
    fires("memory-short", "4 GiB of memory available for 8 … limit is 8 GiB", "warning", **memory(4 * GIB, 8 * GIB)),
    silent("memory-short", **memory(8 * GIB, 8 * GIB)),
    silent("memory-short", launch=launch(device=CPU), **memory(4 * GIB)),
    fires("memory-short", "31 processes", "warning", launch=31, **memory(8 * GIB)),
    fires("memory-short", "33 processes", launch=33, **memory(8 * GIB)),
)
test_fires_with_words_and_stays_silent_without = judged(*CASES)
