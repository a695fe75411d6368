"""The checks of which GPUs the ranks get: cases in which each fires and in which it stays silent."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from ddplaunch.machine.facts import MigDevice, NvidiaFacts
from ddplaunch.planning.launch import Variable
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.checks.cases import NO_LAUNCH, fires, judged, silent
from tests.checks.healthy import FLAG, GIB, healthy_gpu, healthy_launch, healthy_nvml, healthy_torch, topology

ON_CPU = healthy_launch(device=Resolved("cpu", FLAG))
FELL_BACK = healthy_launch(device=Resolved("cpu", Source("detected", "0 visible GPUs")))
NO_NVML = Unavailable("`libnvidia-ml.so.1` of the NVIDIA driver is not installed")
NO_NVIDIA = NvidiaFacts(0, None, 0)
EMPTY = healthy_nvml(gpus=())
SLICES = tuple(MigDevice(f"MIG-{number}aaa-bbbb", "H100 MIG 1g.10gb", 10 * GIB) for number in range(2))
SPLIT = healthy_nvml(healthy_gpu(0, mig_enabled=True, mig_devices=SLICES), healthy_gpu(1))
CHOSEN = (Variable("CUDA_VISIBLE_DEVICES", "0,1", Source("flag", "--gpus"), "the GPUs of this launch"),)
BY_ENV = (Variable("CUDA_VISIBLE_DEVICES", "2,3", Source("flag", "--env-file jobs.env"), "yours"),)
HIDDEN = (dataclasses.replace(CHOSEN[0], value=""),)
AMD, BY_HIP = healthy_nvml(cuda_driver_version=(0, 0), vendor="amd"), {"HIP_VISIBLE_DEVICES": "2,3"}
BY_SLURM = {"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "2,3"}


def showing(devices: str) -> dict[str, Any]:
    return {"environment": {"CUDA_VISIBLE_DEVICES": devices}}


too_many = partial(fires, "more-processes-than-gpus")
no_gpu = partial(fires, "no-gpu-for-cuda")
unknown = partial(fires, "visible-devices-unknown")
FIRES = (
    too_many("16 processes … 8 GPUs … `ddplaunch run 8 …` … --device cpu", launch=16),
    too_many("hides 6 of 8 … `ddplaunch run 2 …` … `unset CUDA_VIS", launch=4, **showing("2,3")),
    too_many("HIP_VISIBLE_DEVICES=2,3 from … hides 6 of 8 … `unset HIP_VIS", launch=4, nvml=AMD, environment=BY_HIP),
    too_many("from Slurm hides 6 of 8 … `--gpus-per-node 4`", launch=4, environment=BY_SLURM),
    too_many("drop `CUDA_VISIBLE_DEVICES=2,3` from `--env-f", launch=healthy_launch(4, environment=BY_ENV)),
    too_many("`ddplaunch run 2x8 …`", launch=healthy_launch(16, topology=topology(16, nnodes=2))),
    too_many("`--gpus 0,1` leaves out 6 of 8 … name 4 GPUs", launch=healthy_launch(4, environment=CHOSEN)),
    no_gpu("no NVIDIA GPU … --device cpu", nvml=EMPTY),
    no_gpu("libnvidia-ml.so.1", nvml=NO_NVML, nvidia=NO_NVIDIA, torch=Unavailable("not installed")),
    no_gpu("from the shell's environment hides all 8 GPUs … unset CUDA_VISIBLE_DEVICES", **showing("")),
    unknown("`8` … 1 GPU of 8 … `1,2` … DEVICES=0` … =0,8,1,2 from", launch=NO_LAUNCH, **showing("0,8,1,2")),
    unknown(
        "`8` … DEVICES=8 from the shell", launch=dataclasses.replace(FELL_BACK, environment=HIDDEN), **showing("8")
    ),
    fires("duplicate-gpu", "`1` twice … DEVICES=1,1 from the shell's", launch=NO_LAUNCH, **showing("1,1")),
    fires("mig-one-per-process", f"2 processes … {SLICES[0].uuid} … run 1 … -i 0 -mig 0", launch=2, nvml=SPLIT),
)

SILENT = (
    silent("more-processes-than-gpus", "on the CPU", launch=dataclasses.replace(ON_CPU, topology=topology(64))),
    silent("more-processes-than-gpus", "MIG is another check", launch=2, nvml=SPLIT),
    silent("more-processes-than-gpus", "bad list is another", launch=4, **showing("0,9")),
    silent("no-gpu-for-cuda", "on the CPU", launch=ON_CPU, nvml=EMPTY),
    silent("no-gpu-for-cuda", "ROCm", nvml=NO_NVML, nvidia=NO_NVIDIA, torch=healthy_torch(cuda=None, hip="6.2")),
    silent("no-gpu-for-cuda", "device nodes without NVML", nvml=NO_NVML),
    silent("visible-devices-unknown", "hidden on purpose", launch=NO_LAUNCH, **showing("-1")),
    silent("visible-devices-unknown", "asked for the CPU", launch=ON_CPU, **showing("99")),
    silent("visible-devices-unknown", launch=healthy_launch(2, environment=CHOSEN), **showing("99")),
    silent("duplicate-gpu", "asked for the CPU", launch=ON_CPU, **showing("1,1")),
    silent("duplicate-gpu", "an unknown one is another check", launch=NO_LAUNCH, **showing("9")),
    silent("mig-one-per-process", "one rank", launch=1, nvml=SPLIT),
    silent("mig-one-per-process", "whole GPU named", launch=2, nvml=SPLIT, **showing("1")),
)
test_fires_with_words_and_stays_silent_without = judged(*FIRES, *SILENT)
