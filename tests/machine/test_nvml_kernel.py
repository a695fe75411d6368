"""What the kernel and /proc tell about GPUs, on made-up trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddplaunch.machine.facts import NvidiaFacts
from ddplaunch.machine.hardware import probe_nvidia
from ddplaunch.machine.processes.orphans import _COMMAND_LENGTH, gpu_process


def pci(root: Path, slot: str, vendor: str, device_class: str) -> None:
    directory = root / "sys/bus/pci/devices" / slot
    directory.mkdir(parents=True)
    (directory / "vendor").write_text(vendor + "\n")
    (directory / "class").write_text(device_class + "\n")


def test_only_gpus_and_their_own_device_nodes_count(tmp_path: Path) -> None:
    assert probe_nvidia(None, tmp_path) == NvidiaFacts(0, None, 0, None)
    pci(tmp_path, "0000:01:00.0", "0x10de", "0x030000")
    pci(tmp_path, "0000:02:00.0", "0x10de", "0x030200")
    pci(tmp_path, "0000:01:00.1", "0x10de", "0x040300")  # the sound part of a graphics card
    pci(tmp_path, "0000:03:00.0", "0x10de", "0x068000")  # an NVSwitch
    pci(tmp_path, "0000:04:00.0", "0x8086", "0x030000")
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / "dev" / name).touch()
    found = probe_nvidia("Driver Not Loaded", tmp_path)
    assert (found.pci_gpus, found.device_nodes, found.nvml_error) == (2, 2, "Driver Not Loaded")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:20:39 UTC 2025",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder)",
    ],
)
def test_version_of_the_kernel_module(tmp_path: Path, line: str) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(f"{line}\nGCC version:  gcc version 12.3.0\n")
    assert probe_nvidia(None, tmp_path).kernel_module_version == "570.124.06"


def process(proc: Path, pid: int, *, parent: int = 1, command: bytes = b"", environment: bytes = b"") -> None:
    directory = proc / str(pid)
    directory.mkdir(parents=True)
    (directory / "cmdline").write_bytes(command)
    (directory / "comm").write_text("name (of) it\n")
    (directory / "stat").write_text(f"{pid} (name (of) it) S {parent} {pid} {pid} 0 -1{' 0' * 13} 4711\n")
    (directory / "environ").write_bytes(environment)


ELASTIC = b"PATH=/bin\0TORCHELASTIC_RUN_ID=none\0"


@pytest.mark.parametrize(
    ("init", "parent", "environment", "orphan"),
    [
        (b"/sbin/init\0", 1, ELASTIC, True),
        (b"/sbin/init\0", 69, ELASTIC, False),  # its parent lives
        (b"/sbin/init\0", 1, b"NOT_TORCHELASTIC_RUN_ID=x\0", False),  # a daemon
        (b"python\0-m\0torch.distributed.run\0train.py\0", 1, ELASTIC, False),  # process 1 of a container
    ],
)
def test_a_worker_whose_torchrun_is_gone_is_an_orphan(
    tmp_path: Path, init: bytes, parent: int, environment: bytes, orphan: bool
) -> None:
    process(tmp_path, 1, parent=0, command=init)
    process(tmp_path, 70, parent=parent, command=b"python\0-u\0train.py\0", environment=environment)
    found = gpu_process(70, 5, str(tmp_path))
    assert (found.command, found.memory_bytes, found.orphan) == ("python -u train.py", 5, orphan)


def test_a_command_is_one_line_and_that_of_a_kernel_thread_its_name(tmp_path: Path) -> None:
    process(tmp_path, 70, command=b"python\0a\nb\xff\x1b[31m\0" + b"x" * 500)
    command = gpu_process(70, None, str(tmp_path)).command
    assert command is not None and len(command) == _COMMAND_LENGTH and command.isprintable()
    process(tmp_path, 71)
    assert gpu_process(71, None, str(tmp_path)).command == "[name (of) it]"
    found = gpu_process(os.getpid(), None)
    assert found.user and found.command and found.orphan is False
