"""The checks of the NVIDIA driver: cases in which each fires and in which it stays silent."""

from __future__ import annotations

import dataclasses

import pytest

from ddplaunch.machine.facts import NOT_ASKED, HostFacts, NvidiaFacts
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.checks.cases import NO_LAUNCH, Case, assert_fires, assert_silent
from tests.checks.healthy import FLAG, healthy_facts, healthy_launch, healthy_nvml, healthy_torch

CPU_BUILD = healthy_torch(version="2.8.0+cpu", cuda=None)
NO_NVML = Unavailable("`libnvidia-ml.so.1` of the NVIDIA driver is not installed")
ON_CPU = healthy_launch(device=Resolved("cpu", FLAG))
FELL_BACK = healthy_launch(device=Resolved("cpu", Source("detected", "torch is a CPU build")))
NOT_LOADED = NvidiaFacts(pci_gpus=2, kernel_module_version=None, device_nodes=0)
OUTSIDE = NvidiaFacts(pci_gpus=8, kernel_module_version="570.124.06", device_nodes=0)
MISMATCH = NvidiaFacts(8, "550.90.07", 8, nvml_error="Driver/library version mismatch")
DOCKER = HostFacts("c0ffee", ("172.17.0.2",), "6.8.0", "docker", "root")
OLD_DRIVER = healthy_nvml(driver_version="470.57.02", cuda_driver_version=(11, 4))

FIRES = (
    Case(
        "driver-too-old",
        "CUDA 12 wheel, driver for 11.4",
        healthy_facts(nvml=OLD_DRIVER, torch_import=NOT_ASKED),
        says=("470.57.02", "11.4", "12.8", "525.60.13"),
    ),
    Case(
        "driver-too-old",
        "CUDA 13 wheel, driver for 12.8",
        healthy_facts(torch=healthy_torch(cuda="13.0"), torch_import=NOT_ASKED),
        says=("580",),
    ),
    Case("driver-library-mismatch", "updated", healthy_facts(nvidia=MISMATCH, nvml=NO_NVML), says=("550.90.07",)),
    Case(
        "driver-library-mismatch",
        "NVML broken otherwise",
        healthy_facts(nvidia=dataclasses.replace(MISMATCH, nvml_error="Unknown Error"), nvml=NO_NVML),
        NO_LAUNCH,
        says=("Unknown Error", "nvidia-smi"),
    ),
    Case(
        "driver-not-loaded",
        "no module",
        healthy_facts(nvidia=NOT_LOADED, nvml=NO_NVML),
        NO_LAUNCH,
        says=("2 NVIDIA GPUs", "modprobe nvidia"),
    ),
    Case(
        "driver-not-loaded",
        "a container only warns",
        healthy_facts(nvidia=NOT_LOADED, nvml=NO_NVML, host=DOCKER),
        FELL_BACK,
        severity="warning",
        says=("2 NVIDIA GPUs",),
    ),
    Case(
        "gpus-not-in-container",
        "CUDA was asked for",
        healthy_facts(nvidia=OUTSIDE, nvml=NO_NVML, host=DOCKER),
        says=("docker", "--gpus all"),
    ),
    Case(
        "gpus-not-in-container",
        "doctor warns",
        healthy_facts(nvidia=OUTSIDE, nvml=NO_NVML, host=DOCKER),
        NO_LAUNCH,
        severity="warning",
        says=("8 NVIDIA GPUs",),
    ),
)

SILENT = (
    Case(
        "driver-too-old",
        "12.8 wheel on a driver for 12.2",
        healthy_facts(nvml=healthy_nvml(cuda_driver_version=(12, 2)), torch_import=NOT_ASKED),
    ),
    Case("driver-too-old", "it works all the same (cuda-compat)", healthy_facts(nvml=OLD_DRIVER)),
    Case("driver-too-old", "CPU build", healthy_facts(nvml=OLD_DRIVER, torch=CPU_BUILD, torch_import=NOT_ASKED)),
    Case("driver-library-mismatch", "asked for the CPU", healthy_facts(nvidia=MISMATCH), ON_CPU),
    Case(
        "driver-library-mismatch",
        "libraries in an image, no GPU",
        healthy_facts(nvidia=NvidiaFacts(0, None, 0, "Driver Not Loaded"), nvml=NO_NVML),
    ),
    Case("driver-not-loaded", "no GPU", healthy_facts(nvidia=dataclasses.replace(NOT_LOADED, pci_gpus=0))),
    Case("driver-not-loaded", "asked for the CPU", healthy_facts(nvidia=NOT_LOADED), ON_CPU),
    Case("gpus-not-in-container", "no container", healthy_facts(nvidia=OUTSIDE)),
    Case("gpus-not-in-container", "with GPUs", healthy_facts(host=DOCKER)),
)


@pytest.mark.parametrize("case", FIRES, ids=str)
def test_fires(case: Case) -> None:
    assert_fires(case)


@pytest.mark.parametrize("case", SILENT, ids=str)
def test_stays_silent(case: Case) -> None:
    assert_silent(case)
