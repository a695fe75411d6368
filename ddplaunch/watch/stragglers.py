"""Which rank of a running job holds the others back, or takes more than its share.

Every rule is a function of the samples of one host over some time. Medians decide, because a checkpoint or an
evaluation in between must not; no rule speaks before a rank has ten samples. The values that rules compare take a rank
and its GPU at one moment, and return None where they are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median

from ddplaunch.checks.check import declare
from ddplaunch.machine.sample import GpuSample, RankSample, Sample
from ddplaunch.values.finding import Finding, warning
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import count, ranks_text

_LEAST_SAMPLES = 10
_SLOWER = 0.95
_RECENT = 10


#: A rank at one moment with its GPU, and what can be read off that.
Point = tuple[RankSample, GpuSample | None]
Value = Callable[[RankSample, GpuSample | None], float | None]


def _of_rank(name: str) -> Value:
    return lambda rank, _: getattr(rank, name)


def _worker_percent(rank: RankSample, _: GpuSample | None) -> float | None:
    """Return the mean CPU percentage of its DataLoader workers."""
    return rank.workers_cpu_percent / rank.workers if rank.workers and rank.workers_cpu_percent is not None else None


def _typical(points: Iterable[Point], value: Value) -> float | None:
    """Return the median of what is known of ``value``, None where nothing is."""
    values = [number for rank, gpu in points if (number := value(rank, gpu)) is not None]
    return median(values) if values else None


def _points_by_rank(samples: Iterable[Sample], attempt: int | None) -> dict[int, list[Point]]:
    """Return the moments of each rank in the order of ``samples``, ranks ascending."""
    points: dict[int, list[Point]] = {}
    for sample in samples:
        for rank in sample.ranks if sample.attempt == attempt else ():
            points.setdefault(rank.rank, []).append((rank, sample.gpu_of(rank)))
    return dict(sorted(points.items()))


@dataclass(frozen=True)
class _Series:
    """One rank over time, with its GPU at each moment."""

    rank: int
    points: tuple[Point, ...]

    def typical(self, value: Value) -> float | None:
        """Return the median of what is known, None where nothing is."""
        return _typical(self.points, value)

    @property
    def gpu(self) -> GpuSample | None:
        """Its GPU as it was last, None where it uses none."""
        return next((gpu for _, gpu in reversed(self.points) if gpu is not None), None)

    @property
    def workers(self) -> int:
        """How many DataLoader workers it usually has."""
        return round(self.typical(lambda rank, _: rank.workers) or 0)


def _series_of(samples: Sequence[Sample]) -> tuple[_Series, ...]:
    """Return the ranks of the last attempt that have enough samples, in order."""
    found = _points_by_rank(samples, max((sample.attempt for sample in samples), default=0))
    return tuple(_Series(rank, _training(points)) for rank, points in found.items() if len(points) >= _LEAST_SAMPLES)


def _training(points: list[Point]) -> tuple[Point, ...]:
    """Return the moments from the first step to the last where ranks tell: imports and the end are another matter."""
    steps = [rank.step for rank, _ in points]
    moved = [at for at, (before, now) in enumerate(pairwise(steps), 1) if now is not None and now != before]
    stepping = points[moved[0] : moved[-1] + 1] if moved else []
    return tuple(stepping if len(stepping) >= _LEAST_SAMPLES else points)


def slowest_rank(samples: Sequence[Sample]) -> int | None:
    """Return the rank that steps lately at less than 95 % of the others' rate; None if none does, or ranks do not tell.

    Ranks that wait for each other in every step have one rate: there the findings tell who is late.
    """
    here = {rank.rank for rank in samples[-1].ranks} if samples else ()
    recent = _points_by_rank(samples[-_RECENT:], samples[-1].attempt if samples else None)
    known = {rank: _typical(points, _of_rank("step_rate")) for rank, points in recent.items() if rank in here}
    rates = {rank: rate for rank, rate in known.items() if rate is not None}
    if len(rates) < 2:
        return None
    slow = min(rates, key=lambda each: rates[each])
    usual = median(rate for each, rate in rates.items() if each != slow)
    return slow if rates[slow] < _SLOWER * usual else None


def _worker_wait(rank: RankSample, _: GpuSample | None) -> float | None:
    """Return the share of the time in which a worker wants a CPU and has none."""
    return rank.workers_wait_percent / rank.workers if rank.workers and rank.workers_wait_percent is not None else None


def _worker_demand(rank: RankSample, gpu: GpuSample | None) -> float | None:
    """Return what a worker would use if there were CPUs enough."""
    percent = _worker_percent(rank, gpu)
    return None if percent is None else percent + (_worker_wait(rank, gpu) or 0)


_own_percent = _of_rank("cpu_percent")


def _gpu_percent(_: RankSample, gpu: GpuSample | None) -> float | None:
    return None if gpu is None else gpu.utilization_percent


def _own_demand(rank: RankSample, _: GpuSample | None) -> float | None:
    """Return what the rank's own process would use if there were CPUs enough."""
    return None if rank.cpu_percent is None else rank.cpu_percent + (rank.wait_percent or 0)


