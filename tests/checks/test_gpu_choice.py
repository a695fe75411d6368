"""The checks of which GPUs the ranks get: cases in which each fires and in which it stays silent."""

from __future__ import annotations

import dataclasses

import pytest

from ddplaunch.machine.facts import MigDevice, NvidiaFacts
from ddplaunch.planning.launch import Variable
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.checks.cases import NO_LAUNCH, Case, judge
from tests.checks.healthy import (
    FLAG,
    GIB,
    healthy_facts,
    healthy_gpu,
    healthy_launch,
    healthy_nvml,
    healthy_torch,
    topology,
)

ON_CPU = healthy_launch(device=Resolved("cpu", FLAG))
FELL_BACK = healthy_launch(device=Resolved("cpu", Source("detected", "0 visible GPUs")))
NO_NVML = Unavailable("`libnvidia-ml.so.1` of the NVIDIA driver is not installed")
NO_NVIDIA = NvidiaFacts(0, None, 0)
EMPTY = healthy_nvml(gpus=())
SLICES = tuple(MigDevice(f"MIG-{number}aaa-bbbb", "H100 MIG 1g.10gb", 10 * GIB) for number in range(2))
SPLIT = healthy_nvml(healthy_gpu(0, mig_enabled=True, mig_devices=SLICES), healthy_gpu(1))
A100 = {"name": "NVIDIA A100-SXM4-40GB", "memory_total_bytes": 40 * GIB, "compute_capability": (8, 0)}
MIXED = healthy_nvml(healthy_gpu(0), healthy_gpu(1), healthy_gpu(2, **A100))
CHOSEN = (Variable("CUDA_VISIBLE_DEVICES", "0,1", Source("flag", "--gpus"), "the GPUs of this launch"),)

BY_ENV = (Variable("CUDA_VISIBLE_DEVICES", "2,3", Source("flag", "--env-file jobs.env"), "yours"),)


