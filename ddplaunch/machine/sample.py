"""One moment of a run as frozen values: its ranks, the GPUs and this host.

None means "not known", never zero. Rates and percentages are averages since the previous sample; the first has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field

from ddplaunch.values.codec import from_plain
from ddplaunch.values.frozen import dataclass


@dataclass(frozen=True)
class RankSample:
    """One rank with the processes of its session. ``cpu_percent`` is relative to one CPU: 200 means two CPUs.

    ``cpu_percent`` and ``rss_bytes`` are of the rank's own process; ``workers`` counts its child processes (DataLoader
    workers), ``workers_cpu_percent`` is their sum. ``state`` is the kernel's letter. ``wait_percent`` is the share of
    time in which the main thread was ready to run but had no CPU; ``workers_wait_percent`` is the sum over the workers.
    ``phases`` are percentages of a step, reported by ranks with ``--phases``. ``loss`` is the last one printed, or the
    word ``nan`` or ``inf``.
    """

    rank: int
    local_rank: int
    pid: int
    state: str
    cpu_percent: float | None = None
    wait_percent: float | None = None
    rss_bytes: int | None = None
    workers: int = 0
    workers_cpu_percent: float | None = None
    workers_wait_percent: float | None = None
    step: float | None = None
    step_rate: float | None = None
    loss: float | str | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    gpu: int | None = None
    gpu_memory_bytes: int | None = None


@dataclass(frozen=True)
class GpuSample:
    """One GPU by NVML's index. ``slowdowns`` are the reasons for lowered clocks; ``clock_mhz`` is the SM clock.

    ``ranks`` are those that hold memory on it, ``others`` counts other processes that do. ``fault`` says why the GPU
    does not answer.
    """

    index: int
    uuid: str = ""
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
    slowdowns: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    others: int = 0
    fault: str | None = None


@dataclass(frozen=True)
class HostSample:
    """This host: ``cpus`` counts the usable CPUs; ``cpu_percent`` is of the whole machine, 0 to 100."""

    cpus: int
    cpu_percent: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None


@dataclass(frozen=True)
class Sample:
    """Everything at one moment. ``at_s`` is in seconds since the epoch; ``no_gpus`` says why there are no GPUs."""

    at_s: float
    name: str
    attempt: int
    host: HostSample
    ranks: tuple[RankSample, ...] = ()
    gpus: tuple[GpuSample, ...] = ()
    no_gpus: str | None = None

    def gpu_of(self, rank: RankSample) -> GpuSample | None:
        """Return the GPU that the rank uses; None if it uses none or that is unknown."""
        return next((gpu for gpu in self.gpus if gpu.index == rank.gpu), None)


def sample_of(value: object) -> Sample | None:
    """Return the sample from the output of ``plain``; None if it is not one. Fields of later versions are ignored."""
    with suppress(ValueError):
        return from_plain(value, Sample)
    return None
