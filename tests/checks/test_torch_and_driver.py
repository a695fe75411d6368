"""The checks of the installed torch and of the NVIDIA driver: where each fires and where it stays silent."""

from __future__ import annotations

import dataclasses

import pytest

from ddplaunch.checks.torch_and_driver import driver_suffices, runs_on
from ddplaunch.machine.facts import NOT_ASKED, HostFacts, NvidiaFacts
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.checks.cases import NO_LAUNCH, Case, judge
from tests.checks.healthy import (
    FLAG,
    healthy_facts,
    healthy_gpu,
    healthy_launch,
    healthy_nvml,
    healthy_torch,
    healthy_torch_import,
    with_gpu,
)

CPU_BUILD = healthy_torch(version="2.8.0+cpu", cuda=None)
NO_NVML = Unavailable("`libnvidia-ml.so.1` of the NVIDIA driver is not installed")
ON_CPU = healthy_launch(device=Resolved("cpu", FLAG))
FELL_BACK = healthy_launch(device=Resolved("cpu", Source("detected", "torch is a CPU build")))
NOT_LOADED = NvidiaFacts(pci_gpus=2, kernel_module_version=None, device_nodes=0)
OUTSIDE = NvidiaFacts(pci_gpus=8, kernel_module_version="570.124.06", device_nodes=0)
MISMATCH = NvidiaFacts(8, "550.90.07", 8, nvml_error="Driver/library version mismatch")
DOCKER = HostFacts("c0ffee", ("172.17.0.2",), "6.8.0", "docker", "root")
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
OLD_DRIVER = healthy_nvml(driver_version="470.57.02", cuda_driver_version=(11, 4))
NO_CUDA = healthy_torch_import(cuda_available=False, cuda_error="CUDA unknown error", device_count=0)

