"""Checks of the installed torch: present, new enough, and built for these GPUs and this driver."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from ddplaunch.checks.check import Check, declare
from ddplaunch.checks.gpu_choice import cpu_was_chosen, gpu_word, present_gpus, seen_by_ranks, used_gpus
from ddplaunch.launch.launch import Launch
from ddplaunch.machine.facts import NOT_ASKED, NvidiaFacts, NvmlFacts, PythonFacts, TorchFacts, TorchImport
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.words import count

_OLDEST = (2, 3)
_SELECTOR = "https://pytorch.org/get-started/locally"
_FIRST_COMPATIBLE_MAJOR = 11
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
    """Return (2, 9) for ``2.9.0a0+git1234``; None for what is no such version."""
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


def torch_missing(python: PythonFacts, torch: TorchFacts | Unavailable) -> Iterator[Finding]:
    """torch is not installed in ddplaunch's own environment.

    ddplaunch replaces itself by torchrun in the same interpreter, so it must be installed in the environment that
    trains. Remedy: install torch there, or install ddplaunch into the environment that has torch.
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


def torch_too_old(python: PythonFacts, torch: TorchFacts) -> Iterator[Finding]:
    """torch is older than 2.3.

    ddplaunch gives torchrun a plug-in with `--logs-specs`, a flag that torchrun has since torch 2.3. An older
    torchrun ends at once with "unrecognized arguments". Remedy: a newer torch.
    """
    version = major_minor(torch.version)
    if version is not None and version < _OLDEST:
        yield error(
            "torch-too-old",
            f"torch {torch.version} is older than 2.3",
            why="its torchrun has no `--logs-specs`, which ddplaunch needs to capture and explain each rank",
            fix=f"`{shlex.quote(python.executable)} -m pip install --upgrade 'torch>=2.3'`",
            where=torch.path,
        )


def torch_import_failed(torch: TorchFacts, torch_import: TorchImport | Unavailable) -> Iterator[Finding]:
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
) -> Iterator[Finding]:
    """torch is a CPU build on a machine with NVIDIA GPUs.

    A CPU build has neither CUDA kernels nor NCCL: `torch.cuda.is_available()` is False whatever the driver says, and
    many scripts then silently train on the CPU, orders of magnitude slower. pip picks a CPU build on some platforms
    and from some indexes. Remedy: install a CUDA build, or ask for the CPU with `--device cpu`.
    """
    gpus = present_gpus(nvidia, nvml)
    if torch.cuda or torch.hip or not gpus or cpu_was_chosen(environment, launch):
        return
    yield error(
        "torch-cpu-build-on-gpu-machine",
        f"torch {torch.version} is a CPU build, and this machine has {count(gpus, 'NVIDIA GPU')}",
        why="a CPU build has no CUDA kernels and no NCCL, so the GPUs would stay idle",
        fix=f"install a CUDA build with the command that {_SELECTOR} shows, after "
        f"`{shlex.quote(python.executable)} -m pip uninstall -y torch`; to train on the CPU, add `--device cpu`",
        where=torch.path,
    )


def nccl_unavailable(
    torch: TorchFacts,
    torch_import: TorchImport,
    environment: Mapping[str, str],
    nvml: NvmlFacts,
    launch: Launch | None = None,
) -> Iterator[Finding]:
    """This CUDA build of torch was compiled without NCCL.

    `init_process_group("nccl")` then raises "Distributed package doesn't have NCCL built in". Official Linux wheels
    contain NCCL; builds from source with USE_NCCL=0, some distributions and Jetson builds do not. Remedy: an official
    wheel.
    """
    if torch.cuda is None or torch_import.nccl_available or not nvml.gpus or cpu_was_chosen(environment, launch):
        return
    yield error(
        "nccl-unavailable",
        f"torch {torch.version} is a CUDA build without NCCL",
        why='`init_process_group("nccl")` raises, and gloo moves gradients through the CPU',
        fix=f"install an official wheel with the command that {_SELECTOR} shows, or build with `USE_NCCL=1`",
        where=torch.path,
    )


def gpu_arch_not_in_wheel(
    torch_import: TorchImport, nvml: NvmlFacts, environment: Mapping[str, str], launch: Launch | None = None
) -> Iterator[Finding]:
    """The torch build has no kernels for this GPU's architecture.

    Machine code for sm_XY runs on the same major architecture with the same or a higher minor number; the driver
    compiles PTX for compute_XY for anything newer. If neither fits, the first kernel fails with "no kernel image is
    available for execution on the device". Remedy: a build of torch for this architecture.
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
    """
    for entry in used_gpus(nvml, environment, launch):
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


def cuda_unavailable_reason(
    torch: TorchFacts,
    torch_import: TorchImport,
    nvml: NvmlFacts,
    environment: Mapping[str, str],
    launch: Launch | None = None,
) -> Iterator[Finding]:
    """torch cannot use CUDA although GPUs are visible.

    `torch.cuda.is_available()` is False without a reason, so `doctor` asks CUDA in a child interpreter. An unknown
    error often means that nvidia_uvm is not loaded or that the GPU needs a reset; error 802 on NVSwitch machines means
    that nvidia-fabricmanager is not running. Remedy: the one that the finding names for the error.
    """
    if torch.cuda is None or torch_import.cuda_available or cpu_was_chosen(environment, launch):
        return
    if not driver_suffices(torch.cuda, nvml.cuda_driver_version):
        return  # driver-too-old reports it
    gpus = len(seen_by_ranks(nvml, environment, launch).entries)
    if not gpus:
        return
    reason = torch_import.cuda_error or "CUDA gave no reason"
    yield error(
        "cuda-unavailable-reason",
        f"torch cannot use CUDA, although {count(gpus, 'GPU')} should be visible",
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


CHECKS: tuple[Check, ...] = (
    declare("torch", torch_missing, accepts=("torch",)),
    declare("torch", torch_too_old),
    declare("torch", torch_import_failed, accepts=("torch_import",)),
    declare("torch", torch_cpu_build_on_gpu_machine),
    declare("torch", nccl_unavailable),
    declare("torch", gpu_arch_not_in_wheel),
    declare("torch", cuda_unavailable_reason),
)
