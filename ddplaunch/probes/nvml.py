"""What NVML says of every GPU, through nvidia-ml-py; refuses to judge health or to honour CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from ddplaunch.probes.facts import Gpu, GpuProcess, MigDevice, NvmlFacts
from ddplaunch.probes.gpu_processes import gpu_process
from ddplaunch.values import Unavailable

T = TypeVar("T")

LIBRARY = "libnvidia-ml.so.1"

# Numbers of NVML's interface, which never change, where older nvidia-ml-py has no name for them.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlFieldValueEnums.html
_FIELD_RECOVERY_ACTION = 230
_VERSION_MISMATCH = 18
_GONE = (15, 16)  # GPU_IS_LOST, RESET_REQUIRED: no other question to this GPU makes sense
_RECOVERY_ACTIONS = (
    "none",
    "reset",
    "reboot",
    "drain P2P",
    "drain and reset",
    "recover IMEX domain",
    "bus reset",
    "system reboot",
)
_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
# Of all reasons only these mean that something is wrong; an idle GPU or one at its power limit is as it should be.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_SLOWDOWNS = (
    (0x08, "hardware slowdown"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "hardware power brake"),
)


def start_nvml() -> tuple[Any | Unavailable, str | None]:
    """Return nvidia-ml-py with NVML started, and NVML's own error text if it is there but does not work.

    Whoever gets it calls ``nvmlShutdown`` when done.
    """
    try:
        ctypes.CDLL(LIBRARY)  # 0.1 ms; importing pynvml costs 30 ms, which machines without a driver need not pay
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
        text = text_of(api, error)
        return Unavailable(f"NVML does not start: {text}"), text
    return api, None


def probe_nvml(details: bool = True) -> tuple[NvmlFacts | Unavailable, str | None]:
    """Return what NVML knows, and NVML's own error text if its library is there but does not work.

    ``details=False`` asks for uuid, name, memory, compute capability and MIG only. A question that one GPU does not
    answer is ``Unavailable`` there; a GPU that answers nothing carries ``fault``. Never raises for a broken driver.
    """
    api, error = start_nvml()
    if isinstance(api, Unavailable):
        return api, error
    try:
        return _facts(api, details), None
    except api.NVMLError as error:
        text = text_of(api, error)
        return Unavailable(f"NVML does not answer: {text}"), text
    finally:
        with suppress(api.NVMLError):
            api.nvmlShutdown()


def _facts(api: Any, details: bool) -> NvmlFacts:
    cuda = api.nvmlSystemGetCudaDriverVersion_v2()
    gpus: list[Gpu] = []
    for number in range(api.nvmlDeviceGetCount()):
        gpu = _gpu(api, number, len(gpus), details)
        if gpu is not None:
            gpus.append(gpu)
    return NvmlFacts(api.nvmlSystemGetDriverVersion(), (cuda // 1000, cuda % 1000 // 10), tuple(gpus))


def _gpu(api: Any, number: int, index: int, details: bool) -> Gpu | None:
    """Describe one GPU; None if this user may not use it, in which case CUDA does not count it either."""
    gpu = Gpu(index=index, uuid="", name=f"GPU {number}")
    try:
        handle = api.nvmlDeviceGetHandleByIndex(number)
        gpu = replace(gpu, uuid=api.nvmlDeviceGetUUID(handle), name=api.nvmlDeviceGetName(handle))
        gpu = replace(gpu, **_basics(api, handle))
        return replace(gpu, **_details(api, handle)) if details else gpu
    except api.NVMLError as error:
        if not gpu.uuid and error.value == api.NVML_ERROR_NO_PERMISSION:
            return None
        return replace(gpu, fault=text_of(api, error))


def _basics(api: Any, handle: Any) -> dict[str, Any]:
    memory = ask(api, lambda: memory_of(api, handle))
    total, used = (memory, memory) if isinstance(memory, Unavailable) else memory
    mig = ask(api, lambda: _mig_enabled(api, handle))
    return {
        "pci_bus_id": _pci_bus_id(api, handle),
        "memory_total_bytes": total,
        "memory_used_bytes": used,
        "compute_capability": ask(api, lambda: tuple(api.nvmlDeviceGetCudaComputeCapability(handle))),
        "mig_enabled": mig,
        "mig_devices": _mig_devices(api, handle) if mig is True else (),
    }


def _details(api: Any, handle: Any) -> dict[str, Any]:
    rows = ask(api, lambda: _remapped_rows(api, handle))
    pending, failed = (rows, rows) if isinstance(rows, Unavailable) else rows
    # Constants are looked up inside the questions, so that a name missing in an old nvidia-ml-py costs one fact only.
    return {
        "utilization_percent": ask(api, lambda: int(api.nvmlDeviceGetUtilizationRates(handle).gpu)),
        "processes": ask(api, lambda: _processes(api, handle)),
        "ecc_uncorrected": ask(
            api,
            lambda: int(
                api.nvmlDeviceGetTotalEccErrors(handle, api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, api.NVML_VOLATILE_ECC)
            ),
        ),
        "remap_pending": pending,
        "remap_failed": failed,
        "recovery_action": ask(api, lambda: _recovery_action(api, handle)),
        "throttle_reasons": ask(api, lambda: slowdowns(api, handle)),
        "temperature_c": ask(api, lambda: int(api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU))),
        "compute_mode": ask(api, lambda: _named(_COMPUTE_MODES, api.nvmlDeviceGetComputeMode(handle))),
    }


def memory_of(api: Any, handle: Any) -> tuple[int, int]:
    """Return total and used bytes; for ``ask``, because it raises NVML's errors."""
    try:  # version 1 counts what the driver reserves (hundreds of MiB) as used
        memory = api.nvmlDeviceGetMemoryInfo(handle, version=api.nvmlMemory_v2)
    except (api.NVMLError, AttributeError):
        memory = api.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.total), int(memory.used)


