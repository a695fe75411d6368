"""Which GPUs CUDA would show for a value of CUDA_VISIBLE_DEVICES; refuses to look at the machine or to choose."""

from __future__ import annotations

import re

from ddplaunch.frozen import dataclass
from ddplaunch.probes.facts import Gpu, MigDevice, NvmlFacts
from ddplaunch.values import Unavailable

# CUDA reads an entry as strtoul does: blanks, a sign, digits, and whatever follows is ignored (`1x` is 1).
# torch does the same in torch/cuda/__init__.py, _parse_visible_devices.
_NUMBER = re.compile(r"\s*([+-]?)([0-9]{1,9})(?![0-9])", re.ASCII)


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
        return _with_mig([_whole(gpu, str(gpu.index)) for gpu in ordered], order_guessed=guessed)
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


def _whole(gpu: Gpu, text: str) -> VisibleGpu:
    return VisibleGpu(text, gpu)


def _by_index(gpus: tuple[Gpu, ...], match: re.Match[str] | None) -> VisibleGpu | None:
    if match is None or int(match[2]) >= len(gpus):
        return None
    return _whole(gpus[int(match[2])], str(int(match[2])))


def _by_uuid(gpus: tuple[Gpu, ...], text: str) -> VisibleGpu | None:
    """Find the one device whose UUID begins with ``text``; a beginning that two share names neither."""
    found: list[VisibleGpu] = []
    if text.startswith("GPU-"):
        found = [_whole(gpu, text) for gpu in gpus if gpu.uuid.startswith(text)]
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
