"""Reads GPUs from NVML, and AMD's GPUs from the kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ddplaunch.machine import files
from ddplaunch.machine.facts import Gpu, GpuProcess, MigDevice, NvmlFacts
from ddplaunch.machine.hardware import AmdDevice, amd_denied, amd_devices, amd_holders
from ddplaunch.values.resolved import Unavailable, known

T = TypeVar("T")

LIBRARY = "libnvidia-ml.so.1"

# Constants of NVML's interface for which older nvidia-ml-py has no name; they never change.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlFieldValueEnums.html
_FIELD_RECOVERY_ACTION = 230
_VERSION_MISMATCH = 18
_GONE = (15, 16)  # GPU_IS_LOST, RESET_REQUIRED: further questions to this GPU are pointless
_RECOVERY_ACTIONS = (
    *("none", "reset", "reboot", "drain P2P", "drain and reset"),
    *("recover IMEX domain", "bus reset", "system reboot"),
)
_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
# Only these reasons mean that something is wrong; idle, or at the power limit, is normal.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_SLOWDOWNS = (
    (0x08, "hardware slowdown"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "hardware power brake"),
)


def start_nvml() -> tuple[Any | Unavailable, str | None]:
    """Return nvidia-ml-py with NVML started, or why not; and NVML's error text if it is installed but broken.

    The caller has to call ``nvmlShutdown`` when done.
    """
    try:
        ctypes.CDLL(LIBRARY)  # 0.1 ms; importing pynvml takes 30 ms, which machines without a driver are spared
    except OSError as error:
        missing = "cannot open shared object file" in str(error)
        reason = f"`{LIBRARY}` of the NVIDIA driver is not installed" if missing else f"NVML does not load: {error}"
        return Unavailable(reason), None if missing else str(error)
    try:
        import pynvml as api
    except ImportError as error:
        return Unavailable(f"the package nvidia-ml-py does not import: {error}"), None
    try:
        api.nvmlInit()
    except api.NVMLError as error:
        text = nvml_text(api, error)
        return Unavailable(f"NVML does not start: {text}"), text
    return api, None


def probe_nvml() -> tuple[NvmlFacts | Unavailable, str | None]:
    """Return NVML's facts, or why there are none; and NVML's error text if it is installed but does not work.

    A fact that one GPU does not answer is ``Unavailable``; a GPU that answers nothing has ``fault``. Never raises for a
    broken driver.
    """
    api, error = start_nvml()
    if isinstance(api, Unavailable):
        return api, error
    try:
        return _facts(api), None
    except api.NVMLError as error:
        text = nvml_text(api, error)
        return Unavailable(f"NVML does not answer: {text}"), text
    finally:
        with suppress(api.NVMLError):
            api.nvmlShutdown()


def _facts(api: Any) -> NvmlFacts:
    cuda = api.nvmlSystemGetCudaDriverVersion_v2()
    gpus: list[Gpu] = []
    for number in range(api.nvmlDeviceGetCount()):
        gpu = _gpu(api, number, len(gpus))
        if gpu is not None:
            gpus.append(gpu)
    return NvmlFacts(api.nvmlSystemGetDriverVersion(), (cuda // 1000, cuda % 1000 // 10), tuple(gpus))


def _gpu(api: Any, number: int, index: int) -> Gpu | None:
    """Return one GPU; None if this user may not use it, in which case CUDA does not count it either."""
    gpu = Gpu(index=index, uuid="", name=f"GPU {number}")
    try:
        handle = api.nvmlDeviceGetHandleByIndex(number)
        gpu = replace(gpu, uuid=api.nvmlDeviceGetUUID(handle), name=api.nvmlDeviceGetName(handle))
        return replace(gpu, **_answers(api, handle))
    except api.NVMLError as error:
        if not gpu.uuid and error.value == api.NVML_ERROR_NO_PERMISSION:
            return None
        return replace(gpu, fault=nvml_text(api, error))


def _answers(api: Any, handle: Any) -> dict[str, Any]:
    memory = ask(api, lambda: memory_of(api, handle))
    total, used = (memory, memory) if isinstance(memory, Unavailable) else memory
    mig = ask(api, lambda: _mig_enabled(api, handle))
    rows = ask(api, lambda: tuple(api.nvmlDeviceGetRemappedRows(handle)))
    pending, failed = (rows, rows) if isinstance(rows, Unavailable) else (bool(rows[2]), bool(rows[3]))
    return {
        "pci_bus_id": known(ask(api, lambda: str(api.nvmlDeviceGetPciInfo(handle).busId)), ""),
        "memory_total_bytes": total,
        "memory_used_bytes": used,
        "compute_capability": ask(api, lambda: tuple(api.nvmlDeviceGetCudaComputeCapability(handle))),
        "mig_enabled": mig,
        "mig_devices": _mig_devices(api, handle) if mig is True else (),
        **{name: ask(api, partial(question, api, handle)) for name, question in LIVE_FACTS.items()},
        "processes": ask(
            api,
            lambda: _described(
                (process.pid, process.usedGpuMemory) for process in api.nvmlDeviceGetComputeRunningProcesses(handle)
            ),
        ),
        "ecc_uncorrected": ask(api, lambda: _uncorrected_errors(api, handle)),
        "remap_pending": pending,
        "remap_failed": failed,
        "recovery_action": ask(api, lambda: _recovery_action(api, handle)),
        "compute_mode": ask(api, lambda: _named(_COMPUTE_MODES, api.nvmlDeviceGetComputeMode(handle))),
    }


def _described(running: Iterable[tuple[int, int | None]]) -> tuple[GpuProcess, ...]:
    from ddplaunch.machine.processes.orphans import gpu_process  # imported only if processes are asked for

    return tuple(gpu_process(pid, size) for pid, size in running)


def _uncorrected_errors(api: Any, handle: Any) -> int:
    kind, since = api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, api.NVML_VOLATILE_ECC
    return int(api.nvmlDeviceGetTotalEccErrors(handle, kind, since))


def memory_of(api: Any, handle: Any) -> tuple[int, int]:
    """Return total and used bytes. Raises NVML's errors; to be called through ``ask``."""
    try:  # version 1 counts what the driver reserves (hundreds of MiB) as used
        memory = api.nvmlDeviceGetMemoryInfo(handle, version=api.nvmlMemory_v2)
    except (api.NVMLError, AttributeError):
        memory = api.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.total), int(memory.used)


