"""Which GPUs ``--gpus`` means; refuses to look at the machine, to take locks, or to start anything."""

from __future__ import annotations

import re
from dataclasses import replace

from ddplaunch.errors import RefusedError, UsageError
from ddplaunch.finding import error
from ddplaunch.frozen import dataclass
from ddplaunch.launch.visible_gpus import VisibleGpu, VisibleGpus, visible
from ddplaunch.probes.facts import Gpu, GpuProcess, NvmlFacts
from ddplaunch.values import Unavailable

__all__ = ["Selection", "VisibleGpu", "VisibleGpus", "busy_reason", "select", "visible"]

GIB = 2**30
# A GPU counts as idle below these; a display or a monitoring tool alone stays under them.
IDLE_MEMORY_SHARE = 0.05
IDLE_MEMORY_BYTES = GIB
IDLE_UTILIZATION_PERCENT = 10
# Differences smaller than this are noise and must not scramble the order of GPUs.
_SAME_MEMORY_BYTES = 256 * 2**20

_DUPLICATE = "CUDA shows no GPU at all if one is named twice"
_EXAMPLES = "`--gpus 0,1,3`, `--gpus free:4` or a list of UUIDs from `nvidia-smi -L`"


@dataclass(frozen=True)
class Selection:
    """What ``--gpus`` resolved to, in the order of ranks. ``notes`` are clauses that a plan should show."""

    entries: tuple[VisibleGpu, ...]
    notes: tuple[str, ...] = ()

    @property
    def cuda_visible_devices(self) -> str:
        """The value for CUDA_VISIBLE_DEVICES, valid together with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
        return ",".join(entry.text for entry in self.entries)

    @property
    def uuids(self) -> tuple[str, ...]:
        """What to lock; a lost GPU without a UUID is left out."""
        return tuple(entry.uuid for entry in self.entries if entry.uuid)


def select(
    requested: str, nvml: NvmlFacts, environ_visible: str | None, locked: frozenset[str], need: int | None
) -> Selection:
    """Resolve ``--gpus``: indices, UUIDs (or their unique beginnings), ``free:N``, or ``free`` for ``need`` of them.

    Indices count in PCI order, within CUDA_VISIBLE_DEVICES if that is set. ``locked`` are UUIDs that other launches
    hold. Raises UsageError ``gpus-invalid``, RefusedError ``gpu-not-found`` or ``gpus-not-free``.
    """
    shown = visible(nvml, environ_visible, "PCI_BUS_ID")
    notes = () if environ_visible is None else (f"`--gpus` counts within CUDA_VISIBLE_DEVICES={environ_visible}",)
    text = requested.strip()
    if text == "free" or text.startswith("free:"):
        whole = tuple(entry for entry in shown.named if entry.mig is None and entry.gpu.mig_enabled is not True)
        candidates = whole or shown.entries + shown.hidden_by_mig
        return Selection(_free(candidates, _wanted(text, requested, need), locked), notes)
    found = tuple(_named(part, requested, shown.named, environ_visible) for part in _parts(text))
    if len({entry.uuid or entry.text for entry in found}) < len(found):
        raise _invalid(requested, "a GPU is named twice", _DUPLICATE)
    if len({entry.text.isdigit() for entry in found}) > 1:  # CUDA reads a list as indices or as UUIDs, never both
        found = tuple(replace(entry, text=entry.uuid or entry.text) for entry in found)
    return Selection(found, notes)


def busy_reason(entry: VisibleGpu, locked: frozenset[str]) -> str | None:
    """Say in a clause what keeps a device from being idle, or None if it is."""
    gpu = entry.gpu
    if gpu.fault is not None:
        return f"does not answer: {gpu.fault}"
    if entry.uuid in locked:
        return "held by another ddplaunch launch"
    if gpu.compute_mode == "prohibited":
        return "its compute mode is prohibited"
    if not isinstance(gpu.processes, Unavailable) and gpu.processes:
        return "; ".join(_process(process) for process in gpu.processes)
    return None if entry.mig is not None else _busy_by_numbers(gpu)  # these are not told per MIG instance


def _busy_by_numbers(gpu: Gpu) -> str | None:
    used, total, load = gpu.memory_used_bytes, gpu.memory_total_bytes, gpu.utilization_percent
    if not isinstance(used, Unavailable) and used >= IDLE_MEMORY_BYTES:
        share = 1.0 if isinstance(total, Unavailable) or total <= 0 else used / total
        if share >= IDLE_MEMORY_SHARE:
            return f"{used / GIB:.1f} GiB used, by a process that is not visible from here"
    if not isinstance(load, Unavailable) and load >= IDLE_UTILIZATION_PERCENT:
        return f"{load} % utilisation, by a process that is not visible from here"
    return None


def _process(process: GpuProcess) -> str:
    words = [f"pid {process.pid}"]
    words += [process.user] if process.user else []
    words += [f"`{process.command}`"] if process.command else []
    words += [f"{process.memory_bytes / GIB:.1f} GiB"] if process.memory_bytes is not None else []
    words += ["orphaned worker"] if process.orphan else []
    return ", ".join(words)


def _parts(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not re.fullmatch(r"[0-9]{1,4}|(GPU|MIG)-[0-9A-Za-z/-]+", part, re.ASCII):
            raise _invalid(text, f"`{part}` is neither an index nor a UUID" if part else "an entry is empty")
    return parts


def _wanted(text: str, requested: str, need: int | None) -> int | None:
    if text == "free":
        return need
    number = text.removeprefix("free:").strip()
    if not re.fullmatch(r"[0-9]{1,4}", number, re.ASCII) or int(number) == 0:
        raise _invalid(requested, f"`{number}` is not a number of GPUs" if number else "no number follows `free:`")
    return int(number)


def _invalid(requested: str, what: str, why: str = "the option takes indices, UUIDs or `free:N`") -> UsageError:
    finding = error("gpus-invalid", f"`--gpus {requested}`: {what}", why=why, fix=f"use {_EXAMPLES}", where="--gpus")
    return UsageError(finding)


def _named(part: str, requested: str, pool: tuple[VisibleGpu, ...], environ_visible: str | None) -> VisibleGpu:
    if part.isdigit():
        if int(part) < len(pool):
            return _usable(pool[int(part)])
    else:
        found = [device for entry in pool for device in _devices(entry) if device.uuid.startswith(part)]
        if len(found) == 1:
            return _usable(replace(found[0], text=part))
    raise _not_found(part, requested, pool, environ_visible)


def _devices(entry: VisibleGpu) -> tuple[VisibleGpu, ...]:
    """Return the entry and, if it is a whole GPU, every instance that it is split into."""
    instances = entry.gpu.mig_devices if entry.mig is None else ()
    return (entry, *(VisibleGpu(mig.uuid, entry.gpu, mig) for mig in instances))


def _usable(entry: VisibleGpu) -> VisibleGpu:
    """Return the first instance of a split GPU, which is what CUDA takes, and any other device as it is."""
    if entry.mig is None and entry.gpu.mig_enabled is True and entry.gpu.mig_devices:
        return _devices(entry)[1]
    return entry


def _not_found(part: str, requested: str, pool: tuple[VisibleGpu, ...], environ_visible: str | None) -> RefusedError:
    within = "on this machine" if environ_visible is None else f"within CUDA_VISIBLE_DEVICES={environ_visible}"
    if not pool:
        what, fix = f"there is no GPU {within}", "run without `--gpus`, with `--device cpu`"
    else:
        devices = (f"{position} ({entry.gpu.name}, {entry.uuid})" for position, entry in enumerate(pool))
        several = sum(entry.uuid.startswith(part) for entry in pool) > 1
        problem = "names several GPUs" if several else f"names no GPU {within}"
        what = f"`--gpus {requested}`: `{part}` {problem}; there {_are(len(pool))} {', '.join(devices)}"
        fix = f"use `--gpus {','.join(str(number) for number in range(len(pool)))}` or fewer of them"
    return RefusedError(
        error("gpu-not-found", what, why="CUDA ignores an entry that names nothing and all behind it", fix=fix)
    )


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _free(entries: tuple[VisibleGpu, ...], wanted: int | None, locked: frozenset[str]) -> tuple[VisibleGpu, ...]:
    """Take the idle GPUs with the least memory used, in PCI order; all idle ones if no number is wanted."""
    busy = {position: busy_reason(entry, locked) for position, entry in enumerate(entries)}
    idle = [position for position, reason in busy.items() if reason is None]
    most = len(idle) if wanted is None else wanted
    if len(idle) < max(most, 1):
        raise _not_free(entries, {p: reason for p, reason in busy.items() if reason}, len(idle), max(most, 1))
    chosen = sorted(idle, key=lambda position: (_memory_step(entries[position].gpu), position))[:most]
    return tuple(entries[position] for position in sorted(chosen))


def _memory_step(gpu: Gpu) -> int:
    return 0 if isinstance(gpu.memory_used_bytes, Unavailable) else gpu.memory_used_bytes // _SAME_MEMORY_BYTES


def _not_free(entries: tuple[VisibleGpu, ...], busy: dict[int, str], idle: int, wanted: int) -> RefusedError:
    plural = "GPU" if wanted == 1 else "GPUs"
    what = f"{wanted} free {plural} asked for, {idle} of {len(entries)} {_are(idle)} free"
    least = f"wait, or ask for `--gpus free:{idle}`" if idle else "wait for a GPU to become free"
    if len(entries) >= wanted:
        named = ",".join(str(number) for number in range(wanted))
        least += f"; to share GPUs all the same, name them: `--gpus {named}`"
    return RefusedError(
        error(
            "gpus-not-free",
            what,
            why="a second job on a GPU runs out of memory or halves the speed of both",
            fix=least,
            where=tuple(f"GPU {entries[position].gpu.index}: {reason}" for position, reason in busy.items()),
        )
    )
