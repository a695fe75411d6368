"""What the kernel says of NVIDIA GPUs without NVML; refuses to load a library or to say what it means."""

from __future__ import annotations

import re
from pathlib import Path

from ddplaunch.probes.facts import NvidiaFacts

_NVIDIA = "0x10de"
# PCI base class 03, display: VGA (00) as on workstation cards, 3D controller (02) as on data-centre cards.
_GPU_CLASSES = ("0x0300", "0x0302")
_MODULE_VERSION = re.compile(r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)?)\s")


def probe_nvidia(nvml_error: str | None = None, root: Path = Path("/")) -> NvidiaFacts:
    """Count GPUs on the PCI bus and device nodes under ``root``; ``nvml_error`` is handed through."""
    return NvidiaFacts(
        pci_gpus=_pci_gpus(root / "sys/bus/pci/devices"),
        kernel_module_version=_module_version(root / "proc/driver/nvidia/version"),
        device_nodes=_device_nodes(root / "dev"),
        nvml_error=nvml_error,
    )


def _pci_gpus(devices: Path) -> int:
    try:
        entries = sorted(devices.iterdir())
    except OSError:
        return 0
    return sum(_read(entry / "vendor") == _NVIDIA and _read(entry / "class")[:6] in _GPU_CLASSES for entry in entries)


def _module_version(path: Path) -> str | None:
    match = _MODULE_VERSION.search(_read(path) + "\n")
    return match.group(1) if match else None


def _device_nodes(directory: Path) -> int:
    try:
        return sum(re.fullmatch(r"nvidia[0-9]+", entry.name) is not None for entry in directory.iterdir())
    except OSError:
        return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
