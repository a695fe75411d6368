"""Checks of one host: the Python on PATH, /dev/shm, resource limits, CPUs and memory."""

from __future__ import annotations

from ddplaunch.checks.check import Findings, checks_in
from ddplaunch.checks.known_variables import user_variables
from ddplaunch.checks.variables import active_ports
from ddplaunch.machine.facts import CpuFacts, LimitFacts, MemoryFacts, NetworkFacts, ShmFacts
from ddplaunch.planning.launch import Launch
from ddplaunch.planning.ranks.placement import said_workers
from ddplaunch.values.finding import error, warning
from ddplaunch.values.words import count, numbers_of, size_text

MIB = 1024**2
GIB = 1024**3


def workers_per_process(launch: Launch | None) -> int | None:
    """Return the DataLoader workers per rank from the script's arguments; None if they do not say."""
    return None if launch is None else said_workers(launch.target)


_DOCKER_SHM_BYTES = 64 * MIB  # docs.docker.com/reference/cli/docker/container/run: --shm-size
# NCCL's troubleshooting page asks for `--shm-size=1g --ulimit memlock=-1` in containers.
_SHM_ENOUGH_BYTES = GIB
_SHM_NEARLY_FULL_BYTES = 256 * MIB


def shm_too_small(shm: ShmFacts, environment: dict[str, str], launch: Launch | None = None) -> Findings:
    """/dev/shm is too small for NCCL or DataLoader workers.

    Docker's default is 64 MiB. NCCL ranks on one host exchange data through it if GPUs cannot reach each other
    directly, and DataLoader workers pass every batch through it; when it is full, they die with SIGBUS or "No space
    left on device". At 64 MiB or less, this is an error if the launch is known to need it. Remedy: `--ipc=host` or
    `--shm-size=16g`.
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    if shm.size_bytes >= _SHM_ENOUGH_BYTES:
        return
    needed_by = _needed_by(environment, launch)
    tiny = shm.size_bytes <= _DOCKER_SHM_BYTES
    if launch and not needed_by and not (tiny and workers_per_process(launch) is None):
        return
    certain = needed_by is not None and tiny
    yield (error if certain else warning)(
        "shm-too-small",
        f"/dev/shm is {size_text(shm.size_bytes)}",
        why=f"{needed_by or 'NCCL and DataLoader workers'} allocate from it and die with SIGBUS or "
        "`No space left on device` when it is full",
        fix="restart the container with `--ipc=host` or `--shm-size=16g`; on a host, "
        "`sudo mount -o remount,size=16g /dev/shm`",
    )


def _needed_by(environment: dict[str, str], launch: Launch | None) -> str | None:
    """Return which processes of this launch will use /dev/shm; None if none are known to."""
    if launch is None:
        return None
    users = []
    disabled = user_variables(environment, launch).get("NCCL_SHM_DISABLE")
    processes = launch.topology.nproc_per_node.value
    if launch.device.value == "cuda" and processes > 1 and not (disabled and disabled.on):
        users.append(f"{processes} NCCL ranks")
    if workers := workers_per_process(launch):
        users.append(f"{processes * workers} DataLoader workers")
    return " and ".join(users) or None


def shm_nearly_full(shm: ShmFacts) -> Findings:
    """/dev/shm is large enough but nearly full.

    Files of killed processes stay there until they are removed or the machine restarts. NCCL and DataLoader workers die
    with SIGBUS or "No space left on device" when it is full. Remedy: remove files there that no process has open.
    """
    if shm.size_bytes >= _SHM_ENOUGH_BYTES and shm.free_bytes < _SHM_NEARLY_FULL_BYTES:
        yield warning(
            "shm-nearly-full",
            f"/dev/shm has {size_text(shm.free_bytes)} of {size_text(shm.size_bytes)} free",
            why="NCCL and DataLoader workers allocate from it and die with SIGBUS when it is full; killed processes "
            "leave their files behind",
            fix="`ls -lhS /dev/shm | head -20` lists them; remove those that no process uses (`fuser -v FILE`)",
        )


# Open files of one rank, a rule of thumb: the interpreter and torch's libraries, the tensors in flight of each worker
# (torch.multiprocessing's file_descriptor strategy keeps one file per tensor), and sockets to the other ranks.
_BASE_FILES = 256
_FILES_PER_WORKER = 32
_FILES_PER_RANK = 4
_USUAL_OPEN_FILES = 1024  # the default of Linux
_FILES = 65535  # the limit that fixes ask for


def open_files_low(limits: LimitFacts, launch: Launch | None = None) -> Findings:
    """The limit on open files is lower than a rank needs.

    Each DataLoader worker shares its tensors by file descriptors, and each rank holds sockets to the others; at the
    limit they fail with "Too many open files". The estimate for a rank is 256 + 32 x workers + 4 x world size.
    Remedy: `ulimit -n 65535` in the shell that launches.
    """
    soft = limits.open_files_soft
    if soft is None:
        return
    workers = workers_per_process(launch) or 0
    need, who = _USUAL_OPEN_FILES, "one rank with a few DataLoader workers"
    if launch:
        world = launch.topology.world_size
        need = _BASE_FILES + _FILES_PER_WORKER * workers + _FILES_PER_RANK * world
        who = f"one of {world} ranks with {workers} DataLoader workers"
    if soft >= need:
        return
    hard = limits.open_files_hard
    if hard is None or hard >= need:
        fix = f"`ulimit -n {_FILES if hard is None else min(hard, _FILES)}` in the shell that launches"
    else:
        fix = f"the hard limit is {hard}: `docker run --ulimit nofile={_FILES}`, or /etc/security/limits.conf on a host"
    yield warning(
        "open-files-low",
        f"`ulimit -n` is {soft}, and {who} opens about {need} files",
        why="at the limit, DataLoader workers and sockets fail with `Too many open files`",
        fix=fix,
    )


def memlock_low(limits: LimitFacts, network: NetworkFacts, launch: Launch | None = None) -> Findings:
    """The limit on locked memory is low on a host with InfiniBand.

    RDMA needs its buffers locked in memory. At the limit, registering them fails with "Cannot allocate memory" in
    `ibv_reg_mr` or `ibv_create_cq`. NCCL's documentation asks for no limit.
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    Remedy: `docker run --ulimit memlock=-1`, or /etc/security/limits.conf.
    """
    active = active_ports(network)
    if limits.memlock_bytes is None or not active:
        return
    if launch and (launch.device.value == "cpu" or launch.topology.nnodes.value == 1):
        return
    yield warning(
        "memlock-low",
        f"`ulimit -l` is {size_text(limits.memlock_bytes)}, and {active}",
        why="NCCL locks its RDMA buffers in memory and fails with `Cannot allocate memory` at the limit",
        fix="`docker run --ulimit memlock=-1`; on a host, `* - memlock unlimited` in /etc/security/limits.conf, "
        "and `LimitMEMLOCK=infinity` in slurmd's unit",
    )


# Host memory of one rank before it loads a model or data. CPU: 8 ranks with torch 2.13.0+cpu had 1226 MB of PSS
# together. CUDA: a context and the libraries that it maps add most of a GiB; a rule of thumb, not a measurement.
_RANK_BYTES = {"cpu": 160 * MIB, "cuda": GIB}
_WORKERS_PER_CPU = 2  # DataLoader workers wait for disks part of the time; more of them only slow each other down


def cpus_short(cpu: CpuFacts, launch: Launch) -> Findings:
    """There are fewer CPUs than the processes of this launch need.

    Each rank keeps one CPU busy launching kernels; a rank that waits for a CPU stalls all others at the next
    collective. DataLoader workers need CPUs too: more than two per CPU slow each other down, and torch warns about it.
    Remedy: fewer processes or fewer workers per process, or more CPUs for the job (`--cpus-per-task` in Slurm).
    """
    processes = launch.topology.nproc_per_node.value
    workers = workers_per_process(launch) or 0
    room = _room(cpu, launch)
    if cpu.usable < processes:
        if cpu.quota_cpus is not None and cpu.quota_cpus < processes:
            return  # container-cpu-quota reports it
        shown = count(cpu.usable, "CPU") if cpu.usable == cpu.logical else f"{cpu.usable} of {cpu.logical} CPUs"
        yield warning(
            "cpus-short",
            f"{count(processes, 'process')} on {shown}",
            why="a rank that waits for a CPU makes all others wait at the next collective",
            fix=f"run {count(cpu.usable, 'process')}, or ask for more CPUs: `--cpus-per-task` in Slurm; "
            "`taskset -pc $$` shows the affinity",
        )
    elif room < cpu.usable // processes and workers > _WORKERS_PER_CPU * room:
        yield warning(
            "cpus-short",
            f"{count(workers, 'DataLoader worker')} of a rank on the {count(room, 'CPU')} that it is bound to",
            why="workers that wait for a CPU make data loading slower, not faster",
            fix=f"give each process {count(room, 'worker')}, or let the kernel place them: `--placement none`",
            where=str(launch.placement.source),
        )
    elif processes * workers > _WORKERS_PER_CPU * cpu.usable:
        fewer = max(1, cpu.usable // processes)
        yield warning(
            "cpus-short",
            f"{processes * workers} DataLoader workers ({processes} × {workers}) on {count(cpu.usable, 'CPU')}",
            why="workers that wait for a CPU make data loading slower, not faster",
            fix=f"give each process {count(fewer, 'worker')} "
            f"({count(cpu.usable, 'CPU')} / {count(processes, 'process')})",
        )


def _room(cpu: CpuFacts, launch: Launch) -> int:
    """Return the fewest CPUs that a rank is bound to, divided by the ranks that share them; all CPUs if unbound."""
    bound = launch.placement.cpus
    return min((len(numbers_of(cpus)) // bound.count(cpus) for cpus in bound), default=cpu.usable)


def container_cpu_quota(cpu: CpuFacts, launch: Launch) -> Findings:
    """The container's CPU quota is smaller than the number of processes.

    A quota does not hide CPUs: Python, OpenMP and DataLoader still see all of them and start as many threads, and once
    the quota is used up, the kernel stops the container for the rest of each 100 ms period. ddplaunch computes
    OMP_NUM_THREADS from the quota, but the ranks still share it. Remedy: `docker run --cpus`, or
    `resources.limits.cpu` in Kubernetes.
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


