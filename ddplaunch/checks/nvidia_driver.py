"""Checks of the NVIDIA driver: loaded, complete, new enough for this torch, and visible in the container."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddplaunch.checks.check import Check, declare
from ddplaunch.checks.gpu_choice import cpu_was_chosen
from ddplaunch.checks.torch_install import driver_suffices
from ddplaunch.launch.launch import Launch
from ddplaunch.machine.facts import HostFacts, NvidiaFacts, NvmlFacts, TorchFacts, TorchImport
from ddplaunch.values.finding import Finding, error, warning
from ddplaunch.values.words import count

# The oldest Linux driver that runs programs of a CUDA major release, by minor version compatibility.
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
_OLDEST_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580"}


def driver_too_old(
    torch: TorchFacts,
    nvml: NvmlFacts,
    environment: Mapping[str, str],
    torch_import: TorchImport | None = None,
    launch: Launch | None = None,
) -> Iterator[Finding]:
    """The NVIDIA driver is too old for the CUDA that torch was built with.

    A driver runs programs of its own CUDA major release and older ones, whatever the minor release: a 12.8 wheel works
    on a driver for 12.2, but not on one for 11.8. The oldest Linux drivers are 450.80.02 for CUDA 11, 525.60.13 for
    CUDA 12 and 580 for CUDA 13. Remedy: update the driver, or install a torch for the driver's CUDA.
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    if torch.cuda is None or not nvml.gpus or cpu_was_chosen(environment, launch):
        return
    works = torch_import is not None and torch_import.cuda_available  # for example with the cuda-compat package
    if works or driver_suffices(torch.cuda, nvml.cuda_driver_version):
        return
    major, minor = nvml.cuda_driver_version
    needed = _OLDEST_DRIVERS.get(int(torch.cuda.partition(".")[0]))
    update = f"update the driver to {needed} or newer" if needed else f"update the driver to one for CUDA {torch.cuda}"
    yield error(
        "driver-too-old",
        f"NVIDIA driver {nvml.driver_version} supports CUDA up to {major}.{minor}; "
        f"torch {torch.version} is built for CUDA {torch.cuda}",
        why="a driver runs builds of its own CUDA major release and older ones, never of a newer major release",
        fix=f"{update}, or install a torch for CUDA {major}.x: https://pytorch.org/get-started/previous-versions",
    )


def driver_library_mismatch(
    nvidia: NvidiaFacts, environment: Mapping[str, str], launch: Launch | None = None
) -> Iterator[Finding]:
    """The NVIDIA libraries do not match the loaded kernel module, or NVML does not work.

    An update of the driver replaces its libraries at once, but the old kernel module stays loaded until the machine
    restarts. Until then every new CUDA program fails. A container keeps the libraries that were mounted when it
    started. Remedy: restart the machine, or the container after an update of its host's driver.
    """
    if nvidia.nvml_error is None or cpu_was_chosen(environment, launch):
        return
    loaded = f"; the loaded kernel module is {nvidia.kernel_module_version}" if nvidia.kernel_module_version else ""
    if "mismatch" in nvidia.nvml_error.lower():
        why = "the driver's libraries were updated while its old kernel module stayed loaded"
        fix = "restart the machine (or the container, if its host's driver was updated)"
    elif nvidia.pci_gpus and nvidia.kernel_module_version:
        why = "CUDA needs the same kernel module and libraries as NVML"
        fix = "see what `nvidia-smi` and `sudo dmesg | grep -i nvrm` say; reinstall the driver if it is incomplete"
    else:
        return  # libraries without a GPU, as in many container images; driver-not-loaded reports a missing module
    yield error("driver-library-mismatch", f"NVML: {nvidia.nvml_error}{loaded}", why=why, fix=fix)


def driver_not_loaded(
    nvidia: NvidiaFacts, environment: Mapping[str, str], host: HostFacts | None = None, launch: Launch | None = None
) -> Iterator[Finding]:
    """There are NVIDIA GPUs on the PCI bus, but the driver's kernel module is not loaded.

    Without the module neither NVML nor CUDA sees a GPU. It is not installed, was not rebuilt for a new kernel (DKMS),
    Secure Boot refuses it, or nouveau holds the GPU. In a container, where only the host can load it, this is a
    warning. Remedy: `sudo modprobe nvidia`, whose error names the cause.
    """
    if (
        not nvidia.pci_gpus
        or nvidia.kernel_module_version
        or nvidia.device_nodes
        or cpu_was_chosen(environment, launch)
    ):
        return
    contained = host is not None and host.container is not None
    wanted = launch is not None and launch.device.value == "cuda"
    yield (warning if contained and not wanted else error)(
        "driver-not-loaded",
        f"{count(nvidia.pci_gpus, 'NVIDIA GPU')} on the PCI bus, but no NVIDIA kernel module is loaded",
        why="without the module neither NVML nor CUDA sees a GPU",
        fix="`sudo modprobe nvidia`, whose error names the cause; install the driver if the module is not found; "
        "to train on the CPU, add `--device cpu`",
    )


def gpus_not_in_container(
    nvidia: NvidiaFacts, host: HostFacts, environment: Mapping[str, str], launch: Launch | None = None
) -> Iterator[Finding]:
    """The host of this container has NVIDIA GPUs, but the container was started without them.

    A container sees the host's GPUs and driver on the PCI bus and in /proc, but no program can open a GPU without its
    device node (/dev/nvidia0). This is an error if the launch asks for CUDA and otherwise a warning.
    Remedy: `docker run --gpus all`, or the like for the container's runtime.
    """
    outside = host.container is None or not nvidia.kernel_module_version
    if outside or nvidia.device_nodes or not nvidia.pci_gpus or cpu_was_chosen(environment, launch):
        return
    wanted = launch is not None and launch.device.value == "cuda"
    yield (error if wanted else warning)(
        "gpus-not-in-container",
        f"the host has {count(nvidia.pci_gpus, 'NVIDIA GPU')}, this {host.container} container has none",
        why="it has no /dev/nvidia0, so it was started without GPUs",
        fix="start it with `docker run --gpus all …` (needs nvidia-container-toolkit), `podman run --device "
        "nvidia.com/gpu=all …`, or a `nvidia.com/gpu` limit in the pod; to train on the CPU, add `--device cpu`",
    )


CHECKS: tuple[Check, ...] = (
    declare("torch", driver_too_old),
    declare("torch", driver_library_mismatch),
    declare("torch", driver_not_loaded),
    declare("torch", gpus_not_in_container),
)