def showing(devices: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": devices}


FIRES = (
    Case(
        "more-processes-than-gpus",
        "sixteen on eight",
        launch=healthy_launch(16),
        says=("16 processes", "8 GPUs", "`ddplaunch run 8 …`", "--device cpu"),
    ),
    Case(
        "more-processes-than-gpus",
        "most are hidden",
        healthy_facts(environment=showing("2,3")),
        healthy_launch(4),
        says=(
            *("4 processes", "2 GPUs", "CUDA_VISIBLE_DEVICES=2,3 from the shell's environment hides 6 of 8"),
            *("`ddplaunch run 2 …`", "`unset CUDA_VISIBLE_DEVICES`"),
        ),
    ),
    Case(
        "more-processes-than-gpus",
        "Slurm shows two",
        healthy_facts(environment={**showing("2,3"), "SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "2,3"}),
        healthy_launch(4),
        says=("CUDA_VISIBLE_DEVICES=2,3 from Slurm hides 6 of 8", "`--gpus-per-node 4`"),
    ),
    Case(
        "more-processes-than-gpus",
        "--env shows two",
        launch=healthy_launch(4, environment=BY_ENV),
        says=("from `--env-file jobs.env` hides", "drop `CUDA_VISIBLE_DEVICES=2,3` from `--env-file jobs.env`"),
    ),
    Case(
        "more-processes-than-gpus",
        "on two nodes",
        launch=healthy_launch(16, topology=topology(16, nnodes=2)),
        says=("`ddplaunch run 2x8 …`",),
    ),
    Case(
        "more-processes-than-gpus",
        "--gpus chose two",
        launch=healthy_launch(4, environment=CHOSEN),
        says=("run 2", "`--gpus 0,1` leaves out 6 of 8", "name 4 GPUs with `--gpus`"),
    ),
    Case("no-gpu-for-cuda", "none here", healthy_facts(nvml=EMPTY), says=("no NVIDIA GPU", "--device cpu")),
    Case(
        "no-gpu-for-cuda",
        "no driver",
        healthy_facts(nvml=NO_NVML, nvidia=NO_NVIDIA),
        says=("libnvidia-ml.so.1",),
    ),
    Case(
        "no-gpu-for-cuda",
        "all hidden",
        healthy_facts(environment=showing("")),
        says=("from the shell's environment hides all 8 GPUs", "unset CUDA_VISIBLE_DEVICES"),
    ),
    Case(
        "visible-devices-unknown",
        "index too high hides what follows",
        healthy_facts(environment=showing("0,8,1,2")),
        NO_LAUNCH,
        says=(
            *("`8`", "0 to 7", "1 GPU of 8", "`1,2`", "CUDA_VISIBLE_DEVICES=0`"),
            "CUDA_VISIBLE_DEVICES=0,8,1,2 from the shell's environment",
        ),
    ),
    Case(
        "visible-devices-unknown",
        "UUID of another machine",
        healthy_facts(environment=showing("GPU-deadbeef")),
        says=("GPU-deadbeef", "0 GPUs of 8"),
    ),
    Case(
        "visible-devices-unknown",
        "MIG instance that was destroyed",
        healthy_facts(environment=showing("MIG-9999"), nvml=SPLIT),
        says=("MIG-9999",),
    ),
    Case(
        "visible-devices-unknown",
        "the launch fell back to the CPU because of it",
        healthy_facts(environment=showing("8")),
        dataclasses.replace(FELL_BACK, environment=(dataclasses.replace(CHOSEN[0], value=""),)),
        says=("`8`",),
    ),
    Case(
        "duplicate-gpu",
        "twice",
        healthy_facts(environment=showing("1,1")),
        NO_LAUNCH,
        says=("`1` twice", "CUDA_VISIBLE_DEVICES=1,1 from the shell's environment"),
    ),
    Case(
        "mig-one-per-process",
        "two ranks",
        healthy_facts(nvml=SPLIT),
        healthy_launch(2),
        says=("2 processes", SLICES[0].uuid, "`ddplaunch run 1 …`", "nvidia-smi -i 0 -mig 0"),
    ),
)

SILENT = (
    Case("more-processes-than-gpus", "on the CPU", launch=dataclasses.replace(ON_CPU, topology=topology(64))),
    Case("more-processes-than-gpus", "MIG is another check", healthy_facts(nvml=SPLIT), healthy_launch(2)),
    Case(
        "more-processes-than-gpus", "bad list is another", healthy_facts(environment=showing("0,9")), healthy_launch(4)
    ),
    Case("more-processes-than-gpus", "doctor", healthy_facts(environment=showing("0")), NO_LAUNCH),
    Case("no-gpu-for-cuda", "on the CPU", healthy_facts(nvml=EMPTY), ON_CPU),
    Case("no-gpu-for-cuda", "ROCm", healthy_facts(nvml=NO_NVML, torch=healthy_torch(cuda=None, hip="6.2"))),
    Case("no-gpu-for-cuda", "device nodes without NVML", healthy_facts(nvml=NO_NVML)),
    Case("visible-devices-unknown", "a good list", healthy_facts(environment=showing("7,0")), NO_LAUNCH),
    Case("visible-devices-unknown", "hidden on purpose", healthy_facts(environment=showing("-1")), NO_LAUNCH),
    Case("visible-devices-unknown", "asked for the CPU", healthy_facts(environment=showing("99")), ON_CPU),
    Case(
        "visible-devices-unknown",
        "--gpus decides",
        healthy_facts(environment=showing("99")),
        healthy_launch(2, environment=CHOSEN),
    ),
    Case("duplicate-gpu", "asked for the CPU", healthy_facts(environment=showing("1,1")), ON_CPU),
    Case("duplicate-gpu", "an unknown one is another check", healthy_facts(environment=showing("9")), NO_LAUNCH),
    Case("mig-one-per-process", "one rank", healthy_facts(nvml=SPLIT), healthy_launch(1)),
    Case(
        "mig-one-per-process", "whole GPU named", healthy_facts(nvml=SPLIT, environment=showing("1")), healthy_launch(2)
    ),
)


@pytest.mark.parametrize("case", (*FIRES, *SILENT), ids=str)
def test_fires_with_words_and_stays_silent_without(case: Case) -> None:
    judge(case)
