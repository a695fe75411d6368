"""The GPUs of a launch: those that CUDA_VISIBLE_DEVICES shows, and those that ``--gpus`` picks (``select``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddplaunch.machine.facts import Gpu, GpuProcess, MigDevice, NvmlFacts
from ddplaunch.values.finding import RefusedError, UsageError, error
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Source, Unavailable
from ddplaunch.values.words import count, size_text

# CUDA reads an entry as strtoul does: blanks, a sign, digits; it ignores the rest (`1x` is 1).
# torch does the same in torch/cuda/__init__.py, _parse_visible_devices.
_NUMBER = re.compile(r"\s*([+-]?)([0-9]{1,9})(?![0-9])", re.ASCII)

GIB = 2**30
# A GPU counts as idle below these limits; a display or a monitoring tool alone does not reach them.
IDLE_MEMORY_SHARE = 0.05
IDLE_MEMORY_BYTES = GIB
IDLE_UTILIZATION_PERCENT = 10
# Differences smaller than this are noise and must not scramble the order of GPUs.
_SAME_MEMORY_BYTES = 256 * 2**20

SHELL = "the shell's environment"
CUDA_VISIBLE, HIP_VISIBLE = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
_DUPLICATE = "CUDA shows no GPU at all if one is named twice"
_EXAMPLES = "`--gpus 0,1,3`, `--gpus free:4` or a list of UUIDs from `nvidia-smi -L`"


@dataclass(frozen=True)
class VisibleGpu:
    """One device; ``text`` is its entry in CUDA_VISIBLE_DEVICES, ``mig`` the MIG instance if the GPU is split."""

    text: str
    gpu: Gpu
    mig: MigDevice | None = None

    @property
    def uuid(self) -> str:
        """The device's own UUID; empty if a lost GPU did not report it."""
        return self.mig.uuid if self.mig else self.gpu.uuid

    @property
    def split(self) -> bool:
        """Whether this is a whole GPU that MIG splits: CUDA then sees its instances, not the GPU itself."""
        return self.mig is None and self.gpu.mig_enabled is True

    @property
    def instances(self) -> tuple[VisibleGpu, ...]:
        """The MIG instances of a split GPU; empty for any other device."""
        return tuple(VisibleGpu(mig.uuid, self.gpu, mig) for mig in self.gpu.mig_devices) if self.split else ()


@dataclass(frozen=True)
class VisibleGpus:
    """The GPUs that a CUDA process sees. ``named`` are the listed devices in CUDA's order.

    ``unknown``: entries that name no device, or that are bad for the reason in parentheses ("0 (duplicate)").
    ``unread``: entries after the first bad one, where CUDA stops reading.
    """

    named: tuple[VisibleGpu, ...]
    unknown: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[VisibleGpu, ...]:
        """The named devices, with split GPUs replaced by their instances."""
        return tuple(device for entry in self.named for device in (entry.instances if entry.split else (entry,)))

    @property
    def entries(self) -> tuple[VisibleGpu, ...]:
        """The devices that a process sees: if there are MIG instances, only the first one."""
        return next(((device,) for device in self.devices if device.mig is not None), self.devices)


def cuda_visible(nvml: NvmlFacts, cuda_visible_devices: str | None, device_order: str | None) -> VisibleGpus:
    """Return the GPUs of a machine as CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER (None: not set) show them.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/#cuda-visible-devices
    """
    ordered = _in_cuda_order(nvml.gpus, device_order)
    if cuda_visible_devices is None:
        return VisibleGpus(tuple(VisibleGpu(str(gpu.index), gpu) for gpu in ordered))
    named: list[VisibleGpu] = []
    texts = [text.strip() for text in cuda_visible_devices.split(",")] if cuda_visible_devices.strip() else []
    by_uuid = bool(texts) and texts[0].startswith(("GPU-", "MIG-"))
    for position, text in enumerate(texts):
        unread = tuple(texts[position + 1 :])
        match = _NUMBER.match(text)
        if not by_uuid and match is not None and match[1] == "-":  # `-1` ends the list on purpose
            return VisibleGpus(tuple(named), (), unread)
        matching = _by_uuid(nvml.gpus, text) if by_uuid else _by_index(ordered, match)
        if matching is None:
            return VisibleGpus(tuple(named), (text,), unread)
        if any((earlier.gpu, earlier.mig) == (matching.gpu, matching.mig) for earlier in named):
            return VisibleGpus((), (f"{text} (duplicate)",), unread)  # CUDA then shows no GPU
        named.append(matching)
    return VisibleGpus(tuple(named))