AMD = healthy_nvml(driver_version="6.12.12", cuda_driver_version=(0, 0), vendor="amd")
ROCM = healthy_torch(version="2.8.0+rocm6.4", cuda=None, hip="6.4")
NOT_OURS = dataclasses.replace(AMD, denied=("/dev/kfd", "/dev/dri/renderD128"))
PLATFORMS = (
    Case(
        "torch-cpu-build-on-gpu-machine",
        "AMD",
        healthy_facts(torch=CPU_BUILD, nvml=AMD),
        says=("8 AMD GPUs", "no RCCL", "a ROCm build"),
    ),
    Case(
        "torch-for-other-gpus",
        "what pip brings, on AMD",
        healthy_facts(nvml=AMD),
        says=("is built for CUDA, and this machine has 8 AMD GPUs", "install a ROCm build", "`--device cpu`"),
    ),
    Case(
        "torch-for-other-gpus",
        "ROCm on NVIDIA",
        healthy_facts(torch=ROCM),
        says=("is built for ROCm, and this machine has 8 NVIDIA GPUs", "install a CUDA build"),
    ),
    Case("torch-for-other-gpus", "as it should be", healthy_facts(torch=ROCM, nvml=AMD)),
    Case("torch-for-other-gpus", "asked for the CPU", healthy_facts(nvml=AMD), ON_CPU),
    Case("torch-for-other-gpus", "CPU build", healthy_facts(nvml=AMD, torch=CPU_BUILD)),
    Case("driver-too-old", "AMD's has no CUDA", healthy_facts(nvml=AMD, torch_import=NO_CUDA)),
    Case(
        "amd-devices-denied",
        "groups",
        healthy_facts(torch=ROCM, nvml=NOT_OURS),
        says=("may not open /dev/kfd, /dev/dri/renderD128", "`sudo usermod -aG render,video ada`"),
    ),
    Case(
        "amd-devices-denied",
        "container",
        healthy_facts(torch=ROCM, nvml=NOT_OURS, host=DOCKER),
        NO_LAUNCH,
        severity="warning",
        says=("--device=/dev/kfd", "getent group render"),
    ),
    Case("amd-devices-denied", "its own", healthy_facts(torch=ROCM, nvml=AMD)),
    Case("amd-devices-denied", "asked for the CPU", healthy_facts(torch=ROCM, nvml=NOT_OURS), ON_CPU),
)
FIRES = (
    *(case for case in PLATFORMS if case.says),
    Case(
        "torch-missing",
        "not installed",
        healthy_facts(torch=Unavailable("torch is not installed in /opt/env/bin/python")),
        NO_LAUNCH,
        says=("torch is not installed", "`/opt/env/bin/python -m pip install torch`"),
    ),
    Case(
        "torch-too-old",
        "2.3",
        healthy_facts(torch=healthy_torch(version="2.3.1+cu121")),
        says=("torch 2.3.1+cu121 is older than 2.4", "`--max-restarts` never"),
    ),
    Case(
        "torch-too-old",
        "2.2",
        healthy_facts(torch=healthy_torch(version="2.2.2+cu121")),
        says=("2.2.2", "--logs-specs"),
    ),
    Case("torch-too-old", "1.13", healthy_facts(torch=healthy_torch(version="1.13.1")), says=("1.13.1",)),
    Case(
        "torch-import-failed",
        "a library is missing",
        healthy_facts(torch_import=Unavailable("`import torch` failed in /opt/env/bin/python: libcudnn.so.9")),
        NO_LAUNCH,
        says=("libcudnn.so.9",),
    ),
    Case(
        "torch-cpu-build-on-gpu-machine",
        "doctor, NVML sees eight",
        healthy_facts(torch=CPU_BUILD),
        NO_LAUNCH,
        says=("2.8.0+cpu", "8 NVIDIA GPUs", "--device cpu"),
    ),
    Case(
        "torch-cpu-build-on-gpu-machine",
        "the launch fell back",
        healthy_facts(torch=CPU_BUILD),
        FELL_BACK,
        says=("2.8.0+cpu",),
    ),
    Case(
        "torch-cpu-build-on-gpu-machine",
        "the PCI bus alone knows",
        healthy_facts(torch=CPU_BUILD, nvml=NO_NVML, nvidia=dataclasses.replace(NOT_LOADED, pci_gpus=1)),
        NO_LAUNCH,
        says=("1 NVIDIA GPU\n",),
    ),
    Case(
        "nccl-unavailable",
        "built without",
        healthy_facts(torch_import=healthy_torch_import(nccl_available=False)),
        says=("without NCCL",),
    ),
    Case(
        "gpu-arch-not-in-wheel",
        "one Blackwell among eight, old wheel",
        healthy_facts(
            nvml=with_gpu(5, compute_capability=(12, 0), name="NVIDIA RTX 5090"),
            torch_import=healthy_torch_import(arch_list=("sm_80", "sm_90")),
        ),
        says=("RTX 5090", "sm_120", "sm_80 sm_90", "GPU 5"),
    ),
    Case(
        "cuda-unavailable-reason",
        "CUDA says why",
        healthy_facts(torch_import=NO_CUDA),
        says=("8 GPUs", "CUDA unknown error", "nvidia_uvm"),
    ),
    Case(
        "cuda-unavailable-reason",
        "fabric manager",
        healthy_facts(torch_import=dataclasses.replace(NO_CUDA, cuda_error="Error 802: system not yet initialized")),
        NO_LAUNCH,
        says=("802", "nvidia-fabricmanager"),
    ),
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
    *(case for case in PLATFORMS if not case.says),
    Case("torch-missing", "not looked at", healthy_facts(torch=NOT_ASKED)),
    Case("torch-too-old", "2.4 itself", healthy_facts(torch=healthy_torch(version="2.4.0"))),
    Case("torch-too-old", "2.13 is newer than 2.4", healthy_facts(torch=healthy_torch(version="2.13.0+cpu"))),
    Case("torch-too-old", "a version of its own", healthy_facts(torch=healthy_torch(version="nightly"))),
    Case("torch-import-failed", "not asked", healthy_facts(torch_import=NOT_ASKED)),
    Case("torch-cpu-build-on-gpu-machine", "asked for the CPU", healthy_facts(torch=CPU_BUILD), ON_CPU),
    Case(
        "torch-cpu-build-on-gpu-machine", "GPUs hidden", healthy_facts(torch=CPU_BUILD, environment=HIDDEN), NO_LAUNCH
    ),
    Case("torch-cpu-build-on-gpu-machine", "no GPU", healthy_facts(torch=CPU_BUILD, nvml=healthy_nvml(gpus=()))),
    Case(
        "torch-cpu-build-on-gpu-machine",
        "GPUs of the host, not of this container",
        healthy_facts(torch=CPU_BUILD, nvml=NO_NVML, nvidia=OUTSIDE),
        NO_LAUNCH,
    ),
    Case("torch-cpu-build-on-gpu-machine", "ROCm", healthy_facts(torch=healthy_torch(cuda=None, hip="6.2"))),
    Case(
        "nccl-unavailable",
        "asked for the CPU",
        healthy_facts(torch_import=healthy_torch_import(nccl_available=False)),
        ON_CPU,
    ),
    Case(
        "gpu-arch-not-in-wheel",
        "not the one that is used",
        healthy_facts(nvml=with_gpu(5, compute_capability=(3, 5))),
        healthy_launch(4),
    ),
    Case(
        "gpu-arch-not-in-wheel", "ROCm names", healthy_facts(torch_import=healthy_torch_import(arch_list=("gfx90a",)))
    ),
    Case("cuda-unavailable-reason", "hidden", healthy_facts(torch_import=NO_CUDA, environment=HIDDEN), NO_LAUNCH),
    Case("cuda-unavailable-reason", "driver-too-old says it", healthy_facts(torch_import=NO_CUDA, nvml=OLD_DRIVER)),
    Case("cuda-unavailable-reason", "no GPU", healthy_facts(torch_import=NO_CUDA, nvml=healthy_nvml(gpus=()))),
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


@pytest.mark.parametrize("case", (*FIRES, *SILENT), ids=str)
def test_fires_with_words_and_stays_silent_without(case: Case) -> None:
    judge(case)


def test_python_path_with_a_space_is_quoted() -> None:
    facts = healthy_facts(torch=Unavailable("torch is not installed"))
    assert not isinstance(facts.python, Unavailable)
    facts = dataclasses.replace(facts, python=dataclasses.replace(facts.python, executable="/my env/bin/python"))
    judge(Case("torch-missing", "space", facts, says=("'/my env/bin/python' -m pip",)))


def test_each_gpu_without_kernels_is_named() -> None:
    old = healthy_nvml(healthy_gpu(0, compute_capability=(3, 5)), healthy_gpu(1, compute_capability=(3, 7)))
    judge(
        Case(
            "gpu-arch-not-in-wheel",
            "two",
            healthy_facts(nvml=old),
            NO_LAUNCH,
            says=("sm_35", "sm_37", "GPU 0", "GPU 1"),
        )
    )


@pytest.mark.parametrize(
    ("arch_list", "capability", "expected"),
    [
        (("sm_80",), (8, 0), True),
        (("sm_80",), (8, 6), True),  # same major, higher minor
        (("sm_86",), (8, 0), False),
        (("sm_80",), (9, 0), False),  # machine code does not cross a major
        (("sm_80", "compute_80"), (9, 0), True),  # PTX does
        (("compute_90",), (8, 0), False),
        (("sm_90a",), (9, 0), True),
        (("compute_90a",), (10, 0), False),  # architecture-specific PTX does not
        (("sm_100f",), (10, 3), True),
        (("sm_100",), (12, 0), False),
        ((), (9, 0), True),  # nothing known, nothing concluded
    ],
)
def test_which_gpus_a_build_runs_on(arch_list: tuple[str, ...], capability: tuple[int, int], expected: bool) -> None:
    assert runs_on(arch_list, capability) is expected


@pytest.mark.parametrize(
    ("built_for", "driver", "expected"),
    [
        ("12.8", (12, 2), True),
        ("12.8", (13, 0), True),
        ("12.1", (11, 8), False),
        ("11.8", (11, 0), True),
        ("13.0", (12, 9), False),
        ("10.2", (10, 1), False),  # before CUDA 11 the minor version counted
        ("10.2", (10, 2), True),
    ],
)
def test_which_drivers_run_a_build(built_for: str, driver: tuple[int, int], expected: bool) -> None:
    assert driver_suffices(built_for, driver) is expected
