"""What NVML says of the GPUs, or the kernel of AMD's, and which rank works on which.

NVML may take a second to start, and hangs where the driver is ill: call it where nothing waits for it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ddplaunch.machine.facts import Gpu, NvmlFacts
from ddplaunch.machine.files import gpu_devices, names, number, read
from ddplaunch.machine.hardware import AmdDevice, amd_devices, amd_holders
from ddplaunch.machine.nvml import ask, memory_of, slowdowns, start_nvml, text_of
from ddplaunch.machine.processes.process_table import read_variable
from ddplaunch.planning.gpus import exported, shown
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable, known
from ddplaunch.watch.samples import GpuSample, RankIdentity, RankSample

T = TypeVar("T")
_HOLDERS_EVERY_S = 5.0  # who holds memory changes seldom, and costs most to ask
_LOOK_FOR_DEVICES_EVERY_S = 10.0


@dataclass(frozen=True)
class GpuReading:
    """The GPUs at one moment; ``memory_of`` is pid → GPU index → bytes (None: the driver does not say)."""

    gpus: tuple[GpuSample, ...] = ()
    memory_of: Mapping[int, Mapping[int, int | None]] | None = None
    reason: str | None = None
    vendor: str = "nvidia"  # or "amd"


class GpuUsage:
    """Holds NVML open between readings. AMD's GPUs are read from sysfs below ``root``, which needs no library."""

    def __init__(self, root: str = "") -> None:
        """Start NVML; where that fails, and there is no GPU of AMD's, every reading says why."""
        api, _ = start_nvml()
        self._root = root
        self._amd = amd_devices(root) if isinstance(api, Unavailable) else ()
        self._api: Any = known(api, None)
        self._reason = api.reason if isinstance(api, Unavailable) else "NVML shows no GPU"
        self._handles: list[tuple[GpuSample, Any]] = []
        self._holders: dict[int, dict[int, int | None]] = {}
        self._holders_due_s = 0.0
        if self._api is not None:
            try:
                self._handles += [self._opened(index) for index in range(self._api.nvmlDeviceGetCount())]
            except self._api.NVMLError as error:
                self._reason = f"NVML does not answer: {text_of(self._api, error)}"

    def _opened(self, index: int) -> tuple[GpuSample, Any]:
        api = self._api
        try:
            handle = api.nvmlDeviceGetHandleByIndex(index)
            constant = GpuSample(
                index,
                uuid=self._known(lambda: str(api.nvmlDeviceGetUUID(handle))) or "",
                power_limit_w=self._known(lambda: api.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
                clock_max_mhz=self._known(lambda: int(api.nvmlDeviceGetMaxClockInfo(handle, api.NVML_CLOCK_SM))),
            )
        except api.NVMLError as error:
            return GpuSample(index, fault=text_of(api, error)), None
        return constant, handle

    def sample(self) -> GpuReading:
        """Return every GPU; a question that one does not answer is None, one that is lost has a ``fault``."""
        if not self._handles and not self._amd:
            return GpuReading(reason=self._reason)
        gpus = tuple(self._read(constant, handle) for constant, handle in self._handles)
        gpus += tuple(_amd_sample(device) for device in self._amd)
        if time.monotonic() >= self._holders_due_s:
            self._holders_due_s = time.monotonic() + _HOLDERS_EVERY_S
            self._holders = amd_holders(self._amd, self._root) if self._amd else self._read_holders()
        return GpuReading(gpus, self._holders, vendor="amd" if self._amd else "nvidia")

    def _read(self, constant: GpuSample, handle: Any) -> GpuSample:
        api = self._api
        if handle is None:
            return constant
        try:
            total, used = self._known(lambda: memory_of(api, handle)) or (None, None)
            return replace(
                constant,
                utilization_percent=self._known(lambda: int(api.nvmlDeviceGetUtilizationRates(handle).gpu)),
                memory_used_bytes=used,
                memory_total_bytes=total,
                power_w=self._known(lambda: api.nvmlDeviceGetPowerUsage(handle) / 1000),
                temperature_c=self._known(lambda: int(api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU))),
                clock_mhz=self._known(lambda: int(api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_SM))),
                slowdowns=self._known(lambda: slowdowns(api, handle)) or (),
            )
        except api.NVMLError as error:
            return replace(constant, fault=text_of(api, error))

    def _read_holders(self) -> dict[int, dict[int, int | None]]:
        found: dict[int, dict[int, int | None]] = {}
        for constant, handle in self._handles:
            if handle is None:
                continue
            try:
                running = self._known(lambda handle=handle: self._api.nvmlDeviceGetComputeRunningProcesses(handle))  # type: ignore[misc]
            except self._api.NVMLError:  # it fell off the bus meanwhile
                continue
            for each in running or ():
                found.setdefault(each.pid, {})[constant.index] = each.usedGpuMemory
        return found

    def _known(self, question: Callable[[], T]) -> T | None:
        return known(ask(self._api, question), None)

    def close(self) -> None:
        """Let NVML go."""
        if self._api is not None:
            ask(self._api, self._api.nvmlShutdown)


