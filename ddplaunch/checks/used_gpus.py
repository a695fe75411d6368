"""Which GPUs a launch would use, for the checks that must not blame the others; refuses to find fault itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddplaunch.launch.plan import Launch
from ddplaunch.launch.visible_gpus import VisibleGpu, VisibleGpus, visible
from ddplaunch.probes.facts import NvidiaFacts, NvmlFacts

_DECIDED_BY_US = ("default", "detected", "computed")


def cpu_was_chosen(environment: Mapping[str, str], launch: Launch | None) -> bool:
    """Whether somebody decided that no GPU is used: by ``--device cpu`` or by hiding them all.

    A launch that fell back to the CPU on its own is no such decision.
    """
    if environment.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return launch is None or launch.device.value == "cpu"
    if launch is None or launch.device.value != "cpu":
        return False
    return launch.device.source.kind not in _DECIDED_BY_US


def seen_by_ranks(nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None) -> VisibleGpus:
    """Return what CUDA shows the ranks of a CUDA launch, or a program of the user where there is no such launch."""
    values = dict(environment)
    # A launch on the CPU hides the GPUs itself; what the user's own value would show is then the question.
    if launch is not None and launch.device.value == "cuda":
        for variable in launch.environment:
            values.pop(variable.name, None)
            if variable.value is not None:
                values[variable.name] = variable.value
    return visible(nvml, values.get("CUDA_VISIBLE_DEVICES"), values.get("CUDA_DEVICE_ORDER"))


def used_gpus(nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None) -> tuple[VisibleGpu, ...]:
    """Return the devices of this launch's ranks on this node; without a launch, every GPU of the machine."""
    if launch is None:
        return tuple(VisibleGpu(str(gpu.index), gpu) for gpu in nvml.gpus)
    if launch.device.value == "cpu":
        return ()
    return seen_by_ranks(nvml, environment, launch).entries[: launch.topology.nproc_per_node.value]


def present_gpus(nvidia: NvidiaFacts | None, nvml: NvmlFacts | None) -> int:
    """Return how many NVIDIA GPUs this machine offers, by NVML or else by the PCI bus.

    A container that was started without GPUs shows the host's PCI bus and kernel module, but has no device node.
    """
    if nvml is not None:
        return len(nvml.gpus)
    if nvidia is None or (nvidia.kernel_module_version and not nvidia.device_nodes):
        return 0
    return nvidia.pci_gpus


def counted(number: int, noun: str = "GPU") -> str:
    """Return "1 GPU", "2 GPUs"; the plural of a noun in -s adds -es."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def gpu_word(entry: VisibleGpu) -> str:
    """Return "GPU 3", by the index that ``nvidia-smi`` shows."""
    return f"GPU {entry.gpu.index}"


def indices(entries: Iterable[VisibleGpu]) -> str:
    """Return "0,3", ready for ``nvidia-smi -i``."""
    return ",".join(str(entry.gpu.index) for entry in entries)


def choice(entries: Iterable[VisibleGpu], environment: Mapping[str, str]) -> str:
    """Return what ``--gpus`` takes for these: indices, or UUIDs where CUDA_VISIBLE_DEVICES makes indices relative."""
    if "CUDA_VISIBLE_DEVICES" in environment:
        return ",".join(entry.uuid for entry in entries)
    return indices(entries)
