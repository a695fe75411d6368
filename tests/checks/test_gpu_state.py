"""The checks of the GPUs' state: cases in which each fires and in which it stays silent."""

from __future__ import annotations

import dataclasses
from functools import partial

from ddplaunch.machine.facts import GpuProcess, MigDevice, NvmlFacts
from ddplaunch.values.resolved import Resolved, Unavailable
from tests.checks.cases import NO_LAUNCH, fires, judged, silent
from tests.checks.healthy import FLAG, GIB, healthy_launch, healthy_nvml, with_gpu

ON_CPU = healthy_launch(device=Resolved("cpu", FLAG))
TRAINER = GpuProcess(4242, 60 * GIB, "eve", "python train.py --big", orphan=False)
ORPHAN = GpuProcess(777, 2 * GIB, "ada", "python train.py", orphan=True)
NOTEBOOK = GpuProcess(31, GIB // 2, "eve", "jupyter", orphan=False)
BUSY = with_gpu(3, processes=(TRAINER,), memory_used_bytes=61 * GIB)
SLICES = tuple(MigDevice(f"MIG-{number}aaa-bbbb", "H100 MIG 1g.10gb", 10 * GIB) for number in range(2))
SPLIT = with_gpu(0, mig_enabled=True, mig_devices=SLICES, processes=(TRAINER,))
LOST = with_gpu(7, fault="GPU is lost")
HOT = with_gpu(2, throttle_reasons=("hardware thermal slowdown",), temperature_c=91)
alone = partial(with_gpu, 1, compute_mode="exclusive process")


def held_by(process: GpuProcess) -> NvmlFacts:
    return with_gpu(0, processes=(process,), memory_used_bytes=2 * GIB)


def also(nvml: NvmlFacts, index: int) -> NvmlFacts:
    """Return the same GPUs, of which the first is as that one."""
    return dataclasses.replace(nvml, gpus=(dataclasses.replace(nvml.gpus[index], index=0), *nvml.gpus[1:]))


busy = partial(fires, "gpu-busy")
exclusive = partial(fires, "gpu-exclusive-mode")
recovery = partial(fires, "gpu-recovery-needed")
pending = partial(fires, "gpu-remap-pending")
failed = partial(fires, "gpu-remap-failed")
FIRES = (
    busy("GPU 3 … pid 4242 of eve … `python train.py --big` … 60 GiB … `ddplaunch run 7 --gpus free:7 …`", nvml=BUSY),
    busy("GPU 3 … --gpus free:7", launch=NO_LAUNCH, nvml=BUSY),
    busy("GPU 3 … `ddplaunch run 4 --gpus free:4 …`", launch=4, nvml=BUSY),
    busy("GPU 0 is in use … , and 1 more of 8 … free:6 … GPU 3: pid 4242", nvml=also(BUSY, 3)),
    busy("orphaned rank … `ddplaunch clean` ends the ranks of dead … (pid 777)", nvml=held_by(ORPHAN)),
    busy("`ddplaunch clean` ends", nvml=held_by(dataclasses.replace(ORPHAN, user=None))),
    busy("ask eve to run `ddplaunch … (pid 777)", nvml=held_by(dataclasses.replace(ORPHAN, user="eve"))),
    busy("all GPUs are in use; wait or free one", launch=1, nvml=healthy_nvml(BUSY.gpus[3])),
    busy("jupyter … 512 MiB", "warning", nvml=with_gpu(0, processes=(NOTEBOOK,))),
    busy("not visible from here (40 GiB)", nvml=with_gpu(2, memory_used_bytes=40 * GIB)),
    *(
        busy("(40 GiB)", nvml=with_gpu(2, memory_used_bytes=40 * GIB, memory_total_bytes=total))
        for total in (Unavailable("not told"), 0)
    ),
    exclusive("GPU 1 … prohibited … nvidia-smi -i 1 -c DEFAULT", nvml=with_gpu(1, compute_mode="prohibited")),
    exclusive("exclusive process … pid 4242", launch=NO_LAUNCH, nvml=alone(processes=(TRAINER,))),
    fires("gpu-lost", "GPU 7 of 8 does … GPU is lost … --gpus 0,1,2,3,4,5,6", nvml=LOST),
    fires("gpu-lost", "GPUs 0, 7 of 8 do not answer … `ddplaunch run 6 --gpus 1,2,3,4,5,6 …`", nvml=also(LOST, 7)),
    busy("`ddplaunch run 6 --gpus free:6 …`", nvml=dataclasses.replace(BUSY, gpus=(*BUSY.gpus[:7], LOST.gpus[7]))),
    fires("gpu-lost", "GPU 7", launch=4, nvml=LOST),
    fires("gpu-ecc-errors", "GPU 4 … 1 uncorrectable … -i 4", "warning", nvml=with_gpu(4, ecc_uncorrected=1)),
    pending("GPU 4 … --gpu-reset -i 4", "warning", nvml=with_gpu(4, remap_pending=True)),
    failed("GPU 4 … replaced", nvml=with_gpu(4, remap_failed=True)),
    recovery("GPU 6 … recovery action reset … --gpu-reset -i 6", nvml=with_gpu(6, recovery_action="reset")),
    recovery("sudo reboot", launch=NO_LAUNCH, nvml=with_gpu(6, recovery_action="reboot")),
    fires("gpu-throttled", "GPU 2 … thermal … 91 °C", "warning", nvml=HOT),
)

SILENT = (
    silent("gpu-busy", "not one of ours", launch=2, nvml=BUSY),
    silent("gpu-busy", "3 of 80 GiB", nvml=with_gpu(0, memory_used_bytes=3 * GIB)),
    silent("gpu-busy", "on the CPU", launch=ON_CPU, nvml=BUSY),
    silent("gpu-busy", "nobody can tell whose instance", launch=NO_LAUNCH, nvml=SPLIT),
    silent("gpu-busy", "not told", nvml=with_gpu(0, processes=Unavailable("NVML: Not Supported"))),
    silent("gpu-exclusive-mode", "and idle", nvml=alone()),
    silent("gpu-lost", "hidden", nvml=with_gpu(7, fault="lost"), environment={"CUDA_VISIBLE_DEVICES": "0,1"}),
    silent("gpu-lost", "on the CPU", launch=ON_CPU, nvml=with_gpu(7, fault="lost")),
    silent("gpu-ecc-errors", "not one of ours", launch=4, nvml=with_gpu(4, ecc_uncorrected=3)),
    silent("gpu-ecc-errors", "no ECC", nvml=with_gpu(4, ecc_uncorrected=Unavailable("Not Supported"))),
    silent("gpu-remap-pending", "not told", nvml=with_gpu(4, remap_pending=Unavailable("Not Supported"))),
    silent("gpu-remap-failed", "not one of ours", launch=4, nvml=with_gpu(4, remap_failed=True)),
    silent("gpu-recovery-needed", "old driver", nvml=with_gpu(6, recovery_action=Unavailable("too old"))),
    silent("gpu-throttled", "not told", nvml=with_gpu(2, throttle_reasons=Unavailable("Not Supported"))),
)
test_fires_with_words_and_stays_silent_without = judged(*FIRES, *SILENT)
