"""Checks that torch and the NVIDIA driver are installed completely, fit each other, and fit these GPUs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from ddplaunch.checks.check import Findings, LaunchGpus, checks_in, cpu_was_chosen
from ddplaunch.checks.gpu_choice import gpu_word, present_gpus
from ddplaunch.machine.facts import NOT_ASKED, NvidiaFacts, NvmlFacts, PythonFacts, TorchFacts, TorchImport
from ddplaunch.planning.launch import Launch
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import count

_OLDEST = (2, 4)
_SELECTOR = "https://pytorch.org/get-started/locally"
_FIRST_COMPATIBLE_MAJOR = 11
#: The oldest Linux driver that runs programs of a CUDA major release, by minor version compatibility.
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
_OLDEST_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580"}
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def runs_on(arch_list: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether a build for ``arch_list`` ("sm_90", "compute_90" …) runs on a GPU of ``capability``.

    True if the list names no NVIDIA architecture, because then nothing can be concluded.
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
    """
    parsed = [match for match in map(_ARCHITECTURE.fullmatch, arch_list) if match]
    return not parsed or any(_fits(match, capability) for match in parsed)


def _fits(match: re.Match[str], capability: tuple[int, int]) -> bool:
    kind, suffix = match[1], match[4]
    built = (int(match[2]), int(match[3]))
    if suffix == "a":  # architecture-specific: exactly this one, as machine code or as PTX
        return built == capability
    if kind == "compute" and suffix == "":
        return built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


def major_minor(version: str) -> tuple[int, int] | None:
    """Return (2, 9) for ``2.9.0a0+git1234``; None if ``version`` does not begin like that."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def driver_suffices(built_for: str, driver: tuple[int, int]) -> bool:
    """Whether a driver that supports CUDA ``driver`` runs a build for CUDA ``built_for`` ("12.8").

    Since CUDA 11 every driver of the same major release does; before, the driver had to be at least as new. True if
    ``built_for`` is not a version.
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    build = major_minor(built_for)
    if build is not None and build[0] >= _FIRST_COMPATIBLE_MAJOR:
        return driver[0] >= build[0]
    return build is None or driver >= build


def torch_missing(python: PythonFacts, torch: TorchFacts | Unavailable) -> Findings:
    """torch is not installed in ddplaunch's own environment.

    ddplaunch replaces itself with torchrun in the same interpreter, so it must be installed in the environment that
    trains. Wheels of torch are built for glibc; with the C library musl, as in Alpine Linux, pip finds none. Remedy:
    install torch there, or install ddplaunch into the environment that has torch.
    """
    if not isinstance(torch, Unavailable) or torch == NOT_ASKED:
        return
    pip = f"{shlex.quote(python.executable)} -m pip install torch"
    yield error(
        "torch-missing",
        torch.reason,
        why="the ranks run in the interpreter that ddplaunch is installed in",
        fix=f"`{pip}`; or, in the environment that has torch, `python -m pip install ddplaunch`",
        where=python.executable,
    )


def torch_too_old(python: PythonFacts, torch: TorchFacts) -> Findings:
    """torch is older than 2.4.

    ddplaunch gives torchrun a plug-in with `--logs-specs`, which torchrun has since torch 2.3; an older torchrun ends
    at once with "unrecognized arguments". With torch 2.3, torchrun cannot restart ranks for `--max-restarts`: it first
    closes the rendezvous that they have to join, and ends with RendezvousClosedError (`LocalElasticAgent._shutdown`,
    corrected in 2.4). Remedy: a newer torch.
    """
    version = major_minor(torch.version)
    if version is not None and version < _OLDEST:
        yield error(
            "torch-too-old",
            f"torch {torch.version} is older than 2.4",
            why="its torchrun closes the rendezvous before it restarts ranks, so that `--max-restarts` never does"
            if version >= (2, 3)
            else "its torchrun has no `--logs-specs`, which ddplaunch needs to capture and explain each rank",
            fix=f"`{shlex.quote(python.executable)} -m pip install --upgrade 'torch>=2.4'`",
            where=torch.path,
        )