def _amd_sample(device: AmdDevice) -> GpuSample:
    """Return what the driver amdgpu tells in sysfs; the temperature is that of the hottest place, where it is told.

    https://docs.kernel.org/gpu/amdgpu/thermal.html, https://docs.kernel.org/gpu/amdgpu/driver-misc.html
    """
    sensors = f"{device.folder}/hwmon"
    sensor = f"{sensors}/{next(iter(names(sensors)), '')}"

    def measured(*files: str, parts: int) -> float | None:
        return next((value / parts for file in files if (value := number(f"{sensor}/{file}")) is not None), None)

    temperature, clock = measured("temp2_input", "temp1_input", parts=1000), measured("freq1_input", parts=1_000_000)
    clocks = [int(each) for each in re.findall(r"([0-9]+)Mhz", read(f"{device.folder}/pp_dpm_sclk") or "")]
    return GpuSample(
        device.index,
        device.uuid,
        utilization_percent=number(f"{device.folder}/gpu_busy_percent"),
        memory_used_bytes=number(f"{device.folder}/mem_info_vram_used"),
        memory_total_bytes=number(f"{device.folder}/mem_info_vram_total"),
        power_w=measured("power1_average", "power1_input", parts=1_000_000),
        power_limit_w=measured("power1_cap", parts=1_000_000),
        temperature_c=None if temperature is None else int(temperature),
        clock_mhz=None if clock is None else int(clock),
        clock_max_mhz=max(clocks, default=None),
    )


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class GpuOfRank:
    """Finds the GPU of each rank: by who holds memory where, else by the devices that the rank was given.

    In a container the process ids are the host's, or none are shown; a rank that has opened the driver's device files
    then works on entry LOCAL_RANK of CUDA_VISIBLE_DEVICES, or of HIP's variables, as every launcher's ranks do.
    """

    def __init__(self, ranks: Sequence[RankIdentity], proc: str = "/proc") -> None:
        """Read nothing yet."""
        self._ranks = {rank.pid: rank for rank in ranks}
        self._proc = proc
        self._devices: dict[int, int | None] = {}
        self._look_again_s = 0.0

    def place(
        self, ranks: Sequence[RankSample], reading: GpuReading, members: Mapping[int, int]
    ) -> tuple[tuple[RankSample, ...], tuple[GpuSample, ...]]:
        """Return the ranks with their GPU, and the GPUs with their ranks; ``members`` is pid → rank."""
        if not reading.gpus:
            return tuple(ranks), reading.gpus
        held = self._held(reading, members)
        self._look_for_devices(ranks, held, reading)
        placed = tuple(self._placed(rank, held.get(rank.rank, {})) for rank in ranks)
        gpus = []
        for gpu in reading.gpus:
            here = {number for number, by_gpu in held.items() if gpu.index in by_gpu}
            here |= {rank.rank for rank in placed if rank.gpu == gpu.index}
            strangers = [pid for pid, by_gpu in (reading.memory_of or {}).items() if gpu.index in by_gpu]
            others = sum(pid not in members and self._exists(pid) for pid in strangers)
            gpus.append(replace(gpu, ranks=tuple(sorted(here)), others=others))
        return placed, tuple(gpus)

    def _held(self, reading: GpuReading, members: Mapping[int, int]) -> dict[int, dict[int, int]]:
        """Return rank → GPU → bytes of all its processes."""
        held: dict[int, dict[int, int]] = {}
        for pid, by_gpu in (reading.memory_of or {}).items():
            if pid in members:
                own = held.setdefault(members[pid], {})
                for index, size in by_gpu.items():
                    own[index] = own.get(index, 0) + (size or 0)
        return held

    def _placed(self, rank: RankSample, held: Mapping[int, int]) -> RankSample:
        """The rank's GPU is that on which it holds most: a stray context elsewhere is small."""
        if held:
            index = max(held, key=lambda each: held[each])
            return replace(rank, gpu=index, gpu_memory_bytes=held[index] or None)
        return replace(rank, gpu=self._devices.get(rank.pid))

    def _look_for_devices(self, ranks: Sequence[RankSample], held: Mapping[int, object], reading: GpuReading) -> None:
        if time.monotonic() < self._look_again_s:
            return
        self._look_again_s = time.monotonic() + _LOOK_FOR_DEVICES_EVERY_S
        for rank in ranks:
            if rank.rank not in held and self._devices.get(rank.pid) is None:
                self._devices[rank.pid] = self._device(rank, reading)

    def _device(self, rank: RankSample, reading: GpuReading) -> int | None:
        """Return the index of the GPU that the rank was given if it uses one, else None."""
        if not gpu_devices(rank.pid, self._proc):
            return None
        given = {name: read_variable(rank.pid, name.encode(), self._proc) for name in _VISIBLE}
        variables = {name: value.decode(errors="replace") for name, value in given.items() if value is not None}
        there = NvmlFacts("", (0, 0), tuple(Gpu(gpu.index, gpu.uuid, "") for gpu in reading.gpus), reading.vendor)
        visible = shown(there, exported(variables, (), there)).entries
        return visible[rank.local_rank].gpu.index if rank.local_rank < len(visible) else None

    def _exists(self, pid: int) -> bool:
        return os.path.exists(f"{self._proc}/{pid}")  # noqa: PTH110 - a pid of another namespace says nothing here