_SLOWED_SHARE = 0.3
_BUSY_PERCENT, _IDLE_GPU_PERCENT, _IDLE_RANK_PERCENT, _FULL_PERCENT = 85, 60, 50, 95
_WAITING_PERCENT = 10  # of the time, ready to run and without a CPU


def gpu_throttled(samples: Sequence[Sample]) -> Iterator[Finding]:
    """A rank's GPU is slowed down by heat or by its power supply.

    The hardware lowers the clocks to protect itself. Every step waits for the slowest rank, so one hot GPU slows all.
    """
    slowed = {}
    for each in _series_of(samples):
        gpus = [gpu for _, gpu in each.points if gpu is not None]
        share = sum(bool(gpu.slowdowns) for gpu in gpus) / len(each.points)
        if share >= _SLOWED_SHARE:
            slowed[each.rank] = (next(gpu for gpu in reversed(gpus) if gpu.slowdowns), share)
    if not slowed:
        return
    others = [gpu.clock_mhz for rank, gpu in _last_gpus(samples) if rank not in slowed and gpu.clock_mhz is not None]
    beside = f"; the others run at {median(others):.0f} MHz" if others else ""
    rank, (gpu, share) = max(slowed.items(), key=lambda each: each[1][1])
    indices = ",".join(str(gpu.index) for gpu, _ in slowed.values())
    yield warning(
        "gpu-throttled",
        f"GPU {gpu.index} of rank {rank} slowed down in {100 * share:.0f} % of the samples: {_state(gpu)}{beside}",
        why="every step waits for the slowest GPU",
        fix=f"cooling or power: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {indices}` tells which; "
        "until it is mended, leave it out with `--gpus`",
        where=tuple(f"rank {rank}" for rank in slowed),
    )


def _last_gpus(samples: Sequence[Sample]) -> list[tuple[int, GpuSample]]:
    return [(each.rank, gpu) for each in _series_of(samples) if (gpu := each.gpu) is not None]


def _state(gpu: GpuSample) -> str:
    words = [", ".join(gpu.slowdowns)]
    words += [f"{gpu.temperature_c} °C"] if gpu.temperature_c is not None else []
    if gpu.clock_mhz is not None:
        words.append(f"{gpu.clock_mhz} of {gpu.clock_max_mhz} MHz" if gpu.clock_max_mhz else f"{gpu.clock_mhz} MHz")
    return ", ".join(words)


def loader_starved(samples: Sequence[Sample]) -> Iterator[Finding]:
    """A rank waits for its DataLoader: its workers are busy all the time, and its GPU is not.

    The GPU is idle until the next batch is there, and every other rank waits for it in the next collective. Where no
    GPU is used, the rank's own process is what should be busy.
    """
    starved = {each.rank: each for each in _series_of(samples) if _starved(each)}
    if not starved:
        return
    first, cpus, busy = next(iter(starved.values())), samples[-1].host.cpus, _host_busy(samples)
    full = busy is not None and busy >= _FULL_PERCENT
    yield warning(
        "loader-starved",
        f"rank {first.rank} waits for data: {_workers(first)}, {_idle(first)}",
        why=f"all {cpus} CPUs are busy, and what the rank computes with waits for them"
        if full
        else "the workers cannot load faster, and what the rank computes with waits for them",
        fix="load cheaper: decode and resize once, ahead of the training, or move transforms to the GPU"
        if full
        else f"`num_workers={2 * first.workers}` in the DataLoader, or load cheaper",
        where=tuple(f"rank {number}" for number in starved),
    )