def shown_gpus(nvml: NvmlFacts, within: Exported) -> VisibleGpus:
    """Return those of a machine's GPUs that the ranks see.

    ROCR_VISIBLE_DEVICES hides AMD GPUs from HIP, which numbers the remaining ones:
    https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html
    """
    if within.below is not None:
        nvml = replace(nvml, gpus=tuple(entry.gpu for entry in cuda_visible(nvml, within.below, "PCI_BUS_ID").entries))
    return cuda_visible(nvml, within.devices, within.order)


def _in_cuda_order(gpus: tuple[Gpu, ...], device_order: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs in CUDA's order, by default the fastest first; CUDA reports no speed, so it is guessed."""
    if device_order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) < 2:
        return gpus
    return tuple(sorted(gpus, key=_speed, reverse=True))


def _speed(gpu: Gpu) -> tuple[tuple[int, int], int]:
    capability = (0, 0) if isinstance(gpu.compute_capability, Unavailable) else gpu.compute_capability
    return capability, 0 if isinstance(gpu.memory_total_bytes, Unavailable) else gpu.memory_total_bytes


def _by_index(gpus: tuple[Gpu, ...], match: re.Match[str] | None) -> VisibleGpu | None:
    if match is None or int(match[2]) >= len(gpus):
        return None
    return VisibleGpu(str(int(match[2])), gpus[int(match[2])])


def _by_uuid(gpus: tuple[Gpu, ...], text: str) -> VisibleGpu | None:
    """Return the one device whose UUID begins with ``text``; None if no device or several do."""
    matching: list[VisibleGpu] = []
    if text.startswith("GPU-"):
        matching = [VisibleGpu(text, gpu) for gpu in gpus if gpu.uuid.startswith(text)]
    elif text.startswith("MIG-"):
        matching = [VisibleGpu(text, gpu, mig) for gpu in gpus for mig in gpu.mig_devices if mig.uuid.startswith(text)]
    return matching[0] if len(matching) == 1 else None


@dataclass(frozen=True)
class Exported:
    """The GPUs that the ranks would see without ``--gpus``: the list ``devices`` (None: not set), and who set it.

    ``name`` is the variable of the list, CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES; ``order`` is the ranks'
    CUDA_DEVICE_ORDER, which ddplaunch sets unless the user has. ``below`` is ROCR_VISIBLE_DEVICES: HIP sees only the
    AMD GPUs in it.
    """

    devices: str | None = None
    by: str = SHELL
    order: str = "PCI_BUS_ID"
    name: str = CUDA_VISIBLE
    below: str | None = None

    def __str__(self) -> str:
        return f"{self.name}={self.devices} from {self.by}"


def exported(
    environ: Mapping[str, str],
    pairs: Sequence[tuple[str, str, Source]],
    nvml: NvmlFacts | Unavailable | None = None,
) -> Exported:
    """Return which GPUs ``environ`` and ``pairs``, the variables of ``--env``, let the ranks see.

    HIP reads HIP_VISIBLE_DEVICES if it is set, else CUDA_VISIBLE_DEVICES, as torch does (torch/cuda/__init__.py).
    """
    named = {name: (value, said_by(source)) for name, value, source in pairs}

    def said(name: str) -> tuple[str | None, str]:
        return named.get(name, (environ.get(name), set_by(name, environ)))

    if isinstance(nvml, NvmlFacts) and nvml.vendor == "amd":
        name = HIP_VISIBLE if said(HIP_VISIBLE)[0] is not None else CUDA_VISIBLE
        return Exported(*said(name), "PCI_BUS_ID", name, said("ROCR_VISIBLE_DEVICES")[0])
    return Exported(*said(CUDA_VISIBLE), said("CUDA_DEVICE_ORDER")[0] or "PCI_BUS_ID")


