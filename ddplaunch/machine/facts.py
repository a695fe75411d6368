"""One machine as frozen values: everything that checks see of it."""

from __future__ import annotations

from dataclasses import field

from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable

NOT_ASKED = Unavailable("not asked")
NO_MASTER = Unavailable("no master address was named")
NO_PORT = Unavailable("no port was named")


@dataclass(frozen=True)
class HostFacts:
    """``name_addresses`` is what the host's own name resolves to (or why it does not).

    ``machine`` is "x86_64", "aarch64" …
    """

    name: str
    name_addresses: tuple[str, ...] | Unavailable
    kernel: str
    container: str | None  # "docker", "podman", "kubernetes", "lxc", "slurm-pyxis" … or None outside of one
    user: str
    machine: str = ""


@dataclass(frozen=True)
class PythonFacts:
    """The interpreter that runs ddplaunch, and torchrun."""

    executable: str
    version: str


@dataclass(frozen=True)
class TorchFacts:
    """torch as installed, read from its files without importing it (about a millisecond).

    ``cuda``/``hip`` are the toolkit versions it was built for (None in a CPU build). ``torchrun_flags`` are the
    long options that the installed ``torch/distributed/run.py`` declares, spelled with dashes.
    """

    version: str
    path: str
    cuda: str | None
    hip: str | None
    torchrun_flags: frozenset[str]
    nccl_version: str | None = None


@dataclass(frozen=True)
class PackageFacts:
    """Installed distributions by normalised name, as the names of their ``.dist-info`` folders say; ``places`` are the
    directories they are in.
    """

    versions: dict[str, str]


@dataclass(frozen=True)
class TorchImport:
    """torch as a child interpreter finds it by importing it (seconds; only ``doctor`` asks for it)."""

    version: str
    nccl_available: bool
    cuda_available: bool
    cuda_error: str | None
    device_count: int
    arch_list: tuple[str, ...]


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory on a GPU; user and command are None where /proc does not tell.

    ``orphan`` is True for a torchelastic worker whose parent is gone.
    """

    pid: int
    memory_bytes: int | None
    user: str | None
    command: str | None
    orphan: bool = False


@dataclass(frozen=True)
class MigDevice:
    """One MIG instance: its UUID (``MIG-…``), name and memory."""

    uuid: str
    name: str
    memory_bytes: int | None


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML shows it, in NVML's (PCI) order. ``fault`` is NVML's error if the GPU does not answer."""

    index: int
    uuid: str
    name: str
    pci_bus_id: str = ""
    fault: str | None = None
    compute_capability: tuple[int, int] | Unavailable = NOT_ASKED
    memory_total_bytes: int | Unavailable = NOT_ASKED
    memory_used_bytes: int | Unavailable = NOT_ASKED
    utilization_percent: int | Unavailable = NOT_ASKED
    processes: tuple[GpuProcess, ...] | Unavailable = NOT_ASKED
    ecc_uncorrected: int | Unavailable = NOT_ASKED  # volatile: since the driver was loaded
    remap_pending: bool | Unavailable = NOT_ASKED
    remap_failed: bool | Unavailable = NOT_ASKED
    recovery_action: str | Unavailable = NOT_ASKED  # "none", "reset", "reboot", "drain P2P", …
    throttle_reasons: tuple[str, ...] | Unavailable = NOT_ASKED  # only those that slow work down
    temperature_c: int | Unavailable = NOT_ASKED
    compute_mode: str | Unavailable = NOT_ASKED  # "default", "exclusive process", "prohibited"
    mig_enabled: bool | Unavailable = NOT_ASKED
    mig_devices: tuple[MigDevice, ...] = ()


@dataclass(frozen=True)
class NvmlFacts:
    """GPUs and driver by NVML. ``cuda_driver_version`` is the newest CUDA that the driver supports, e.g. (12, 8).

    AMD's GPUs, as the kernel shows them, are told in the same way, in HIP's order: they have no CUDA, which is (0, 0).
    ``denied`` are device files of theirs that this user may not open.
    """

    driver_version: str
    cuda_driver_version: tuple[int, int]
    gpus: tuple[Gpu, ...]
    vendor: str = "nvidia"  # or "amd"
    denied: tuple[str, ...] = ()


@dataclass(frozen=True)
class NvidiaFacts:
    """GPUs and the driver as the kernel shows them, without NVML.

    ``pci_gpus``: NVIDIA display/3D controllers on the PCI bus; ``kernel_module_version`` from
    /proc/driver/nvidia/version; ``device_nodes``: /dev/nvidia0 … that exist; ``nvml_error`` is
    "driver/library version mismatch" and the like, kept apart because a check names it.
    """

    pci_gpus: int
    kernel_module_version: str | None
    device_nodes: int
    nvml_error: str | None = None


@dataclass(frozen=True)
class CpuFacts:
    """``usable`` = min(affinity, quota), at least 1; ``quota_cpus`` is the cgroup's CPU quota or None."""

    logical: int
    affinity: int
    quota_cpus: float | None
    usable: int


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node that has CPUs: ``cores`` are the physical cores that this process may use, each as its hardware
    threads; ``package`` is the socket that it is a part of.
    """

    index: int
    package: int
    cores: tuple[tuple[int, ...], ...]

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs of the node that this process may use."""
        return tuple(cpu for core in self.cores for cpu in core)