def memory_short(memory: MemoryFacts, launch: Launch) -> Findings:
    """The processes need more memory than is available, even before they load a model.

    A rank that imports torch holds about 160 MiB on the CPU and about 1 GiB with a CUDA context. At the limit of a
    cgroup the kernel kills a rank with SIGKILL and writes nothing into its log: torchrun reports exit code -9.
    Remedy: fewer processes, or more memory for the job (`--mem` in Slurm, `docker run --memory`).
    """
    processes = launch.topology.nproc_per_node.value
    floor = _RANK_BYTES[launch.device.value]
    if memory.available_bytes >= processes * floor:
        return
    limit = f" (the cgroup's limit is {size_text(memory.limit_bytes)})" if memory.limit_bytes else ""
    hopeless = 4 * memory.available_bytes < processes * floor  # forked ranks share pages, but not three quarters
    yield (error if hopeless else warning)(
        "memory-short",
        f"{size_text(memory.available_bytes)} of memory available for {processes} processes{limit}",
        why=f"each holds about {size_text(floor)} before it loads a model; the kernel kills ranks when memory runs out",
        fix="run fewer processes, end others that use memory (`ps aux --sort=-rss | head`), or ask for more: "
        "`--mem` in Slurm, `docker run --memory`",
    )


CHECKS = checks_in(globals(), "host")