def set_by(name: str, environ: Mapping[str, str]) -> str:
    """Return who set a variable of ``environ``, worded to follow "from".

    Slurm set the list if another of its variables repeats it, or if it counts from 0 because a cgroup hides other GPUs:
    https://slurm.schedmd.com/gres.html#GPU_Management
    """
    if name == "CUDA_VISIBLE_DEVICES" and "SLURM_JOB_ID" in environ:
        number = environ.get("SLURM_GPUS_ON_NODE", "")
        lists = [environ.get(variable) for variable in ("GPU_DEVICE_ORDINAL", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")]
        lists += [",".join(map(str, range(int(number))))] if re.fullmatch(r"[0-9]{1,4}", number, re.ASCII) else []
        if environ.get(name) in lists:
            return "Slurm"
    return SHELL


def said_by(source: Source) -> str:
    """Return who set a variable of a launch, worded to follow "from": a flag, a profile, Slurm."""
    if source.kind == "flag" and source.detail:
        return f"`{source.detail}`"
    return source.detail if source.kind == "profile" else source.kind


@dataclass(frozen=True)
class Selection:
    """The GPUs that ``--gpus`` selected, in the order of ranks. ``notes`` are clauses that a plan should show."""

    entries: tuple[VisibleGpu, ...]
    notes: tuple[str, ...] = ()


def select(requested: str, nvml: NvmlFacts, within: Exported, locked: frozenset[str], need: int | None) -> Selection:
    """Return the GPUs for ``--gpus``: indices, UUIDs (or unique prefixes), ``free:N``, or ``free`` for ``need`` GPUs.

    Only GPUs that CUDA_VISIBLE_DEVICES shows (``within``) are chosen; ``_numbered`` explains how indices count.
    ``locked`` are UUIDs held by other launches. Raises UsageError ``gpus-invalid``, RefusedError ``gpu-not-found``,
    ``gpus-too-few`` or ``gpus-not-free``.
    """
    visible_gpus = shown_gpus(nvml, within)
    text = requested.strip()
    if text == "free" or text.startswith("free:"):
        whole = tuple(entry for entry in visible_gpus.named if entry.mig is None and not entry.split)
        selected = _free(whole or visible_gpus.devices, _wanted(text, requested, need), locked)
        note = "" if within.devices is None else f"`--gpus` chooses within {within}"
    else:
        parts = _parts(text)
        numbered, note = _numbered([int(part) for part in parts if part.isdigit()], visible_gpus.named, within)
        selected = tuple(_named(part, requested, visible_gpus.named, numbered, within) for part in parts)
    if len({entry.uuid or entry.text for entry in selected}) < len(selected):
        raise _invalid(requested, "a GPU is named twice", _DUPLICATE)
    # CUDA reads a list as indices or as UUIDs, never both; and indices mean other GPUs if the user changed the order
    if (
        within.order != "PCI_BUS_ID"
        or within.below is not None
        or len({entry.text.isdigit() for entry in selected}) > 1
    ):
        selected = tuple(replace(entry, text=entry.uuid or entry.text) for entry in selected)
    return Selection(selected, (note,) if note else ())


def _numbered(
    numbers: Sequence[int], pool: Sequence[VisibleGpu], within: Exported
) -> tuple[Mapping[int, VisibleGpu], str]:
    """Return the GPU for each number and, if CUDA_VISIBLE_DEVICES is set, a clause on how the numbers count.

    They are nvidia-smi's numbers if CUDA_VISIBLE_DEVICES shows all of these GPUs, and otherwise positions in its list,
    as the ranks themselves count.
    """
    by_smi = {entry.gpu.index: entry for entry in pool if entry.mig is None}
    by_position = dict(enumerate(pool))
    if within.devices is None:
        return by_smi, ""
    if not numbers:
        return by_smi, f"`--gpus` chooses within {within}"
    if set(numbers) <= by_smi.keys():
        note = f"`--gpus` counts as nvidia-smi does, within {within}"
        if set(numbers) <= by_position.keys() and any(by_position[number] != by_smi[number] for number in numbers):
            note += f"; by position there it would be {','.join(_label(by_position[number]) for number in numbers)}"
        return by_smi, note
    if set(numbers) <= by_position.keys():
        labels = ",".join(_label(by_position[number]) for number in numbers)
        return by_position, f"`--gpus` counts positions in {within}; nvidia-smi's numbers are {labels}"
    return by_smi, ""


def _label(entry: VisibleGpu) -> str:
    """Return how ``--gpus`` names a device: by nvidia-smi's number, or a MIG instance by its UUID."""
    return str(entry.gpu.index) if entry.mig is None else entry.uuid


def busy_reason(entry: VisibleGpu, locked: frozenset[str]) -> str | None:
    """Return a clause on why a device is not idle, or None if it is idle."""
    gpu = entry.gpu
    if gpu.fault is not None:
        return f"does not answer: {gpu.fault}"
    if entry.uuid in locked:
        return "held by another ddplaunch launch"
    if gpu.compute_mode == "prohibited":
        return "its compute mode is prohibited"
    if not isinstance(gpu.processes, Unavailable) and gpu.processes:
        return "; ".join(_process(process) for process in gpu.processes)
    return None if entry.mig is not None else _busy_by_numbers(gpu)  # not reported per MIG instance


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
    command = process.command and f"`{process.command}`"
    orphan = "orphaned worker" if process.orphan else ""
    words = (f"pid {process.pid}", process.user, command, size_text(process.memory_bytes), orphan)
    return ", ".join(word for word in words if word)


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
    finding = error(
        "gpus-invalid", f"`--gpus {requested}`: {what}", why=why, fix=f"use {_EXAMPLES}", where="flag: --gpus"
    )
    return UsageError(finding)


def _named(
    part: str, requested: str, pool: tuple[VisibleGpu, ...], numbered: Mapping[int, VisibleGpu], within: Exported
) -> VisibleGpu:
    """Return the device that ``part`` names; for a split GPU its first instance, as CUDA does."""
    if part.isdigit():
        matching = [numbered[int(part)]] if int(part) in numbered else []
    else:
        devices = [device for entry in pool for device in (entry, *entry.instances)]
        matching = [replace(device, text=part) for device in devices if device.uuid.startswith(part)]
    if len(matching) != 1:
        raise _not_found(part, requested, pool, within)
    return next(iter(matching[0].instances), matching[0])


def _not_found(part: str, requested: str, pool: tuple[VisibleGpu, ...], within: Exported) -> RefusedError:
    place = "on this machine" if within.devices is None else f"within {within}"
    if not pool:
        what, fix = f"there is no GPU {place}", "run without `--gpus`, with `--device cpu`"
    else:
        devices = (f"{entry.gpu.index} ({entry.gpu.name}, {entry.uuid})" for entry in pool)
        several = sum(entry.uuid.startswith(part) for entry in pool) > 1
        problem = "names several GPUs" if several else f"names no GPU {place}"
        what = f"`--gpus {requested}`: `{part}` {problem}; there {_are(len(pool))} {', '.join(devices)}"
        fix = f"use `--gpus {','.join(map(_label, pool))}` or fewer of them"
        fix += "" if within.devices is None else ", as nvidia-smi counts"
    return RefusedError(
        error("gpu-not-found", what, why="CUDA ignores an entry that names no GPU, and all entries after it", fix=fix)
    )


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _free(entries: tuple[VisibleGpu, ...], need: int | None, locked: frozenset[str]) -> tuple[VisibleGpu, ...]:
    """Return the ``need`` idle GPUs with the least memory used, in PCI order; all idle ones if ``need`` is None."""
    busy = {position: busy_reason(entry, locked) for position, entry in enumerate(entries)}
    idle = [position for position, reason in busy.items() if reason is None]
    most = len(idle) if need is None else need
    if len(entries) < most:
        few = count(len(entries), "GPU")
        raise RefusedError(
            error(
                "gpus-too-few",
                f"{count(most, 'free GPU')} asked for, and there {_are(len(entries))} {few}",
                why="waiting gives no more",
                fix=f"`--gpus free:{len(entries)}` or fewer" if entries else "`--device cpu`, or a machine with GPUs",
            )
        )
    if len(idle) < max(most, 1):
        raise _not_free(entries, {p: reason for p, reason in busy.items() if reason}, len(idle), max(most, 1))
    chosen = sorted(idle, key=lambda position: (_memory_step(entries[position].gpu), position))[:most]
    return tuple(entries[position] for position in sorted(chosen))


def _memory_step(gpu: Gpu) -> int:
    return 0 if isinstance(gpu.memory_used_bytes, Unavailable) else gpu.memory_used_bytes // _SAME_MEMORY_BYTES


def _not_free(entries: tuple[VisibleGpu, ...], busy: dict[int, str], idle: int, need: int) -> RefusedError:
    what = f"{count(need, 'free GPU')} asked for, {idle} of {len(entries)} {_are(idle)} free"
    least = f"wait, or ask for `--gpus free:{idle}`" if idle else "wait for a GPU to become free"
    if len(entries) >= need:
        named = ",".join(_label(entry) for entry in entries[:need])
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