def _remapped_rows(api: Any, handle: Any) -> tuple[bool, bool]:
    _, _, pending, failed = api.nvmlDeviceGetRemappedRows(handle)
    return bool(pending), bool(failed)


def _pci_bus_id(api: Any, handle: Any) -> str:
    info = ask(api, lambda: api.nvmlDeviceGetPciInfo(handle).busId)
    if isinstance(info, Unavailable):
        return ""
    return info.decode(errors="replace") if isinstance(info, bytes) else str(info)


def _mig_enabled(api: Any, handle: Any) -> bool:
    try:
        return bool(api.nvmlDeviceGetMigMode(handle)[0])
    except api.NVMLError_NotSupported:  # a GPU that cannot be split is not split
        return False


def _mig_devices(api: Any, handle: Any) -> tuple[MigDevice, ...]:
    most = ask(api, lambda: int(api.nvmlDeviceGetMaxMigDeviceCount(handle)))
    slots = 0 if isinstance(most, Unavailable) else most
    found = (ask(api, lambda slot=slot: _mig_device(api, handle, slot)) for slot in range(slots))  # type: ignore[misc]
    return tuple(device for device in found if isinstance(device, MigDevice))  # slots may be empty between others


def _mig_device(api: Any, handle: Any, slot: int) -> MigDevice:
    device = api.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
    name = ask(api, lambda: str(api.nvmlDeviceGetName(device)))
    memory = ask(api, lambda: memory_of(api, device)[0])
    return MigDevice(
        uuid=api.nvmlDeviceGetUUID(device),
        name="MIG device" if isinstance(name, Unavailable) else name,
        memory_bytes=None if isinstance(memory, Unavailable) else memory,
    )


def _processes(api: Any, handle: Any) -> tuple[GpuProcess, ...]:
    running = api.nvmlDeviceGetComputeRunningProcesses(handle)
    return tuple(gpu_process(process.pid, process.usedGpuMemory) for process in running)


def _recovery_action(api: Any, handle: Any) -> str:
    field = api.nvmlDeviceGetFieldValues(handle, [_FIELD_RECOVERY_ACTION])[0]
    if field.nvmlReturn != api.NVML_SUCCESS:
        raise api.NVMLError(field.nvmlReturn)
    return _named(_RECOVERY_ACTIONS, field.value.uiVal)


def slowdowns(api: Any, handle: Any) -> tuple[str, ...]:
    """Return why the clocks are lowered where something is wrong; for ``ask``, because it raises NVML's errors."""
    # The driver renamed "throttle" to "event" in release 535; the old name goes away in CUDA 14.
    try:
        mask = api.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except (AttributeError, api.NVMLError_FunctionNotFound):
        mask = api.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return tuple(name for bit, name in _SLOWDOWNS if mask & bit)


def _named(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else f"unknown ({number})"


def ask(api: Any, question: Callable[[], T]) -> T | Unavailable:
    """Return the answer, or why there is none; a GPU that is gone raises, since nothing else will answer."""
    try:
        return question()
    except api.NVMLError as error:
        if error.value in _GONE:
            raise
        return Unavailable(f"NVML: {text_of(api, error)}")
    except (AttributeError, api.NVMLLibraryMismatchError):
        return Unavailable("the installed nvidia-ml-py or the driver is too old to tell")


def text_of(api: Any, error: Any) -> str:
    """Return NVML's error as people search for it."""
    # pynvml words this one differently from `nvidia-smi` and from what people search for.
    return "Driver/library version mismatch" if error.value == _VERSION_MISMATCH else str(error)
