"""What of a rank at one moment the straggler rules compare; refuses to judge.

All take a rank and its GPU, and return None where it is not known.
"""

from __future__ import annotations

from ddplaunch.probes.samples import GpuSample, RankSample


def worker_percent(rank: RankSample, _: GpuSample | None) -> float | None:
    """Return the mean CPU percentage of its DataLoader workers."""
    return rank.workers_cpu_percent / rank.workers if rank.workers and rank.workers_cpu_percent is not None else None


def worker_wait(rank: RankSample, _: GpuSample | None) -> float | None:
    """Return the share of the time in which a worker wants a CPU and has none."""
    return rank.workers_wait_percent / rank.workers if rank.workers and rank.workers_wait_percent is not None else None


def worker_demand(rank: RankSample, gpu: GpuSample | None) -> float | None:
    """Return what a worker would use if there were CPUs enough."""
    percent = worker_percent(rank, gpu)
    return None if percent is None else percent + (worker_wait(rank, gpu) or 0)


def own_percent(rank: RankSample, _: GpuSample | None) -> float | None:
    """Return the CPU percentage of the rank's own process."""
    return rank.cpu_percent


def own_wait(rank: RankSample, _: GpuSample | None) -> float | None:
    """Return the share of the time in which it wants a CPU and has none."""
    return rank.wait_percent


def own_demand(rank: RankSample, _: GpuSample | None) -> float | None:
    """Return what it would use if there were CPUs enough."""
    return None if rank.cpu_percent is None else rank.cpu_percent + (rank.wait_percent or 0)


def gpu_percent(_: RankSample, gpu: GpuSample | None) -> float | None:
    """Return the utilisation of its GPU."""
    return None if gpu is None else gpu.utilization_percent


def gpu_memory(rank: RankSample, gpu: GpuSample | None) -> float | None:
    """Return the bytes that it holds on its GPU, or all that is used there."""
    return rank.gpu_memory_bytes or (None if gpu is None else gpu.memory_used_bytes)


def host_memory(rank: RankSample, _: GpuSample | None) -> float | None:
    """Return the bytes that are its alone."""
    return rank.anon_bytes
