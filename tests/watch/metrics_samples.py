"""Samples of runs as they would be taken, healthy unless changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddplaunch.machine.sample import GpuSample, HostSample, RankSample, Sample

GIB = 1 << 30
BEGAN_S = 1_795_000_000.0
HOST = HostSample(16, 41.5, 128 * GIB, 87 * GIB)


def rank_sample(rank: int, at: int = 0, gpu: bool = True) -> RankSample:
    given: dict[str, Any] = {"cpu_percent": 101.0, "rss_bytes": 3 * GIB, "workers": 4, "workers_cpu_percent": 140.0}
    given |= {"step": 100.0 + 12 * at, "step_rate": 12.0 + 0.1 * (at % 3)}
    if gpu:
        given |= {"gpu": rank, "gpu_memory_bytes": 61 * GIB}
    return RankSample(rank, rank, 4000 + rank, "S", **given)


def gpu_sample(index: int, at: int = 0) -> GpuSample:
    return GpuSample(index, f"GPU-{index}", 96 + at % 4, 62 * GIB, 80 * GIB, 612.0, 61, 1905, 1980, ranks=(index,))


def run_samples(count: int = 20, ranks: int = 4, gpu: bool = True, host: HostSample = HOST) -> list[Sample]:
    """Return ``count`` samples of a healthy run, a second apart."""

    def sample(at: int) -> Sample:
        of_ranks = tuple(rank_sample(rank, at, gpu) for rank in range(ranks))
        of_gpus = tuple(gpu_sample(index, at) for index in range(ranks)) if gpu else ()
        return Sample(BEGAN_S + at, "gpu01", 0, host, of_ranks, of_gpus)

    return [sample(at) for at in range(count)]


def with_rank(samples: list[Sample], number: int, **changes: Any) -> list[Sample]:
    return [
        replace(each, ranks=tuple(replace(rank, **changes) if rank.rank == number else rank for rank in each.ranks))
        for each in samples
    ]


def with_gpu(samples: list[Sample], index: int, **changes: Any) -> list[Sample]:
    return [
        replace(each, gpus=tuple(replace(gpu, **changes) if gpu.index == index else gpu for gpu in each.gpus))
        for each in samples
    ]
