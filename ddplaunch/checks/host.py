"""Checks of CPUs, memory and processes of one host against a launch; refuses to look at GPUs or the network."""

from __future__ import annotations

from collections.abc import Iterator

from ddplaunch.checks.check import Check, declare
from ddplaunch.checks.limits import CHECKS as LIMIT_CHECKS
from ddplaunch.checks.quantities import GIB, MIB, size, workers_per_process
from ddplaunch.checks.shared_memory import CHECKS as SHARED_MEMORY_CHECKS
from ddplaunch.finding import Finding, warning
from ddplaunch.launch.plan import Launch
from ddplaunch.probes.facts import CpuFacts, HostFacts, LimitFacts, MemoryFacts

# Host memory that one rank takes before it loads a model or data. CPU: 8 ranks with torch 2.13.0+cpu had 1226 MB of
# PSS together. CUDA: a context and the libraries it maps add most of a GiB; a rule of thumb, not a measurement.
FLOOR_BYTES = {"cpu": 160 * MIB, "cuda": GIB}
OVERCOMMIT = 2  # DataLoader workers wait for disks part of the time; more than two per CPU only take turns
RUNTIME_THREADS = 24  # per rank: autograd, watchdog, NCCL proxies, CUDA, pin-memory; a rule of thumb
WORKER_THREADS = 2  # a DataLoader worker computes in one thread and feeds its queue in another


def cpus_short(cpu: CpuFacts, launch: Launch) -> Iterator[Finding]:
    """There are fewer CPUs than the processes of this launch need.

    Each rank keeps one CPU busy with launching kernels; a rank that has to take turns stalls all others at the next
    collective. DataLoader workers come on top: more than two per CPU slow each other down, and torch warns of it.
    Remedy: fewer processes or fewer workers per process, or more CPUs for the job (`--cpus-per-task` in Slurm).
    """
    processes = launch.topology.nproc_per_node.value
    workers = workers_per_process(launch) or 0
    if cpu.usable < processes:
        if cpu.quota_cpus is not None and cpu.quota_cpus < processes:
            return  # container-cpu-quota says it, with the quota
        yield warning(
            "cpus-short",
            f"{processes} processes share {cpu.usable} usable CPUs of {cpu.logical}",
            why="a rank that waits for a CPU makes all others wait at the next collective",
            fix=f"run {cpu.usable} processes, or ask for more CPUs: `--cpus-per-task` in Slurm, `taskset -pc $$` shows "
            "the affinity",
        )
    elif processes * workers > OVERCOMMIT * cpu.usable:
        fewer = max(1, cpu.usable // processes)
        yield warning(
            "cpus-short",
            f"{processes} processes x {workers} DataLoader workers = {processes * workers} share {cpu.usable} CPUs",
            why="workers that take turns on the CPUs make data loading slower, not faster",
            fix=f"give each process {fewer} {'worker' if fewer == 1 else 'workers'} "
            f"({cpu.usable} CPUs / {processes} processes)",
        )


def container_cpu_quota(cpu: CpuFacts, launch: Launch) -> Iterator[Finding]:
    """The container's CPU quota is smaller than the number of processes.

    A quota does not hide CPUs: Python, OpenMP and DataLoader still see all of them, start as many threads, and the
    kernel then stops the whole container for the rest of each 100 ms period. ddplaunch sizes OMP_NUM_THREADS by the
    quota; the ranks themselves still share it. Remedy: `docker run --cpus`, or `resources.limits.cpu` in Kubernetes.
    """
    processes = launch.topology.nproc_per_node.value
    if cpu.quota_cpus is None or cpu.quota_cpus >= processes:
        return
    yield warning(
        "container-cpu-quota",
        f"the CPU quota is {cpu.quota_cpus:g} CPUs for {processes} processes, although {cpu.affinity} are visible",
        why="the kernel stops all processes for the rest of each period once the quota is used up",
        fix=f"raise it to {processes} or more: `docker run --cpus={processes}`, `resources.limits.cpu` in Kubernetes",
    )


def memory_short(memory: MemoryFacts, launch: Launch) -> Iterator[Finding]:
    """Less memory is available than the processes need before they have loaded anything.

    A rank that imports torch holds about 160 MiB on the CPU and about 1 GiB with a CUDA context. When a cgroup's limit
    is passed, the kernel kills a rank with SIGKILL and writes nothing into its log: torchrun reports exit code -9.
    Remedy: fewer processes, or more memory for the job (`--mem` in Slurm, `docker run --memory`).
    """
    processes = launch.topology.nproc_per_node.value
    floor = FLOOR_BYTES[launch.device.value]
    if memory.available_bytes >= processes * floor:
        return
    limit = f" (the cgroup's limit is {size(memory.limit_bytes)})" if memory.limit_bytes else ""
    yield warning(
        "memory-short",
        f"{size(memory.available_bytes)} of memory available for {processes} processes{limit}",
        why=f"each holds about {size(floor)} before it loads a model; the kernel then kills a rank without a word",
        fix="run fewer processes, end what else uses the memory (`ps aux --sort=-rss | head`), or ask for more: "
        "`--mem` in Slurm, `docker run --memory`",
    )


def processes_low(
    limits: LimitFacts, cpu: CpuFacts, launch: Launch, host: HostFacts | None = None
) -> Iterator[Finding]:
    """The limit on processes and threads is lower than what the launch starts.

    `ulimit -u` counts every thread of the user on the host, a cgroup's pids.max every thread in the container. At the
    limit, fork and thread creation fail with "Resource temporarily unavailable" in some rank. `ulimit -u` does not
    bind root. Remedy: raise the limit; `docker run --pids-limit=-1`.
    """
    processes = launch.topology.nproc_per_node.value
    workers = workers_per_process(launch) or 0
    threads = max(1, cpu.usable // processes)
    need = processes * (RUNTIME_THREADS + threads + WORKER_THREADS * workers)
    bounds = [(limits.cgroup_pids_max, "the cgroup's pids.max", "`docker run --pids-limit=-1`")]
    if host is None or host.user != "root":
        bounds.append((limits.processes_soft, "`ulimit -u`", "`ulimit -u unlimited`"))
    for bound, name, remedy in bounds:
        if bound is not None and bound < need:
            yield warning(
                "processes-low",
                f"{name} is {bound}, and {processes} processes with {workers} workers each start about {need} threads",
                why="fork and thread creation fail with `Resource temporarily unavailable` once it is reached",
                fix=f"{remedy} before the launch, or fewer processes or workers",
            )
            return


CHECKS: tuple[Check, ...] = (
    *SHARED_MEMORY_CHECKS,
    *LIMIT_CHECKS,
    *(declare("host", check) for check in (cpus_short, container_cpu_quota, memory_short, processes_low)),
)
