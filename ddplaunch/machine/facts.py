"""One machine as frozen values: everything that checks know about it."""

from __future__ import annotations

from dataclasses import field

from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable

NOT_ASKED = Unavailable("not asked")
NO_MASTER = Unavailable("no master address was named")
NO_PORT = Unavailable("no port was named")


@dataclass(frozen=True)
class HostFacts:
    """The machine. ``name_addresses`` is what its own host name resolves to, or why it does not resolve.

    ``machine`` is "x86_64", "aarch64" … ``slurm_task``: the task that Slurm's variables name runs here, or they name
    none.
    """

    name: str
    name_addresses: tuple[str, ...] | Unavailable
    kernel: str
    container: str | None  # "docker", "podman", "kubernetes", "lxc", "slurm-pyxis" … or None outside of one
    user: str
    machine: str = ""
    slurm_task: bool = True


@dataclass(frozen=True)
class PythonFacts:
    """The interpreter that runs ddplaunch and torchrun."""

    executable: str
    version: str


@dataclass(frozen=True)
class TorchFacts:
    """torch as installed, read from its files without importing it (about a millisecond).

    ``cuda`` and ``hip`` are the toolkit versions it was built for (None in a CPU build). ``torchrun_flags`` are the
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
    """Installed distributions: versions by normalised name, from the names of ``.dist-info`` folders."""

    versions: dict[str, str]


@dataclass(frozen=True)
class TorchImport:
    """torch as reported by a child interpreter that imports it (takes seconds; only ``doctor`` asks for it)."""

    version: str
    nccl_available: bool
    cuda_available: bool
    cuda_error: str | None
    device_count: int
    arch_list: tuple[str, ...]


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory on a GPU; user and command are None if /proc does not show them.

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
    ecc_uncorrected: int | Unavailable = NOT_ASKED  # volatile count: since the driver was loaded
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

    AMD's GPUs, as the kernel shows them, are described in the same way, in HIP's order; their CUDA version is (0, 0).
    ``denied`` are the AMD device files that this user may not open.
    """

    driver_version: str
    cuda_driver_version: tuple[int, int]
    gpus: tuple[Gpu, ...]
    vendor: str = "nvidia"  # or "amd"
    denied: tuple[str, ...] = ()


@dataclass(frozen=True)
class NvidiaFacts:
    """GPUs and the driver as the kernel shows them, without NVML.

    ``pci_gpus`` counts NVIDIA's display/3D controllers on the PCI bus, ``device_nodes`` the existing /dev/nvidia0 …;
    ``kernel_module_version`` is from /proc/driver/nvidia/version; ``nvml_error`` is "driver/library version mismatch"
    and the like, a separate field because a check names it.
    """

    pci_gpus: int
    kernel_module_version: str | None
    device_nodes: int
    nvml_error: str | None = None


@dataclass(frozen=True)
class CpuFacts:
    """CPU counts: ``usable`` = min(affinity, quota), at least 1; ``quota_cpus`` is the cgroup's CPU quota or None."""

    logical: int
    affinity: int
    quota_cpus: float | None
    usable: int


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node that has CPUs.

    ``cores`` are the physical cores that this process may use, each as its hardware threads; ``package`` is the socket.
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
    """The layout of the CPUs that this process may use.

    ``allowed`` counts those of the ``online`` CPUs that the cgroup's cpuset, or the affinity of process 1, permits; a
    smaller affinity of this process was set on purpose. On a machine with several nodes, ``gpu_nodes`` maps each GPU's
    PCI address (as NVML writes it) to its node, if the kernel knows it.
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
    """Main memory: ``limit_bytes`` is the cgroup's limit or None; ``available_bytes`` already respects it."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None


@dataclass(frozen=True)
class ShmFacts:
    """Size and free space of /dev/shm."""

    size_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class LimitFacts:
    """Soft and hard resource limits of this process; None means unlimited."""

    open_files_soft: int | None
    open_files_hard: int | None
    memlock_bytes: int | None
    processes_soft: int | None
    cgroup_pids_max: int | None = None


@dataclass(frozen=True)
class Interface:
    """A network interface; ``speed_mbps`` is None if the kernel does not report it."""

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
    is_local: bool  # the destination is an address of this host


@dataclass(frozen=True)
class PortFact:
    """A TCP port that was given explicitly; ``holder_*`` describe the process that listens on it, if /proc shows it."""

    port: int
    free: bool
    error: str | None = None  # the OSError's text from trying to bind it
    holder_pid: int | None = None
    holder_user: str | None = None
    holder_command: str | None = None


@dataclass(frozen=True)
class NetworkFacts:
    """Interfaces, InfiniBand ports and, if a master address was given, the route to it."""

    interfaces: tuple[Interface, ...]
    infiniband: tuple[InfinibandPort, ...]
    route_to_master: Route | Unavailable = NO_MASTER


@dataclass(frozen=True)
class PathFact:
    """A data or output path, inspected by a short-lived child with a deadline.

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
    """All facts of one machine. A fact that could not be read is ``Unavailable``; checks that need it are skipped."""

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
    launch_lines: tuple[str, ...] = ()  # in the shell script that the ranks would run, translated to ddplaunch's own


@dataclass(frozen=True)
class ProbeRequest:
    """What to inspect besides the machine itself.

    An empty string in ``record_paths`` is the default place of records. ``torch_needs_gpu`` skips ``import_torch`` on
    machines without a GPU driver: beyond what torch's files say, the import only tells about GPUs.
    """

    data_paths: tuple[str, ...] = ()
    output_paths: tuple[str, ...] = ()
    master_addr: str | None = None
    master_port: int | None = None
    import_torch: bool = False
    torch_needs_gpu: bool = False
    packages: bool = False
    record_paths: tuple[str, ...] = ()
