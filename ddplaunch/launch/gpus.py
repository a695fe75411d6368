"""The GPUs of a launch: what CUDA shows for CUDA_VISIBLE_DEVICES (``visible``), what ``--gpus`` picks (``select``)."""

from __future__ import annotations

import re
from dataclasses import replace

from ddplaunch.machine.facts import Gpu, GpuProcess, MigDevice, NvmlFacts
from ddplaunch.values.finding import RefusedError, UsageError, error
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import size_text

# CUDA reads an entry as strtoul does: blanks, a sign, digits, and whatever follows is ignored (`1x` is 1).
# torch does the same in torch/cuda/__init__.py, _parse_visible_devices.
_NUMBER = re.compile(r"\s*([+-]?)([0-9]{1,9})(?![0-9])", re.ASCII)

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
class VisibleGpu:
    """One device: ``text`` names it in CUDA_VISIBLE_DEVICES. ``mig`` is the instance where the GPU is split."""

    text: str
    gpu: Gpu
    mig: MigDevice | None = None

    @property
    def uuid(self) -> str:
        """The device's own UUID, empty if a lost GPU did not tell it."""
        return self.mig.uuid if self.mig else self.gpu.uuid


@dataclass(frozen=True)
class VisibleGpus:
    """What a CUDA process sees, in CUDA's order.

    ``unknown``: entries that name nothing; a reason in parentheses follows where it is another one ("0 (duplicate)").
    ``unread``: entries behind the first bad one, which CUDA does not read any more.
    ``hidden_by_mig``: devices that are named but not shown, since a process sees one MIG instance and nothing else.
    ``named``: the devices as they are named, before a split GPU is replaced by its instances.
    ``order_guessed``: models differ and CUDA sorts them by a speed that it does not tell.
    """

    entries: tuple[VisibleGpu, ...]
    unknown: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    hidden_by_mig: tuple[VisibleGpu, ...] = ()
    named: tuple[VisibleGpu, ...] = ()
    order_guessed: bool = False


def visible(nvml: NvmlFacts, cuda_visible_devices: str | None, device_order: str | None) -> VisibleGpus:
    """Apply CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER (None: not set) to the GPUs of a machine.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/#cuda-visible-devices
    """
    ordered, guessed = _in_cuda_order(nvml.gpus, device_order)
    if cuda_visible_devices is None:
        return _with_mig([VisibleGpu(str(gpu.index), gpu) for gpu in ordered], order_guessed=guessed)
    named: list[VisibleGpu] = []
    texts = [text.strip() for text in cuda_visible_devices.split(",")] if cuda_visible_devices.strip() else []
    by_uuid = bool(texts) and texts[0].startswith(("GPU-", "MIG-"))
    for position, text in enumerate(texts):
        match = _NUMBER.match(text)
        if not by_uuid and match is not None and match[1] == "-":  # `-1` ends the list on purpose
            return _with_mig(named, unread=tuple(texts[position + 1 :]), order_guessed=guessed)
        found = _by_uuid(nvml.gpus, text) if by_uuid else _by_index(ordered, match)
        if found is None:
            return _with_mig(named, unknown=(text,), unread=tuple(texts[position + 1 :]), order_guessed=guessed)
        if any((other.gpu, other.mig) == (found.gpu, found.mig) for other in named):
            return VisibleGpus((), (f"{text} (duplicate)",), tuple(texts[position + 1 :]))  # CUDA then shows none
        named.append(found)
    return _with_mig(named, order_guessed=guessed and not by_uuid)


def _in_cuda_order(gpus: tuple[Gpu, ...], device_order: str | None) -> tuple[tuple[Gpu, ...], bool]:
    if device_order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) < 2:
        return gpus, False
    return tuple(sorted(gpus, key=_speed, reverse=True)), True


def _speed(gpu: Gpu) -> tuple[tuple[int, int], int]:
    capability = (0, 0) if isinstance(gpu.compute_capability, Unavailable) else gpu.compute_capability
    return capability, 0 if isinstance(gpu.memory_total_bytes, Unavailable) else gpu.memory_total_bytes


def _by_index(gpus: tuple[Gpu, ...], match: re.Match[str] | None) -> VisibleGpu | None:
    if match is None or int(match[2]) >= len(gpus):
        return None
    return VisibleGpu(str(int(match[2])), gpus[int(match[2])])


def _by_uuid(gpus: tuple[Gpu, ...], text: str) -> VisibleGpu | None:
    """Find the one device whose UUID begins with ``text``; a beginning that two share names neither."""
    found: list[VisibleGpu] = []
    if text.startswith("GPU-"):
        found = [VisibleGpu(text, gpu) for gpu in gpus if gpu.uuid.startswith(text)]
    elif text.startswith("MIG-"):
        found = [VisibleGpu(text, gpu, mig) for gpu in gpus for mig in gpu.mig_devices if mig.uuid.startswith(text)]
    return found[0] if len(found) == 1 else None


def _with_mig(
    named: list[VisibleGpu],
    *,
    unknown: tuple[str, ...] = (),
    unread: tuple[str, ...] = (),
    order_guessed: bool = False,
) -> VisibleGpus:
    """Put MIG instances in the place of split GPUs; if there is any, a process sees the first one only."""
    usable: list[VisibleGpu] = []
    for entry in named:
        if entry.mig is not None or entry.gpu.mig_enabled is not True:
            usable.append(entry)
        else:  # a split GPU without an instance is no CUDA device at all
            usable.extend(VisibleGpu(mig.uuid, entry.gpu, mig) for mig in entry.gpu.mig_devices)
    first = next((entry for entry in usable if entry.mig is not None), None)
    if first is None:
        return VisibleGpus(tuple(usable), unknown, unread, (), tuple(named), order_guessed)
    hidden = tuple(entry for entry in usable if entry is not first)
    return VisibleGpus((first,), unknown, unread, hidden, tuple(named), order_guessed)


@dataclass(frozen=True)
class Selection:
    """What ``--gpus`` resolved to, in the order of ranks. ``notes`` are clauses that a plan should show."""

    entries: tuple[VisibleGpu, ...]
    notes: tuple[str, ...] = ()


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
            return f"{size_text(used)} used, by a process that is not visible from here"
    if not isinstance(load, Unavailable) and load >= IDLE_UTILIZATION_PERCENT:
        return f"{load} % utilisation, by a process that is not visible from here"
    return None


def _process(process: GpuProcess) -> str:
    words = [f"pid {process.pid}"]
    words += [process.user] if process.user else []
    words += [f"`{process.command}`"] if process.command else []
    words += [size_text(process.memory_bytes)] if process.memory_bytes is not None else []
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
