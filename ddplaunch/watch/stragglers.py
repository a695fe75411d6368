"""Finds the rank of a running job that slows the others down, or takes more than its share.

Every rule is a function of the samples of one host over some time. Rules compare medians, so that a checkpoint or an
evaluation in between does not matter, and find nothing before a rank has ten samples. A ``Value`` function takes a rank
and its GPU at one moment, and returns None if the value is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median

from ddplaunch.checks.check import declare
from ddplaunch.machine.sample import GpuSample, RankSample, Sample
from ddplaunch.values.finding import Finding, warning
from ddplaunch.values.words import count, ranks_text
from ddplaunch.watch.phases import PHASES, RankPhases, StepLine, summed

_LEAST_SAMPLES = 10
_SLOWED_SHARE = 0.3
_BUSY_PERCENT, _IDLE_GPU_PERCENT, _IDLE_RANK_PERCENT = 85, 60, 50

#: A rank with its GPU at one moment, and a function that reads a value from both.
Point = tuple[RankSample, GpuSample | None]
Value = Callable[[RankSample, GpuSample | None], float | None]


def _typical(points: Iterable[Point], value: Value) -> float | None:
    """Return the median of the known ``value`` of ``points``, None if none is known."""
    values = [number for rank, gpu in points if (number := value(rank, gpu)) is not None]
    return median(values) if values else None


def _training(samples: Sequence[Sample]) -> dict[int, list[Point]]:
    """Return the points of the last attempt's ranks that have enough samples, in order; ranks ascending.

    If a rank's steps are known, only the points from its first to its last step count, without imports and shutdown.
    """
    all_points: dict[int, list[Point]] = {}
    for sample in samples:
        for rank in sample.ranks if sample.attempt == samples[-1].attempt else ():
            all_points.setdefault(rank.rank, []).append((rank, sample.gpu_of(rank)))
    points_by_rank = {rank: points for rank, points in sorted(all_points.items()) if len(points) >= _LEAST_SAMPLES}
    for number, points in points_by_rank.items():
        steps = [sample.step for sample, _ in points]
        moved = [at for at, (previous, now) in enumerate(pairwise(steps), 1) if now is not None and now != previous]
        if moved and moved[-1] + 1 - moved[0] >= _LEAST_SAMPLES:
            points_by_rank[number] = points[moved[0] : moved[-1] + 1]
    return points_by_rank


def gpu_throttled(samples: Sequence[Sample]) -> Iterator[Finding]:
    """A rank's GPU is slowed down by heat or by its power supply.

    The hardware lowers the clocks to protect itself. Every step waits for the slowest rank, so one hot GPU slows all.
    """
    slowed: dict[int, tuple[float, GpuSample]] = {}
    for rank, points in _training(samples).items():
        slow = [gpu for _, gpu in points if gpu is not None and gpu.slowdowns]
        if len(slow) >= _SLOWED_SHARE * len(points):
            slowed[rank] = len(slow) / len(points), slow[-1]
    if not slowed:
        return
    rank, (share, gpu) = max(slowed.items(), key=lambda item: item[1][0])
    indices = ",".join(str(gpu.index) for _, gpu in slowed.values())
    yield warning(
        "gpu-throttled",
        f"GPU {gpu.index} of rank {rank} slowed down in {100 * share:.0f} % of the samples: {_state(gpu)}",
        why="every step waits for the slowest GPU",
        fix=f"cooling or power: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {indices}` tells which; "
        "until it is mended, leave it out with `--gpus`",
        where=tuple(f"rank {rank}" for rank in slowed),
    )


def _state(gpu: GpuSample) -> str:
    most = f" of {gpu.clock_max_mhz}" if gpu.clock_max_mhz else ""
    words = [*gpu.slowdowns, *([f"{gpu.temperature_c} °C"] if gpu.temperature_c is not None else [])]
    return ", ".join(words + ([f"{gpu.clock_mhz}{most} MHz"] if gpu.clock_mhz is not None else []))


def loader_starved(samples: Sequence[Sample]) -> Iterator[Finding]:
    """A rank waits for its DataLoader: its workers are busy all the time, but its GPU is not.

    The GPU is idle until the next batch arrives, and every other rank waits for this rank in the next collective.
    Without a GPU, the rank's own process is the one that is not busy. A process that waits for a CPU counts as busy.
    """
    starved: dict[int, tuple[int, str]] = {}
    for rank, points in _training(samples).items():
        workers = _typical(
            points, lambda rank, _: _demand(rank.workers_cpu_percent, rank.workers_wait_percent, rank.workers)
        )
        gpu = _typical(points, lambda _, gpu: None if gpu is None else gpu.utilization_percent)
        load = _typical(points, lambda rank, _: _demand(rank.cpu_percent, rank.wait_percent))
        idle = None if points[-1][1] is not None or load is None or load >= _IDLE_RANK_PERCENT else "the rank itself"
        if gpu is not None:
            idle = f"GPU {points[-1][0].gpu}" if gpu < _IDLE_GPU_PERCENT else None
        if idle is not None and workers is not None and workers >= _BUSY_PERCENT:
            number = round(_typical(points, lambda rank, _: rank.workers) or 0)
            busy = f"{count(number, 'DataLoader worker')} need{'s' * (number < 2)} {workers:.0f} % of a CPU"
            starved[rank] = number, f"{busy}{' each' * (number > 1)}, {idle} at {load if gpu is None else gpu:.0f} %"
    if not starved:
        return
    rank, (number, words) = next(iter(starved.items()))
    yield warning(
        "loader-starved",
        f"rank {rank} waits for data: {words}",
        why="the workers cannot load faster, and what the rank computes with waits for them",
        fix=f"`num_workers={2 * number}` in the DataLoader where CPUs are free, or load cheaper: decode and resize "
        "once, ahead of the training, or move transforms to the GPU",
        where=tuple(f"rank {rank}" for rank in starved),
    )


def _demand(percent: float | None, wait_percent: float | None, processes: int = 1) -> float | None:
    """Return the percentage of a CPU that each process would use if there were enough CPUs."""
    return None if percent is None or not processes else (percent + (wait_percent or 0)) / processes


def stray_gpu_contexts(samples: Sequence[Sample]) -> Iterator[Finding]:
    """Ranks hold memory on the GPU of another rank.

    Each context there takes a few hundred MiB from a GPU, which then runs out of memory first. The cause is a CUDA call
    before `torch.cuda.set_device(local_rank)`, or `torch.load` without `map_location`, which puts tensors back on the
    GPU that they were saved from.
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


