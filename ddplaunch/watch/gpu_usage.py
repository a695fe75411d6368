"""Samples the GPUs, by NVML or for AMD's from the kernel, and finds which rank uses which GPU.

NVML may take a second to start, and hangs with a broken driver: call it where nothing waits for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ddplaunch.machine.facts import Gpu, NvmlFacts
from ddplaunch.machine.files import gpu_devices, number
from ddplaunch.machine.hardware import AmdDevice, amd_devices, amd_holders
from ddplaunch.machine.nvml import LIVE_FACTS, ask, memory_of, nvml_text, start_nvml
from ddplaunch.machine.processes.process_table import read_variable
from ddplaunch.machine.sample import GpuSample, RankSample
from ddplaunch.planning.gpus import exported, shown_gpus
from ddplaunch.values.resolved import Unavailable, known

_HOLDERS_EVERY_S = 5.0  # the processes on GPUs seldom change, and are the slowest query
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_QUESTIONS = {
    **{name: question for name, question in LIVE_FACTS.items() if name != "throttle_reasons"},
    "uuid": lambda api, handle: str(api.nvmlDeviceGetUUID(handle)),
    "memory": memory_of,
    "slowdowns": LIVE_FACTS["throttle_reasons"],
    "power_w": lambda api, handle: api.nvmlDeviceGetPowerUsage(handle) / 1000,
    "clock_mhz": lambda api, handle: int(api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_SM)),
    "clock_max_mhz": lambda api, handle: int(api.nvmlDeviceGetMaxClockInfo(handle, api.NVML_CLOCK_SM)),
}


class GpuUsage:
    """Keeps NVML open between samples. AMD's GPUs are read from sysfs below ``root``, without a library.

    A rank's GPU is the one on which it holds most memory: a stray context elsewhere is small. In a container, NVML
    shows the host's process ids or none; a rank that has opened the driver's device files is then taken to use entry
    LOCAL_RANK of CUDA_VISIBLE_DEVICES, or of HIP's variables, as with every launcher.
    """

    def __init__(self, root: str = "", proc: str = "/proc") -> None:
        """Start NVML; if that fails and there is no AMD GPU, ``reason`` says why."""
        api, _ = start_nvml()
        self._root, self._proc = root, proc
        self._api: Any = known(api, None)
        self._amd = amd_devices(root) if self._api is None else ()
        self.reason = api.reason if isinstance(api, Unavailable) else "NVML shows no GPU"
        self._bytes: Mapping[int, Mapping[int, int | None]] = {}  # pid → GPU index → memory held there
        self._given: dict[int, int] = {}  # pid of a rank → its GPU by its environment
        self._due_s = 0.0

    def sample(
        self, ranks: Sequence[RankSample], rank_by_pid: Mapping[int, int]
    ) -> tuple[tuple[RankSample, ...], tuple[GpuSample, ...]]:
        """Return the ranks with their GPUs, and all GPUs with their ranks; values a GPU does not report are None."""
        gpus = tuple(map(_amd_sample, self._amd)) if self._amd else self._read_nvml()
        if not gpus:
            return tuple(ranks), ()
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + _HOLDERS_EVERY_S
            self._bytes = amd_holders(self._amd, self._root) if self._amd else self._holders(gpus)
            self._given = {rank.pid: gpu for rank in ranks if (gpu := self._device(rank, gpus)) is not None}
        bytes_by_rank: dict[int, dict[int, int]] = {}
        for pid, rank in rank_by_pid.items():
            for index, size in self._bytes.get(pid, {}).items():
                on_gpu = bytes_by_rank.setdefault(rank, {})
                on_gpu[index] = on_gpu.get(index, 0) + (size or 0)
        placed = tuple(self._placed(rank, bytes_by_rank.get(rank.rank, {})) for rank in ranks)
        strangers = [pid for pid in self._bytes if pid not in rank_by_pid and os.path.exists(f"{self._proc}/{pid}")]  # noqa: PTH110
        return placed, tuple(self._with_ranks(gpu, placed, bytes_by_rank, strangers) for gpu in gpus)

    def _placed(self, rank: RankSample, bytes_by_gpu: Mapping[int, int]) -> RankSample:
        if not bytes_by_gpu:
            return replace(rank, gpu=self._given.get(rank.pid))
        index = max(bytes_by_gpu, key=bytes_by_gpu.__getitem__)
        return replace(rank, gpu=index, gpu_memory_bytes=bytes_by_gpu[index] or None)

    def _with_ranks(
        self, gpu: GpuSample, placed: Sequence[RankSample], sizes: Mapping[int, Mapping[int, int]], strangers: list[int]
    ) -> GpuSample:
        ranks = [rank.rank for rank in placed if gpu.index in (rank.gpu, *sizes.get(rank.rank, ()))]
        other_processes = sum(gpu.index in self._bytes[pid] for pid in strangers)
        return replace(gpu, ranks=tuple(sorted(ranks)), others=other_processes)

    def _read_nvml(self) -> tuple[GpuSample, ...]:
        if self._api is None:
            return ()
        try:
            return tuple(map(self._nvml_sample, range(self._api.nvmlDeviceGetCount())))
        except self._api.NVMLError as error:
            self.reason = f"NVML does not answer: {nvml_text(self._api, error)}"
            return ()

    def _nvml_sample(self, index: int) -> GpuSample:
        api = self._api
        try:
            handle = api.nvmlDeviceGetHandleByIndex(index)
            values = {
                name: value
                for name, question in _QUESTIONS.items()
                if not isinstance(value := ask(api, partial(question, api, handle)), Unavailable)
            }
        except api.NVMLError as error:  # the GPU is lost
            return GpuSample(index, fault=nvml_text(api, error))
        total, used = values.pop("memory", (None, None))
        return GpuSample(index, memory_total_bytes=total, memory_used_bytes=used, **values)

    def _holders(self, gpus: Sequence[GpuSample]) -> dict[int, dict[int, int | None]]:
        api, holders = self._api, dict[int, dict[int, int | None]]()
        for gpu in gpus:
            try:
                running = api.nvmlDeviceGetComputeRunningProcesses(api.nvmlDeviceGetHandleByIndex(gpu.index))
            except (api.NVMLError, AttributeError):  # not supported
                continue
            for process in running:
                holders.setdefault(process.pid, {})[gpu.index] = process.usedGpuMemory
        return holders

    def _device(self, rank: RankSample, gpus: Sequence[GpuSample]) -> int | None:
        """Return the index of the rank's GPU by its environment if it uses a GPU that NVML does not show, else None."""
        if rank.pid in self._bytes or not gpu_devices(rank.pid, self._proc):
            return None
        variables = {
            name: value.decode(errors="replace")
            for name in _VISIBLE
            if (value := read_variable(rank.pid, name.encode(), self._proc)) is not None
        }
        shown = tuple(Gpu(gpu.index, gpu.uuid, "") for gpu in gpus)
        facts = NvmlFacts("", (0, 0), shown, "amd" if self._amd else "nvidia")
        visible = shown_gpus(facts, exported(variables, (), facts)).entries
        return visible[rank.local_rank].gpu.index if rank.local_rank < len(visible) else None


def _amd_sample(device: AmdDevice) -> GpuSample:
    return GpuSample(
        device.index,
        device.uuid,
        utilization_percent=number(f"{device.folder}/gpu_busy_percent"),
        memory_used_bytes=number(f"{device.folder}/mem_info_vram_used"),
        memory_total_bytes=number(f"{device.folder}/mem_info_vram_total"),
    )