def torch_import_failed(torch: TorchFacts, torch_import: TorchImport | Unavailable) -> Findings:
    """torch is installed, but importing it fails.

    `doctor` imports torch in a child interpreter with a deadline. If that fails, every rank fails in the same way: a
    shared library is missing, packages do not match, or the file system is too slow. Remedy: run the import by hand.
    """
    if isinstance(torch_import, Unavailable) and torch_import != NOT_ASKED:
        yield error(
            "torch-import-failed",
            torch_import.reason,
            why="each rank begins with this import",
            fix="`python -c 'import torch'` shows the whole message; reinstalling torch repairs a mixed installation",
            where=torch.path,
        )


def torch_cpu_build_on_gpu_machine(
    torch: TorchFacts,
    environment: Mapping[str, str],
    python: PythonFacts,
    nvidia: NvidiaFacts | None = None,
    nvml: NvmlFacts | None = None,
    launch: Launch | None = None,
) -> Findings:
    """torch is a CPU build on a machine with GPUs.

    A CPU build has neither kernels for GPUs nor NCCL: `torch.cuda.is_available()` is False whatever the driver says,
    and many scripts then silently train on the CPU, orders of magnitude slower. pip picks a CPU build on some platforms
    and from some indexes. Remedy: install a build for CUDA or ROCm, or ask for the CPU with `--device cpu`.
    """
    gpus = present_gpus(nvidia, nvml)
    if torch.cuda or torch.hip or not gpus or cpu_was_chosen(environment, launch):
        return
    amd = nvml is not None and nvml.vendor == "amd"
    maker, platform, library = ("AMD", "ROCm", "RCCL") if amd else ("NVIDIA", "CUDA", "NCCL")
    what = f"is a CPU build, and this machine has {count(gpus, f'{maker} GPU')}"
    why = f"a CPU build has no kernels for {platform} and no {library}, so the GPUs would stay idle"
    yield _wrong_build("torch-cpu-build-on-gpu-machine", torch, python, what, why, platform)


def _wrong_build(code: str, torch: TorchFacts, python: PythonFacts, what: str, why: str, platform: str) -> Finding:
    """Return the error that this torch does not see the machine's GPUs, which need a build for ``platform``."""
    remove = f"`{shlex.quote(python.executable)} -m pip uninstall -y torch`"
    fix = f"install a {platform} build with the command that {_SELECTOR} shows, after {remove}; to train on the CPU, "
    return error(code, f"torch {torch.version} {what}", why=why, fix=f"{fix}add `--device cpu`", where=torch.path)


def torch_for_other_gpus(torch: TorchFacts, python: PythonFacts, gpus: LaunchGpus) -> Findings:
    """torch is built for another maker's GPUs than this machine has.

    `pip install torch` installs a build for CUDA even on a machine with AMD GPUs, and a build for ROCm does not see
    NVIDIA GPUs. `torch.cuda.is_available()` is False then, and many scripts silently train on the CPU. Remedy: the
    build for these GPUs, or ask for the CPU with `--device cpu`.
    """
    built, vendor = ("ROCm", torch.hip) if torch.hip else ("CUDA", torch.cuda), gpus.nvml.vendor
    if not built[1] or not gpus.nvml.gpus or (vendor == "amd") == bool(torch.hip) or gpus.cpu_chosen:
        return
    maker, platform = ("AMD", "ROCm") if vendor == "amd" else ("NVIDIA", "CUDA")
    what = f"is built for {built[0]}, and this machine has {count(len(gpus.nvml.gpus), f'{maker} GPU')}"
    why = f"it sees no GPU of {maker}'s: they need a build for {platform}"
    yield _wrong_build("torch-for-other-gpus", torch, python, what, why, platform)


