"""Is somebody else on the GPUs, or does their mode keep us out; refuses to end processes or change modes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddplaunch.checks.check import Check, declare
from ddplaunch.checks.used_gpus import gpu_word, indices, seen_by_ranks, used_gpus
from ddplaunch.finding import Finding, error, warning
from ddplaunch.launch.gpus import GIB, IDLE_MEMORY_BYTES, IDLE_MEMORY_SHARE
from ddplaunch.launch.plan import Launch
from ddplaunch.launch.visible_gpus import VisibleGpu
from ddplaunch.probes.facts import Gpu, GpuProcess, HostFacts, NvmlFacts
from ddplaunch.values import Unavailable

# Above this share another job is at work; below, it is a notebook or a monitor that keeps a CUDA context.
_SERIOUS_SHARE = 0.1


def gpu_busy(
    nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None = None, host: HostFacts | None = None
) -> Iterator[Finding]:
    """Another process holds memory of a GPU that the launch would use.

    Two jobs on one GPU run out of memory or halve each other's speed, and a data-parallel job waits for its slowest
    GPU. An orphan is a rank whose torchrun died without ending it: nobody will. A launch is refused where another
    process holds more than a tenth of the memory, or an orphan anything; `--gpus free:N` picks idle GPUs.
    """
    used = used_gpus(nvml, environment, launch)
    busy = [(entry, words) for entry in used if (words := _holders(entry))]
    if not busy:
        return
    entries = [entry for entry, _ in busy]
    orphans = {process.pid: process.user for entry in entries for process in _processes(entry.gpu) if process.orphan}
    serious = bool(orphans) or any(_share_held(entry.gpu) >= _SERIOUS_SHARE for entry in entries)
    pool = used if launch is None else seen_by_ranks(nvml, environment, launch).entries
    idle = sum(not _holders(entry) and entry.gpu.fault is None for entry in pool)
    fix = _way_out(idle, launch.topology.nproc_per_node.value if launch else idle)
    if orphans:
        fix = f"{_end_orphans(orphans, host)}; or {fix}"
    first, words = busy[0]
    others = f", and {len(busy) - 1} more of {len(used)}" if len(busy) > 1 else ""
    yield (error if serious else warning)(
        "gpu-busy",
        f"{gpu_word(first)} is in use by {words}{others}",
        why="two jobs on one GPU run out of memory or slow each other down, and every rank waits for the slowest",
        fix=fix,
        where=tuple(f"{gpu_word(entry)}: {words}" for entry, words in busy),
    )


def gpu_exclusive_mode(
    nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None = None
) -> Iterator[Finding]:
    """The compute mode of a GPU keeps processes out.

    In mode "prohibited" no CUDA program may use the GPU. In an exclusive mode one process may, so a GPU that has one
    answers the next with "CUDA-capable device(s) is/are busy or unavailable". Site administrators set these modes.
    """
    for entry in used_gpus(nvml, environment, launch):
        mode, processes = entry.gpu.compute_mode, _processes(entry.gpu)
        if isinstance(mode, Unavailable):
            continue
        if mode == "prohibited":
            what = f"{gpu_word(entry)} is in compute mode prohibited"
        elif mode.startswith("exclusive") and processes:
            what = f"{gpu_word(entry)} is in compute mode {mode} and taken by {_process(processes[0])}"
        else:
            continue
        yield error(
            "gpu-exclusive-mode",
            what,
            why='CUDA answers with "CUDA-capable device(s) is/are busy or unavailable"',
            fix=f"choose other GPUs with `--gpus`, or `sudo nvidia-smi -i {indices([entry])} -c DEFAULT`",
            where=gpu_word(entry),
        )


def _way_out(idle: int, wanted: int) -> str:
    if not idle:
        return "wait: no GPU is idle"
    number = min(idle, wanted)
    return f"take idle ones with `ddplaunch run {number} --gpus free:{number} …`, or wait"


def _end_orphans(users: Mapping[int, str | None], host: HostFacts | None) -> str:
    """Return who can end these processes, and how; ``users`` is by pid."""
    pids = ", ".join(f"pid {pid}" for pid in sorted(users))
    owners = sorted({user for user in users.values() if user is not None})
    if host is None or not owners or host.user in owners:
        return f"`ddplaunch clean` ends what a dead launcher left ({pids})"
    return f"ask {' and '.join(owners)} to run `ddplaunch clean`, which ends what a dead launcher left ({pids})"


def _processes(gpu: Gpu) -> tuple[GpuProcess, ...]:
    return () if isinstance(gpu.processes, Unavailable) else gpu.processes


def _holders(entry: VisibleGpu) -> str:
    """Return who holds memory, in words; empty if nobody does or it cannot be told for a MIG instance."""
    gpu = entry.gpu
    if entry.mig is not None or gpu.mig_enabled is True or gpu.fault is not None:
        return ""
    if processes := _processes(gpu):
        return "; ".join(_process(process) for process in processes)
    used = gpu.memory_used_bytes
    if isinstance(used, Unavailable) or used < IDLE_MEMORY_BYTES or _share_held(gpu) < IDLE_MEMORY_SHARE:
        return ""
    return f"a process that is not visible from here ({used / GIB:.1f} GiB)"


def _share_held(gpu: Gpu) -> float:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if isinstance(used, Unavailable) or isinstance(total, Unavailable) or total <= 0:
        return 1.0
    return used / total


def _process(process: GpuProcess) -> str:
    words = [f"pid {process.pid}"]
    if process.user:
        words.append(f"of {process.user}")
    if process.command:
        words.append(f"`{process.command}`")
    details = [] if process.memory_bytes is None else [f"{process.memory_bytes / GIB:.1f} GiB"]
    details += ["orphaned rank of a dead launcher"] if process.orphan else []
    return " ".join(words) + (f" ({', '.join(details)})" if details else "")


CHECKS: tuple[Check, ...] = (declare("gpu", gpu_busy), declare("gpu", gpu_exclusive_mode))
