"""The host family: shared memory, limits, CPUs, memory, processes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ddplaunch.checks.host import CHECKS, workers_per_process
from ddplaunch.machine.facts import CpuFacts, LimitFacts, MemoryFacts, ShmFacts
from ddplaunch.planning.launch import Launch, Placement, Target
from ddplaunch.values.finding import Severity
from ddplaunch.values.resolved import Resolved
from tests.checks.cases import NO_LAUNCH, NO_SCRIPT, found, silent_when_healthy
from tests.checks.healthy import FLAG, GIB, healthy_facts, healthy_launch, healthy_network, topology

MIB = 1024**2
DOCKER = ShmFacts(64 * MIB, 64 * MIB)
CPU = Resolved("cpu", FLAG)


def launch(nproc: int = 8, workers: int | None = None, **replace: Any) -> Launch:
    args = () if workers is None else ("--num-workers", str(workers))
    return healthy_launch(nproc, **{"target": Target("script", "train.py", args), **replace})


def limits(**replace: Any) -> LimitFacts:
    return LimitFacts(
        **{"open_files_soft": 65536, "open_files_hard": 65536, "memlock_bytes": None, "processes_soft": None, **replace}
    )


def test_healthy() -> None:
    silent_when_healthy(CHECKS)


@pytest.mark.parametrize(
    ("shm", "chosen", "severity"),
    [
        (DOCKER, launch(2), Severity.ERROR),
        (DOCKER, launch(1, workers=4), Severity.ERROR),
        (DOCKER, launch(2, workers=2, device=CPU), Severity.ERROR),
        (DOCKER, launch(1), Severity.WARNING),
        (DOCKER, launch(2, device=CPU), Severity.WARNING),
        (ShmFacts(512 * MIB, 512 * MIB), launch(2), Severity.WARNING),
        (DOCKER, launch(2, workers=0, device=CPU), None),
        (ShmFacts(512 * MIB, 512 * MIB), launch(2, device=CPU), None),
        (ShmFacts(GIB, GIB), launch(2, workers=8), None),
    ],
)
def test_shm_too_small(shm: ShmFacts, chosen: Launch, severity: Severity | None) -> None:
    finding = found(CHECKS, "shm-too-small", healthy_facts(shm=shm), chosen)
    assert (finding.severity if finding else None) is severity


def test_shm_too_small_in_doctor_and_without_nccl() -> None:
    finding = found(CHECKS, "shm-too-small", healthy_facts(shm=DOCKER), NO_LAUNCH, NO_SCRIPT)
    assert finding and finding.severity is Severity.WARNING
    assert finding.what == "/dev/shm is 64 MiB" and "--shm-size=16g" in finding.fix
    off = healthy_facts(shm=DOCKER, environment={"NCCL_SHM_DISABLE": "1"})
    unused = found(CHECKS, "shm-too-small", off, launch(2))
    assert unused and unused.severity is Severity.WARNING


def test_shm_nearly_full() -> None:
    finding = found(CHECKS, "shm-nearly-full", healthy_facts(shm=ShmFacts(16 * GIB, 20 * MIB)))
    assert finding and finding.what == "/dev/shm has 20 MiB of 16 GiB free"
    for shm in (DOCKER, ShmFacts(16 * GIB, GIB)):
        assert found(CHECKS, "shm-nearly-full", healthy_facts(shm=shm)) is None


@pytest.mark.parametrize(
    ("soft", "hard", "workers", "fix"),
    [
        (256, 1_048_576, 4, "`ulimit -n 65535`"),
        (1024, 4096, 64, "`ulimit -n 4096`"),
        (1024, 1024, 64, "docker run --ulimit nofile=65535"),
        (1024, 1_048_576, 8, None),
        (None, None, 64, None),
    ],
)
def test_open_files_low(soft: int | None, hard: int | None, workers: int, fix: str | None) -> None:
    facts = healthy_facts(limits=limits(open_files_soft=soft, open_files_hard=hard))
    finding = found(CHECKS, "open-files-low", facts, launch(8, workers))
    assert (finding is None) if fix is None else (finding is not None and fix in finding.fix)


def test_open_files_low_in_doctor() -> None:
    low, usual = healthy_facts(limits=limits(open_files_soft=256)), healthy_facts(limits=limits(open_files_soft=1024))
    assert found(CHECKS, "open-files-low", low, NO_LAUNCH, NO_SCRIPT)
    assert found(CHECKS, "open-files-low", usual, NO_LAUNCH, NO_SCRIPT) is None


def test_memlock_low() -> None:
    facts = healthy_facts(limits=limits(memlock_bytes=8 * MIB))
    several = healthy_launch(topology=topology(8, 2))
    for chosen, script in ((several, None), (NO_LAUNCH, NO_SCRIPT)):
        finding = found(CHECKS, "memlock-low", facts, chosen, script)
        assert finding and finding.what == "`ulimit -l` is 8 MiB, and mlx5_0:1 is active"
    assert found(CHECKS, "memlock-low", facts, healthy_launch()) is None
    without = healthy_facts(limits=limits(memlock_bytes=8 * MIB), network=healthy_network(infiniband=()))
    assert found(CHECKS, "memlock-low", without, several) is None


@pytest.mark.parametrize(
    ("cpu", "chosen", "words"),
    [
        (CpuFacts(64, 4, None, 4), launch(8), "8 processes on 4 of 64 CPUs"),
        (CpuFacts(2, 2, None, 2), launch(9), "9 processes on 2 CPUs"),
        (CpuFacts(8, 8, None, 8), launch(4, workers=8), "32 DataLoader workers (4 × 8) on 8 CPUs"),
        (CpuFacts(8, 8, None, 8), launch(8), None),
        (CpuFacts(8, 8, None, 8), launch(4, workers=4), None),
        (CpuFacts(64, 64, 4.0, 4), launch(8), None),
    ],
)
def test_cpus_short(cpu: CpuFacts, chosen: Launch, words: str | None) -> None:
    finding = found(CHECKS, "cpus-short", healthy_facts(cpu=cpu), chosen)
    assert (finding.what if finding else None) == words


def test_workers_of_bound_ranks_count_on_their_own_cpus() -> None:
    placement = Placement(("0-1", "0-1", "2-5", "6-9"))
    busy = dataclasses.replace(launch(4, workers=3), placement=placement)
    finding = found(CHECKS, "cpus-short", healthy_facts(cpu=CpuFacts(64, 64, None, 64)), busy)
    assert finding and finding.what == "3 DataLoader workers of a rank on the 1 CPU that it is bound to"
    easy = dataclasses.replace(launch(4, workers=2), placement=placement)
    assert found(CHECKS, "cpus-short", healthy_facts(cpu=CpuFacts(64, 64, None, 64)), easy) is None


def test_container_cpu_quota() -> None:
    finding = found(CHECKS, "container-cpu-quota", healthy_facts(cpu=CpuFacts(64, 64, 2.5, 2)))
    assert finding and finding.what == "the CPU quota is 2.5 CPUs for 8 processes, although 64 are visible"
    for cpu in (CpuFacts(64, 64, 8.0, 8), CpuFacts(4, 4, None, 4)):
        assert found(CHECKS, "container-cpu-quota", healthy_facts(cpu=cpu)) is None


@pytest.mark.parametrize(
    ("available", "device", "fires"), [(4 * GIB, None, True), (8 * GIB, None, False), (4 * GIB, CPU, False)]
)
def test_memory_short(available: int, device: Any, fires: bool) -> None:
    facts = healthy_facts(memory=MemoryFacts(64 * GIB, available, 8 * GIB))
    chosen = healthy_launch(8, device=device) if device else healthy_launch(8)
    finding = found(CHECKS, "memory-short", facts, chosen)
    assert (finding is not None) is fires
    if finding:
        assert finding.what == "4 GiB of memory available for 8 processes (the cgroup's limit is 8 GiB)"


@pytest.mark.parametrize(("ranks", "severity"), [(9, "warning"), (31, "warning"), (33, "error")])
def test_a_launch_without_memory_for_a_quarter_of_its_ranks_is_refused(ranks: int, severity: str) -> None:
    facts = healthy_facts(memory=MemoryFacts(64 * GIB, 8 * GIB, None))
    finding = found(CHECKS, "memory-short", facts, healthy_launch(ranks))
    assert finding is not None and finding.severity.value == severity


@pytest.mark.parametrize(
    ("args", "workers"),
    [
        (("--num-workers", "4"), 4),
        (("--dataloader_num_workers=2",), 2),
        (("--workers", "many"), None),
        (("--epochs", "3"), None),
    ],
)
def test_workers_come_from_the_scripts_arguments(args: tuple[str, ...], workers: int | None) -> None:
    assert workers_per_process(healthy_launch(target=Target("script", "train.py", args))) == workers
