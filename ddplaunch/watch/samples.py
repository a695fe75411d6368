"""One moment of a run as frozen values: its ranks, the GPUs and this host.

None means "not known", never zero. Rates and percentages are means since the sample before, so a first sample has none.
"""

from __future__ import annotations

from collections.abc import Callable

from ddplaunch.values.frozen import dataclass


@dataclass(frozen=True)
class RankIdentity:
    """A rank on this host, as its launch noted it. ``start_ticks`` tells it from a later process of the same pid."""

    rank: int
    local_rank: int
    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Progress:
    """What a rank's output says of its steps: the last number, and how many it does in a second."""

    step: float | None = None
    rate: float | None = None


@dataclass(frozen=True)
class RankSample:
    """One rank with the processes of its session. ``cpu_percent`` is of one CPU: 200 is two CPUs' worth.

    ``cpu_percent``, ``anon_bytes`` and ``threads`` are the rank's own process; ``workers`` counts its child processes
    that work for it (DataLoader workers), ``workers_cpu_percent`` is their sum. ``pss_bytes`` is of all of them, each
    shared page counted once; it is read seldom. ``state`` is the kernel's letter. ``wait_percent`` is the share of the
    time in which the main thread could have run and had no CPU, the workers' again their sum.
    """

    rank: int
    local_rank: int
    pid: int
    state: str
    cpu_percent: float | None = None
    rss_bytes: int | None = None
    anon_bytes: int | None = None
    pss_bytes: int | None = None
    threads: int | None = None
    omp_threads: int | None = None
    workers: int = 0
    workers_cpu_percent: float | None = None
    workers_rss_bytes: int = 0
    read_bytes_s: float | None = None
    write_bytes_s: float | None = None
    step: float | None = None
    step_rate: float | None = None
    gpu: int | None = None
    gpu_memory_bytes: int | None = None
    wait_percent: float | None = None
    workers_wait_percent: float | None = None


@dataclass(frozen=True)
class GpuSample:
    """One GPU by NVML's index. ``slowdowns`` name why its clocks are lowered; ``clock_mhz`` is the SMs'.

    ``ranks`` are those that hold memory on it, ``others`` counts further processes that do.
    """

    index: int
    uuid: str = ""
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
    slowdowns: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    others: int = 0
    fault: str | None = None


@dataclass(frozen=True)
class HostSample:
    """This host: ``cpus`` are those that may be used, ``cpu_percent`` is the whole machine's, 0 to 100.

    Network rates leave the loopback interface out, disk rates count whole disks. In a container they are its host's.
    """

    cpus: int
    cpu_percent: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    received_bytes_s: float | None = None
    sent_bytes_s: float | None = None
    disk_read_bytes_s: float | None = None
    disk_write_bytes_s: float | None = None


@dataclass(frozen=True)
class Sample:
    """Everything at one moment. ``at_s`` is in seconds since the epoch; ``no_gpus`` says why there are none."""

    at_s: float
    name: str
    attempt: int
    host: HostSample
    ranks: tuple[RankSample, ...] = ()
    gpus: tuple[GpuSample, ...] = ()
    no_gpus: str | None = None

    def gpu_of(self, rank: RankSample) -> GpuSample | None:
        """Return the GPU that the rank works on, None where it uses none or that is not known."""
        return next((gpu for gpu in self.gpus if gpu.index == rank.gpu), None) if rank.gpu is not None else None


#: A rank at one moment with its GPU, and what can be read off that.
Point = tuple[RankSample, GpuSample | None]
Value = Callable[[RankSample, GpuSample | None], float | None]
