"""One moment of a run as frozen values: its ranks, the GPUs and this host.

None means "not known", never zero. Rates and percentages are means since the sample before, so a first sample has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from statistics import median
from typing import Any, TypeVar

from ddplaunch.values.codec import plain
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
    """What a rank's output says of its steps: the last number, and how many it does in a second.

    ``loss`` is the last that was printed, the words ``nan`` and ``inf`` where it is no number any more.
    With ``--phases`` ranks say it themselves; ``phases`` are percent of the time then, by the names of ``PHASES``.
    """

    step: float | None = None
    rate: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    loss: float | str | None = None


#: The phases of a step that ranks tell apart, in the order of a step.
PHASES = ("data", "forward", "backward", "comm", "optimizer")


@dataclass(frozen=True)
class RankSample:
    """One rank with the processes of its session. ``cpu_percent`` is of one CPU: 200 is two CPUs' worth.

    ``cpu_percent``, ``anon_bytes`` and ``threads`` are the rank's own process; ``workers`` counts its child processes
    that work for it (DataLoader workers), ``workers_cpu_percent`` is their sum. ``pss_bytes`` is of all of them, each
    shared page counted once; it is read seldom. ``state`` is the kernel's letter. ``wait_percent`` is the share of the
    time in which the main thread could have run and had no CPU, the workers' again their sum. ``data_percent`` up to
    ``optimizer_percent`` are of a step, which ranks tell with ``--phases``; ``loss`` as in ``Progress``.
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
    data_percent: float | None = None
    forward_percent: float | None = None
    backward_percent: float | None = None
    comm_percent: float | None = None
    optimizer_percent: float | None = None
    loss: float | str | None = None


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


def of_rank(name: str, per: float = 1.0) -> Value:
    """Return what reads this field of a rank, divided by ``per``."""
    return lambda rank, _: _field(rank, name, per)


def of_gpu(name: str, per: float = 1.0) -> Value:
    """Return what reads this field of a rank's GPU, divided by ``per``."""
    return lambda _, gpu: _field(gpu, name, per)


def _field(sample: object, name: str, per: float) -> float | None:
    found: float | None = getattr(sample, name, None)
    return None if found is None else found / per


def worker_percent(rank: RankSample, _: GpuSample | None) -> float | None:
    """Return the mean CPU percentage of its DataLoader workers."""
    return rank.workers_cpu_percent / rank.workers if rank.workers and rank.workers_cpu_percent is not None else None


def typical(points: Iterable[Point], value: Value) -> float | None:
    """Return the median of what is known of ``value``, None where nothing is."""
    known = [each for rank, gpu in points if (each := value(rank, gpu)) is not None]
    return median(known) if known else None


def points_by_rank(samples: Iterable[Sample], attempt: int | None = None) -> dict[int, list[Point]]:
    """Return the moments of each rank in the order of ``samples``, ranks ascending; None is every attempt."""
    found: dict[int, list[Point]] = {}
    for sample in samples:
        for rank in sample.ranks if attempt in (None, sample.attempt) else ():
            found.setdefault(rank.rank, []).append((rank, sample.gpu_of(rank)))
    return dict(sorted(found.items()))


def sample_json(sample: Sample) -> dict[str, Any]:
    """Return a sample without what is not known, and without what is 0 where that is its default."""
    value = plain(sample)
    value["host"] = _without_defaults(value["host"], HostSample)
    value["ranks"] = [_without_defaults(each, RankSample) for each in value["ranks"]]
    value["gpus"] = [_without_defaults(each, GpuSample) for each in value["gpus"]]
    return {name: each for name, each in value.items() if each is not None}


def _without_defaults(value: dict[str, Any], kind: type) -> dict[str, Any]:
    defaults = {field.name: plain(field.default) for field in fields(kind)}
    return {name: each for name, each in value.items() if name not in defaults or each != defaults[name]}


def sample_of(value: Mapping[str, Any]) -> Sample | None:
    """Return the sample that ``sample_json`` wrote, None if it is none; fields of later versions are left out.

    ``values.codec`` would take five times as long, 1.8 ms a sample of four ranks.
    """
    try:
        return Sample(
            at_s=float(value["at_s"]),
            name=str(value["name"]),
            attempt=int(value["attempt"]),
            host=_built(HostSample, value["host"]),
            ranks=tuple(_built(RankSample, each) for each in value.get("ranks", ())),
            gpus=tuple(_built(GpuSample, each) for each in value.get("gpus", ())),
            no_gpus=value.get("no_gpus"),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


_Part = TypeVar("_Part", RankSample, GpuSample, HostSample)


def _built(kind: Callable[..., _Part], value: Mapping[str, Any]) -> _Part:
    known = getattr(kind, "__dataclass_fields__", {})
    lists = {name: tuple(each) if isinstance(each, list) else each for name, each in value.items() if name in known}
    return kind(**lists)
