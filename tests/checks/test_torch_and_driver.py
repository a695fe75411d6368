"""The checks of the installed torch and of the NVIDIA driver: where each fires and where it stays silent."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest

from ddplaunch.checks.torch_and_driver import runs_on
from ddplaunch.machine.facts import NOT_ASKED, HostFacts, NvidiaFacts, PythonFacts, TorchFacts
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.checks.cases import NO_LAUNCH, fires, judged, silent
from tests.checks.healthy import (
    FLAG,
    healthy_gpu,
    healthy_launch,
    healthy_nvml,
    healthy_torch,
    healthy_torch_import,
    with_gpu,
)


def of_version(version: str) -> TorchFacts:
    return healthy_torch(version=version)


CPU_BUILD = healthy_torch(version="2.8.0+cpu", cuda=None)
NO_NVML = Unavailable("`libnvidia-ml.so.1` of the NVIDIA driver is not installed")
ON_CPU = healthy_launch(device=Resolved("cpu", FLAG))
FELL_BACK = healthy_launch(device=Resolved("cpu", Source("detected", "torch is a CPU build")))
NOT_LOADED = NvidiaFacts(pci_gpus=2, kernel_module_version=None, device_nodes=0)
OUTSIDE = NvidiaFacts(pci_gpus=8, kernel_module_version="570.124.06", device_nodes=0)
MISMATCH = NvidiaFacts(8, "550.90.07", 8, nvml_error="Driver/library version mismatch")
DOCKER = HostFacts("c0ffee", ("172.17.0.2",), "6.8.0", "docker", "root")
ON_CUDA = healthy_launch(device=Resolved("cuda", FLAG))
OLD_DRIVER = healthy_nvml(driver_version="470.57.02", cuda_driver_version=(11, 4))
NO_CUDA = healthy_torch_import(cuda_available=False, cuda_error="CUDA unknown error", device_count=0)
REMEDIES = {
    "nvidia-fabricmanager": ("Error 802", "system not yet initialized"),
    "update the NVIDIA driver": ("driver version is insufficient", "your driver is too old"),
}
UNKNOWN_ERROR = dataclasses.replace(MISMATCH, nvml_error="Unknown Error")
NO_NCCL = healthy_torch_import(nccl_available=False)
NOWHERE = Unavailable("torch is not here")
NEW = with_gpu(5, compute_capability=(12, 0), name="NVIDIA RTX 5090")
OLD = healthy_nvml(healthy_gpu(0, compute_capability=(3, 5)), healthy_gpu(1, compute_capability=(3, 7)))
OF_2020 = healthy_torch_import(arch_list=("sm_80", "sm_90"))

AMD = healthy_nvml(driver_version="6.12.12", cuda_driver_version=(0, 0), vendor="amd")
ROCM = healthy_torch(version="2.8.0+rocm6.4", cuda=None, hip="6.4")
NOT_OURS = dataclasses.replace(AMD, denied=("/dev/kfd", "/dev/dri/renderD128"))
DENIED: dict[str, Any] = {"torch": ROCM, "nvml": NOT_OURS}
UNLOADED: dict[str, Any] = {"nvidia": NOT_LOADED, "nvml": NO_NVML}
HIDDEN_THERE: dict[str, Any] = {"nvidia": OUTSIDE, "nvml": NO_NVML}
cpu_build = partial(fires, "torch-cpu-build-on-gpu-machine")
others = partial(fires, "torch-for-other-gpus")
too_old = partial(fires, "torch-too-old")
mismatch = partial(fires, "driver-library-mismatch")
not_loaded = partial(fires, "driver-not-loaded")
unavailable = partial(fires, "cuda-unavailable-reason")
PLATFORMS = (
    cpu_build("8 AMD GPUs … no RCCL … a ROCm build", torch=CPU_BUILD, nvml=AMD),
    others("for CUDA, and this machine has 8 AMD GPUs … install a ROCm build … `--device cpu`", nvml=AMD),
    others("for ROCm, and this machine has 8 NVIDIA GPUs … install a CUDA", torch=ROCM),
    silent("torch-for-other-gpus", "as it should be", torch=ROCM, nvml=AMD),
    silent("torch-for-other-gpus", "asked for the CPU", launch=ON_CPU, nvml=AMD),
    silent("torch-for-other-gpus", "CPU build", nvml=AMD, torch=CPU_BUILD),
    silent("driver-too-old", "AMD's has no CUDA", nvml=AMD, torch_import=NO_CUDA),
    fires("amd-devices-denied", "/dev/kfd, /dev/dri/renderD128 … `sudo usermod -aG render,video ada`", **DENIED),
    fires("amd-devices-denied", "--device=/dev/kfd … g", "warning", launch=NO_LAUNCH, **DENIED, host=DOCKER),
    silent("amd-devices-denied", "its own", torch=ROCM, nvml=AMD),
    silent("amd-devices-denied", "asked for the CPU", launch=ON_CPU, **DENIED),
)
FIRES = (
    *(case for case in PLATFORMS if case.says),
    fires(
        "torch-missing", "not here … '/my env/python' -m pip", torch=NOWHERE, python=PythonFacts("/my env/python", "3")
    ),
    too_old("torch 2.3.1+cu121 is older than 2.4 … `--max-restarts` never", torch=of_version("2.3.1+cu121")),
    too_old("2.2.2 … --logs-specs", torch=of_version("2.2.2+cu121")),
    fires("torch-import-failed", "libcudnn.so.9", launch=NO_LAUNCH, torch_import=Unavailable("no libcudnn.so.9")),
    cpu_build("2.8.0+cpu … 8 NVIDIA GPUs … --device cpu", launch=NO_LAUNCH, torch=CPU_BUILD),
    *(cpu_build("8 NVIDIA GPUs", launch=launch, torch=CPU_BUILD) for launch in (FELL_BACK, ON_CUDA)),
    cpu_build("8 NVIDIA GPUs", launch=ON_CUDA, torch=CPU_BUILD, environment={"CUDA_VISIBLE_DEVICES": ""}),
    cpu_build("1 NVIDIA GPU\n", launch=NO_LAUNCH, torch=CPU_BUILD, nvml=NO_NVML, nvidia=NvidiaFacts(1, None, 0)),
    fires("nccl-unavailable", "without NCCL", torch_import=NO_NCCL),
    fires("gpu-arch-not-in-wheel", "RTX 5090 … sm_120 … sm_80 sm_90 … GPU 5", nvml=NEW, torch_import=OF_2020),
    fires("gpu-arch-not-in-wheel", "sm_35 … sm_37 … GPU 0 … GPU 1", launch=NO_LAUNCH, nvml=OLD),
    unavailable("8 GPUs … CUDA unknown error … nvidia_uvm", torch_import=NO_CUDA),
    *(
        unavailable(f"{reason} … {fix}", torch_import=dataclasses.replace(NO_CUDA, cuda_error=reason))
        for fix, reasons in REMEDIES.items()
        for reason in reasons
    ),
    fires("driver-too-old", "470.57.02 … 11.4 … 12.8 … 525.60.13", nvml=OLD_DRIVER, torch_import=NOT_ASKED),
    fires("driver-too-old", "580", torch=healthy_torch(cuda="13.0"), torch_import=NOT_ASKED),
    mismatch("550.90.07", nvidia=MISMATCH, nvml=NO_NVML),
    mismatch("Unknown Error … nvidia-smi", launch=NO_LAUNCH, nvidia=UNKNOWN_ERROR, nvml=NO_NVML),
    not_loaded("2 NVIDIA GPUs … modprobe nvidia", launch=NO_LAUNCH, **UNLOADED),
    not_loaded("2 NVIDIA GPUs", "warning", launch=FELL_BACK, **UNLOADED, host=DOCKER),
    fires("gpus-not-in-container", "docker … --gpus all", **HIDDEN_THERE, host=DOCKER),
    *(
        fires("gpus-not-in-container", "8 NVIDIA GPUs", "warning", launch=launch, **HIDDEN_THERE, host=DOCKER)
        for launch in (NO_LAUNCH, FELL_BACK)
    ),
)

SILENT = (
    *(case for case in PLATFORMS if not case.says),
    silent("torch-missing", "not looked at", torch=NOT_ASKED),
    silent("torch-too-old", "2.4 itself", torch=of_version("2.4.0")),
    silent("torch-too-old", "2.13 is newer than 2.4", torch=of_version("2.13.0+cpu")),
    silent("torch-too-old", "a version of its own", torch=of_version("nightly")),
    silent("torch-import-failed", "not asked", torch_import=NOT_ASKED),
    silent("torch-cpu-build-on-gpu-machine", "asked for the CPU", launch=ON_CPU, torch=CPU_BUILD),
    *(
        silent("torch-cpu-build-on-gpu-machine", "GPUs hidden", launch=launch, torch=CPU_BUILD, environment=hides)
        for launch in (NO_LAUNCH, FELL_BACK)
        for hides in ({"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "-1"})
    ),
    silent("torch-cpu-build-on-gpu-machine", "no GPU", torch=CPU_BUILD, nvml=healthy_nvml(gpus=())),
    silent("torch-cpu-build-on-gpu-machine", "the host's", launch=NO_LAUNCH, torch=CPU_BUILD, **HIDDEN_THERE),
    silent("torch-cpu-build-on-gpu-machine", "ROCm", torch=healthy_torch(cuda=None, hip="6.2")),
    silent("nccl-unavailable", "asked for the CPU", launch=ON_CPU, torch_import=NO_NCCL),
    silent("gpu-arch-not-in-wheel", "not the one that is used", launch=4, nvml=with_gpu(5, compute_capability=(3, 5))),
    silent("gpu-arch-not-in-wheel", "not told", nvml=with_gpu(5, compute_capability=Unavailable("no NVML"))),
    silent("torch-for-other-gpus", "no GPU", torch=ROCM, nvml=healthy_nvml(gpus=())),
    silent("gpu-arch-not-in-wheel", "ROCm names", torch_import=healthy_torch_import(arch_list=("gfx90a",))),
    silent("cuda-unavailable-reason", "driver-too-old says it", torch_import=NO_CUDA, nvml=OLD_DRIVER),
    silent("cuda-unavailable-reason", "no GPU", torch_import=NO_CUDA, nvml=healthy_nvml(gpus=())),
    silent("driver-too-old", "one major", nvml=healthy_nvml(cuda_driver_version=(12, 2)), torch_import=NOT_ASKED),
    silent("driver-too-old", "cuda-compat", nvml=OLD_DRIVER),
    silent("driver-too-old", "CPU build", nvml=OLD_DRIVER, torch=CPU_BUILD, torch_import=NOT_ASKED),
    silent("driver-library-mismatch", "asked for the CPU", launch=ON_CPU, nvidia=MISMATCH),
    *(
        silent("driver-library-mismatch", "not loaded", nvidia=NvidiaFacts(pci_gpus, module, 0, "Driver Not Loaded"))
        for pci_gpus, module in ((0, None), (0, "550.90.07"), (8, None))  # the first in many container images
    ),
    silent("driver-not-loaded", "it has made its files", nvidia=dataclasses.replace(NOT_LOADED, device_nodes=2)),
    silent("driver-not-loaded", "no GPU", nvidia=dataclasses.replace(NOT_LOADED, pci_gpus=0)),
    silent("driver-not-loaded", "asked for the CPU", launch=ON_CPU, nvidia=NOT_LOADED),
    silent("gpus-not-in-container", "no container", nvidia=OUTSIDE),
    silent("gpus-not-in-container", "with GPUs", host=DOCKER),
)
test_fires_with_words_and_stays_silent_without = judged(*FIRES, *SILENT)


@pytest.mark.parametrize(
    ("arch_list", "capability", "expected"),
    [
        (("sm_80",), (8, 6), True),  # same major, higher minor
        (("sm_86",), (8, 0), False),
        (("sm_80",), (9, 0), False),  # machine code does not cross a major
        (("sm_80", "compute_80"), (9, 0), True),  # PTX does
        (("compute_90",), (8, 0), False),
        (("sm_90a",), (9, 0), True),
        (("compute_90a",), (10, 0), False),  # architecture-specific PTX does not
        (("sm_100f",), (10, 3), True),
        ((), (9, 0), True),  # nothing known, nothing concluded
    ],
)
def test_which_gpus_a_build_runs_on(arch_list: tuple[str, ...], capability: tuple[int, int], expected: bool) -> None:
    assert runs_on(arch_list, capability) is expected