@dataclass(frozen=True)
class CpuLayout:
    """Where the CPUs lie that this process may use.

    ``allowed`` of the ``online`` CPUs is how many the cgroup's cpuset leaves (or the first process has); an affinity
    of fewer was chosen by somebody. On a machine with several nodes, ``gpu_nodes`` holds the node of each GPU by the
    PCI address that NVML tells, as far as the kernel knows it.
    """

    nodes: tuple[NumaNode, ...]
    allowed: int
    online: int
    gpu_nodes: dict[str, int] = field(default_factory=dict)

    @property
    def cores(self) -> tuple[tuple[int, ...], ...]:
        """All usable cores, node by node and socket by socket."""
        return tuple(
            core
            for node in sorted(self.nodes, key=lambda numa_node: (numa_node.package, numa_node.index))
            for core in node.cores
        )

    @property
    def cpus(self) -> tuple[int, ...]:
        """All usable CPUs, in order."""
        return tuple(sorted(cpu for core in self.cores for cpu in core))


@dataclass(frozen=True)
class MemoryFacts:
    """``limit_bytes`` is the cgroup's limit or None; ``available_bytes`` already respects it."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None


@dataclass(frozen=True)
class ShmFacts:
    """/dev/shm."""

    size_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class LimitFacts:
    """Soft and hard resource limits of this process; None is unlimited."""

    open_files_soft: int | None
    open_files_hard: int | None
    memlock_bytes: int | None
    processes_soft: int | None
    cgroup_pids_max: int | None = None


@dataclass(frozen=True)
class Interface:
    """A network interface; ``speed_mbps`` is None where the kernel does not tell."""

    name: str
    up: bool
    loopback: bool
    addresses: tuple[str, ...]
    speed_mbps: int | None = None


@dataclass(frozen=True)
class InfinibandPort:
    """One port under /sys/class/infiniband; ``state`` such as "ACTIVE", "DOWN"; ``link_layer`` such as "Ethernet"."""

    device: str
    port: int
    state: str
    link_layer: str


@dataclass(frozen=True)
class Route:
    """How this host reaches ``destination``: the interface and the local address the kernel would use."""

    destination: str
    interface: str | None
    local_address: str
    is_local: bool  # the destination is an address of this very host


@dataclass(frozen=True)
class PortFact:
    """A TCP port that was asked for explicitly; ``holder_*`` say who listens on it as far as /proc tells."""

    port: int
    free: bool
    error: str | None = None  # the OSError's text of the trial bind
    holder_pid: int | None = None
    holder_user: str | None = None
    holder_command: str | None = None


@dataclass(frozen=True)
class NetworkFacts:
    """Interfaces, InfiniBand and, where a master address was named, the route to it."""

    interfaces: tuple[Interface, ...]
    infiniband: tuple[InfinibandPort, ...]
    route_to_master: Route | Unavailable = NO_MASTER


@dataclass(frozen=True)
class PathFact:
    """A data or output path, looked at by a short-lived child with a deadline.

    ``kind`` is "file", "directory", "other", "missing" or "unreachable" (the deadline passed: a dead mount).
    For an output that does not exist yet, ``writable`` and the sizes are those of the nearest existing parent.
    ``filesystem`` is the type in /proc/mounts ("nfs4", "ext4").
    """

    path: str
    kind: str
    readable: bool = False
    writable: bool = False
    empty: bool = False
    free_bytes: int | None = None
    total_bytes: int | None = None
    free_inodes: int | None = None
    filesystem: str | None = None
    owner: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Facts:
    """One machine. A field that could not be had is ``Unavailable``; checks that need it become skips."""

    host: HostFacts | Unavailable
    python: PythonFacts | Unavailable
    torch: TorchFacts | Unavailable
    torch_import: TorchImport | Unavailable
    nvidia: NvidiaFacts | Unavailable
    nvml: NvmlFacts | Unavailable
    cpu: CpuFacts | Unavailable
    memory: MemoryFacts | Unavailable
    shm: ShmFacts | Unavailable
    limits: LimitFacts | Unavailable
    network: NetworkFacts | Unavailable
    master_port: PortFact | Unavailable = NO_PORT
    data_paths: tuple[PathFact, ...] = ()
    output_paths: tuple[PathFact, ...] = ()
    record_paths: tuple[PathFact, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)  # as ddplaunch found it, secrets replaced by "***"
    packages: PackageFacts | Unavailable = NOT_ASKED
    cpu_layout: CpuLayout | Unavailable = NOT_ASKED
    launch_lines: tuple[str, ...] = ()  # of the shell script that the ranks would run, as ddplaunch says them


@dataclass(frozen=True)
class ProbeRequest:
    """What to look at beyond the machine itself. ``path_deadline_s`` bounds each look at a path.

    Of ``record_paths`` an empty one is where records go by default.
    ``torch_needs_gpu`` lets ``import_torch`` be skipped where there is no driver of a GPU: what the import tells beyond
    torch's files is about GPUs.
    """

    data_paths: tuple[str, ...] = ()
    output_paths: tuple[str, ...] = ()
    master_addr: str | None = None
    master_port: int | None = None
    import_torch: bool = False
    gpu_details: bool = True  # health, processes, utilisation; False asks for count, names and memory only
    path_deadline_s: float = 2.0
    torch_needs_gpu: bool = False
    packages: bool = False
    record_paths: tuple[str, ...] = ()