def nccl_unavailable(torch: TorchFacts, torch_import: TorchImport, gpus: LaunchGpus) -> Findings:
    """This CUDA build of torch was compiled without NCCL.

    `init_process_group("nccl")` then raises "Distributed package doesn't have NCCL built in". Official Linux wheels
    contain NCCL; builds from source with USE_NCCL=0, some distributions and Jetson builds do not. Remedy: an official
    wheel.
    """
    if torch.cuda is None or torch_import.nccl_available or not gpus.nvml.gpus or gpus.cpu_chosen:
        return
    yield error(
        "nccl-unavailable",
        f"torch {torch.version} is a CUDA build without NCCL",
        why='`init_process_group("nccl")` raises, and gloo moves gradients through the CPU',
        fix=f"install an official wheel with the command that {_SELECTOR} shows, or build with `USE_NCCL=1`",
        where=torch.path,
    )


def gpu_arch_not_in_wheel(torch_import: TorchImport, gpus: LaunchGpus) -> Findings:
    """The torch build has no kernels for this GPU's architecture.

    Machine code for sm_XY runs on the same major architecture with the same or a higher minor number; the driver
    compiles PTX for compute_XY for anything newer. If neither fits, the first kernel fails with "no kernel image is
    available for execution on the device". Remedy: a build of torch for this architecture.
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
    """
    for entry in gpus.used:
        capability = entry.gpu.compute_capability
        if isinstance(capability, Unavailable) or runs_on(torch_import.arch_list, capability):
            continue
        major, minor = capability
        yield error(
            "gpu-arch-not-in-wheel",
            f"torch {torch_import.version} has no kernels for {entry.gpu.name} (sm_{major}{minor}); "
            f"it has {' '.join(torch_import.arch_list)}",
            why='the first kernel would fail with "no kernel image is available for execution on the device"',
            fix=f"install a build of torch that contains sm_{major}{minor}: {_SELECTOR}",
            where=gpu_word(entry),
        )


def cuda_unavailable_reason(torch: TorchFacts, torch_import: TorchImport, gpus: LaunchGpus) -> Findings:
    """torch cannot use CUDA although GPUs are visible.

    `torch.cuda.is_available()` returns False without a reason, so `doctor` asks CUDA in a child interpreter. An unknown
    error often means that nvidia_uvm is not loaded or that the GPU needs a reset; error 802 on NVSwitch machines means
    that nvidia-fabricmanager is not running. Remedy: the fix in the finding, which depends on the error.
    """
    if torch.cuda is None or torch_import.cuda_available or gpus.cpu_chosen:
        return
    if not driver_suffices(torch.cuda, gpus.nvml.cuda_driver_version):
        return  # driver-too-old reports it
    number = len(gpus.seen.entries)
    if not number:
        return
    reason = torch_import.cuda_error or "CUDA gave no reason"
    yield error(
        "cuda-unavailable-reason",
        f"torch cannot use CUDA, although {count(number, 'GPU')} should be visible",
        why=f"CUDA says: {reason}",
        fix=_remedy(reason),
        where=torch.path,
    )


def _remedy(reason: str) -> str:
    if "802" in reason or "not yet initialized" in reason:
        return "`sudo systemctl start nvidia-fabricmanager`; its version must equal the driver's"
    if "insufficient" in reason or "too old" in reason:
        return f"update the NVIDIA driver, or install a torch for an older CUDA: {_SELECTOR}"
    return (
        "`sudo modprobe nvidia_uvm`; if that changes nothing, `sudo dmesg | grep -i -e nvrm -e xid` may name the cause"
    )


def driver_too_old(torch: TorchFacts, gpus: LaunchGpus, torch_import: TorchImport | None = None) -> Findings:
    """The NVIDIA driver is too old for the CUDA that torch was built with.

    A driver runs programs of its own CUDA major release and older ones, whatever the minor release: a 12.8 wheel works
    on a driver for 12.2, but not on one for 11.8. The oldest Linux drivers are 450.80.02 for CUDA 11, 525.60.13 for
    CUDA 12 and 580 for CUDA 13. Remedy: update the driver, or install a torch for the driver's CUDA.
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    nvml = gpus.nvml
    if torch.cuda is None or nvml.vendor == "amd" or not nvml.gpus or gpus.cpu_chosen:
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
) -> Findings:
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


CHECKS = checks_in(globals(), "torch")