def _mig_enabled(api: Any, handle: Any) -> bool:
    try:
        return bool(api.nvmlDeviceGetMigMode(handle)[0])
    except api.NVMLError_NotSupported:  # the GPU does not support MIG
        return False


def _mig_devices(api: Any, handle: Any) -> tuple[MigDevice, ...]:
    slots = known(ask(api, lambda: int(api.nvmlDeviceGetMaxMigDeviceCount(handle))), 0)
    answers = (ask(api, lambda slot=slot: _mig_device(api, handle, slot)) for slot in range(slots))  # type: ignore[misc]
    return tuple(device for device in answers if isinstance(device, MigDevice))  # empty slots may lie between others


def _mig_device(api: Any, handle: Any, slot: int) -> MigDevice:
    device = api.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
    name = known(ask(api, lambda: str(api.nvmlDeviceGetName(device))), "MIG device")
    memory_bytes = known(ask(api, lambda: memory_of(api, device)[0]), None)
    return MigDevice(api.nvmlDeviceGetUUID(device), name, memory_bytes)


def _recovery_action(api: Any, handle: Any) -> str:
    field = api.nvmlDeviceGetFieldValues(handle, [_FIELD_RECOVERY_ACTION])[0]
    if field.nvmlReturn != api.NVML_SUCCESS:
        raise api.NVMLError(field.nvmlReturn)
    return _named(_RECOVERY_ACTIONS, field.value.uiVal)


def _slowdowns(api: Any, handle: Any) -> tuple[str, ...]:
    """Return the harmful reasons for lowered clocks. Raises NVML's errors; to be called through ``ask``."""
    mask = api.nvmlDeviceGetCurrentClocksEventReasons(handle)  # since driver 535
    return tuple(name for bit, name in _SLOWDOWNS if mask & bit)


#: Facts that change while a GPU works, by field of ``Gpu``; to be called through ``ask``. The functions look constants
#: up themselves, so that a name missing in an old nvidia-ml-py costs one fact only.
LIVE_FACTS: Mapping[str, Callable[[Any, Any], Any]] = {
    "utilization_percent": lambda api, handle: int(api.nvmlDeviceGetUtilizationRates(handle).gpu),
    "throttle_reasons": _slowdowns,
    "temperature_c": lambda api, handle: int(api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU)),
}


def _named(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else f"unknown ({number})"


def ask(api: Any, question: Callable[[], T]) -> T | Unavailable:
    """Return the answer, or why there is none; raises if the GPU is gone and will answer nothing."""
    try:
        return question()
    except api.NVMLError as error:
        if error.value in _GONE:
            raise
        return Unavailable(f"NVML: {nvml_text(api, error)}")
    except (AttributeError, api.NVMLLibraryMismatchError):
        return Unavailable("the installed nvidia-ml-py or the driver is too old to tell")


def nvml_text(api: Any, error: Any) -> str:
    """Return NVML's error text, with the wording of `nvidia-smi` (which people search for) where pynvml's differs."""
    return "Driver/library version mismatch" if error.value == _VERSION_MISMATCH else str(error)


AMD_DRIVER = "/dev/kfd"


def probe_amd(root: str = "") -> NvmlFacts | Unavailable:
    """Return what the kernel below ``root`` shows of AMD's GPUs, in the form of ``probe_nvml`` and in HIP's order.

    No ROCm library is needed; ECC errors and temperatures are not available.
    """
    devices = amd_devices(root)
    if not devices:
        return Unavailable("the kernel shows no GPU of AMD's that this user may use")
    driver = files.read(f"{root}/sys/module/amdgpu/version")  # only AMD's own driver package has it
    release = files.read(f"{root}/proc/sys/kernel/osrelease") or "unknown"
    gpus = tuple(_amd_gpu(device, root) for device in devices)
    return NvmlFacts(driver or f"of Linux {release}", (0, 0), gpus, "amd", amd_denied(devices, root))


def _amd_gpu(device: AmdDevice, root: str) -> Gpu:
    def number(name: str) -> int | Unavailable:
        value = files.number(f"{device.folder}/{name}")
        return Unavailable(f"the driver does not tell {name}") if value is None else value

    holders = amd_holders((device,), root).items()
    return Gpu(
        index=device.index,
        uuid=device.uuid,
        name=files.read(f"{device.folder}/product_name") or f"AMD {device.chip}",
        pci_bus_id=device.pci_bus_id,
        memory_total_bytes=number("mem_info_vram_total"),
        memory_used_bytes=number("mem_info_vram_used"),
        mig_enabled=False,
        utilization_percent=number("gpu_busy_percent"),
        processes=_described((pid, by_gpu[device.index]) for pid, by_gpu in holders),
    )