def _starved(each: _Series) -> bool:
    """Whether its workers want a CPU all the time, and what they feed wants little. Getting none is wanting one too."""
    workers = each.typical(_worker_demand)
    if not each.workers or workers is None or workers < _BUSY_PERCENT:
        return False
    gpu, own = each.typical(_gpu_percent), each.typical(_own_demand)
    if gpu is not None:
        return gpu < _IDLE_GPU_PERCENT
    return each.gpu is None and own is not None and own < _IDLE_RANK_PERCENT


def _workers(each: _Series) -> str:
    workers, percent, wait = each.workers, each.typical(_worker_percent) or 0, each.typical(_worker_wait) or 0
    words = f"{count(workers, 'DataLoader worker')} at {percent:.0f} % of a CPU"
    words += "" if workers == 1 else " each"
    return f"{words} and without one in {wait:.0f} % of the time" if wait >= _WAITING_PERCENT else words


def _idle(each: _Series) -> str:
    gpu = each.gpu
    if gpu is not None:
        return f"GPU {gpu.index} at {each.typical(_gpu_percent):.0f} %"
    return f"the rank itself at {each.typical(_own_percent) or 0:.0f} %"


def _host_busy(samples: Sequence[Sample]) -> float | None:
    known = [sample.host.cpu_percent for sample in samples if sample.host.cpu_percent is not None]
    return median(known) if known else None


def stray_gpu_contexts(samples: Sequence[Sample]) -> Iterator[Finding]:
    """Ranks hold memory on a GPU that is another rank's.

    Each context there costs some hundred MiB of the GPU that runs out first. It comes of CUDA calls ahead of
    `torch.cuda.set_device(local_rank)`, and of `torch.load` without `map_location`, which puts tensors back on the GPU
    that they were saved from.
    """
    if len(samples) < _LEAST_SAMPLES:
        return
    last = samples[-1]
    works_on = {rank.rank: rank.gpu for rank in last.ranks}
    for gpu in last.gpus:
        owners = [rank for rank in gpu.ranks if works_on.get(rank) == gpu.index]
        strays = [rank for rank in gpu.ranks if works_on.get(rank) not in (gpu.index, None)]
        if owners and strays:
            yield warning(
                "stray-gpu-contexts",
                f"{ranks_text(strays)} hold{'s' if len(strays) == 1 else ''} memory on GPU {gpu.index}, which is "
                f"{ranks_text(owners)}'s",
                why="each context there takes some hundred MiB from the GPU that then runs out of memory first",
                fix="`torch.cuda.set_device(local_rank)` ahead of every other CUDA call, and "
                "`torch.load(path, map_location=\"cpu\")`",
                where=tuple(f"rank {rank}" for rank in strays),
            )  # fmt: skip


def stragglers(samples: Sequence[Sample]) -> tuple[Finding, ...]:
    """Return what every rule finds in the samples of one host; a rule that fails finds nothing."""
    found: list[Finding] = []
    for check in CHECKS:
        try:
            found += check.function(samples)
        except Exception:  # nothing here is worth a user's run
            continue
    return tuple(found)


def late_rank(samples: Sequence[Sample], findings: Sequence[Finding]) -> int | None:
    """Return the rank that the others wait for: the slowest, or the one that a finding names for being late."""
    slowest = slowest_rank(samples)
    named = {place for each in findings if each.code in ("gpu-throttled", "loader-starved") for place in each.where}
    if slowest is None and len(named) == 1:
        return int(named.pop().removeprefix("rank "))
    return slowest


CHECKS = tuple(declare("running", rule) for rule in (gpu_throttled, loader_starved, stray_gpu_contexts))