def phases_of(samples: Sequence[Sample]) -> list[RankPhases]:
    """Return how the steps of one host's ranks spent their time, as ranks with ``--phases`` told in its samples."""
    return [
        one
        for number, points in _training(samples).items()
        if (one := summed(number, {}, [_step_line(rank, 1 / rank.step_rate) for rank, _ in points if rank.step_rate]))
    ]


def _step_line(rank: RankSample, step_s: float) -> StepLine:
    times = (share and share * step_s / 100 for share in map(rank.phases.get, PHASES))
    return StepLine._make((0, 0.0, 1, step_s, *times, None, None, None))


def stragglers(samples: Sequence[Sample]) -> tuple[Finding, ...]:
    """Return the findings of all rules in the samples of one host; a rule that raises an exception finds nothing."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check.function(samples)
        except Exception:  # must not stop the watching program
            continue
    return tuple(findings)


def late_rank(findings: Sequence[Finding]) -> int | None:
    """Return the rank that the others wait for: the only one that findings name as late."""
    named = {
        place for finding in findings if finding.code in ("gpu-throttled", "loader-starved") for place in finding.where
    }
    return int(named.pop().removeprefix("rank ")) if len(named) == 1 else None


CHECKS = tuple(declare("running", rule) for rule in (gpu_throttled, loader_starved, stray_gpu_contexts))
