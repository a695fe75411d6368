"""The checks of the GPUs' state: cases in which each fires and in which it stays silent."""

from __future__ import annotations

import dataclasses

import pytest

from ddplaunch.machine.facts import GpuProcess, MigDevice
from ddplaunch.values.resolved import Resolved, Unavailable
from tests.checks.cases import NO_LAUNCH, Case, judge
from tests.checks.healthy import FLAG, GIB, healthy_facts, healthy_launch, healthy_nvml, with_gpu

ON_CPU = healthy_launch(device=Resolved("cpu", FLAG))
TRAINER = GpuProcess(4242, 60 * GIB, "eve", "python train.py --big", orphan=False)
ORPHAN = GpuProcess(777, 2 * GIB, "ada", "python train.py", orphan=True)
NOTEBOOK = GpuProcess(31, GIB // 2, "eve", "jupyter", orphan=False)
BUSY = with_gpu(3, processes=(TRAINER,), memory_used_bytes=61 * GIB)
SLICES = tuple(MigDevice(f"MIG-{number}aaa-bbbb", "H100 MIG 1g.10gb", 10 * GIB) for number in range(2))


def showing(devices: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": devices}


HIDES_IT = {"CUDA_VISIBLE_DEVICES": "0,1"}

FIRES = (
    Case(
        "gpu-busy",
        "by somebody's training",
        healthy_facts(nvml=BUSY),
        says=("GPU 3", "pid 4242 of eve", "`python train.py --big`", "60 GiB", "`ddplaunch run 7 --gpus free:7 …`"),
    ),
    Case("gpu-busy", "doctor looks at all", healthy_facts(nvml=BUSY), NO_LAUNCH, says=("GPU 3", "--gpus free:7")),
    Case(
        "gpu-busy",
        "an orphan",
        healthy_facts(nvml=with_gpu(0, processes=(ORPHAN,), memory_used_bytes=2 * GIB)),
        says=("orphaned rank of a dead launcher", "`ddplaunch clean` ends the ranks of dead launchers (pid 777)"),
    ),
    Case(
        "gpu-busy",
        "somebody else's orphan",
        healthy_facts(
            nvml=with_gpu(0, processes=(dataclasses.replace(ORPHAN, user="eve"),), memory_used_bytes=2 * GIB)
        ),
        says=("ask eve to run `ddplaunch clean`", "(pid 777)"),
    ),
    Case(
        "gpu-busy",
        "the only GPU",
        healthy_facts(nvml=healthy_nvml(BUSY.gpus[3])),
        healthy_launch(1),
        says=("all GPUs are in use; wait or free one",),
    ),
    Case(
        "gpu-busy",
        "a notebook only warns",
        healthy_facts(nvml=with_gpu(0, processes=(NOTEBOOK,))),
        severity="warning",
        says=("jupyter", "512 MiB"),
    ),
    Case(
        "gpu-busy",
        "somebody outside of this container",
        healthy_facts(nvml=with_gpu(2, memory_used_bytes=40 * GIB)),
        says=("not visible from here (40 GiB)",),
    ),
    Case(
        "gpu-exclusive-mode",
        "prohibited",
        healthy_facts(nvml=with_gpu(1, compute_mode="prohibited")),
        says=("GPU 1", "prohibited", "nvidia-smi -i 1 -c DEFAULT"),
    ),
    Case(
        "gpu-exclusive-mode",
        "taken",
        healthy_facts(nvml=with_gpu(1, compute_mode="exclusive process", processes=(TRAINER,))),
        NO_LAUNCH,
        says=("exclusive process", "pid 4242"),
    ),
    Case(
        "gpu-lost",
        "fell off the bus",
        healthy_facts(nvml=with_gpu(7, fault="GPU is lost")),
        says=("GPU 7 of 8", "GPU is lost", "--gpus 0,1,2,3,4,5,6"),
    ),
    Case(
        "gpu-lost",
        "visible but unused",
        healthy_facts(nvml=with_gpu(7, fault="GPU is lost")),
        healthy_launch(4),
        says=("GPU 7",),
    ),
    Case("gpu-lost", "doctor", healthy_facts(nvml=with_gpu(0, fault="Unknown Error")), NO_LAUNCH, says=("GPU 0",)),
    Case(
        "gpu-ecc-errors",
        "three",
        healthy_facts(nvml=with_gpu(4, ecc_uncorrected=3)),
        severity="warning",
        says=("GPU 4", "3 uncorrectable ECC errors", "--gpu-reset -i 4"),
    ),
    Case(
        "gpu-remap-pending",
        "after a row failed",
        healthy_facts(nvml=with_gpu(4, remap_pending=True)),
        severity="warning",
        says=("GPU 4", "--gpu-reset -i 4"),
    ),
    Case(
        "gpu-remap-failed", "no spare", healthy_facts(nvml=with_gpu(4, remap_failed=True)), says=("GPU 4", "replaced")
    ),
    Case(
        "gpu-recovery-needed",
        "reset",
        healthy_facts(nvml=with_gpu(6, recovery_action="reset")),
        says=("GPU 6", "recovery action reset", "--gpu-reset -i 6"),
    ),
    Case(
        "gpu-recovery-needed",
        "reboot",
        healthy_facts(nvml=with_gpu(6, recovery_action="reboot")),
        NO_LAUNCH,
        says=("sudo reboot",),
    ),
    Case(
        "gpu-throttled",
        "too hot",
        healthy_facts(nvml=with_gpu(2, throttle_reasons=("hardware thermal slowdown",), temperature_c=91)),
        severity="warning",
        says=("GPU 2", "hardware thermal slowdown", "91 °C"),
    ),
)

SILENT = (
    Case("gpu-busy", "not one of ours", healthy_facts(nvml=BUSY), healthy_launch(2)),
    Case("gpu-busy", "hidden", healthy_facts(nvml=BUSY, environment=showing("4,5")), healthy_launch(2)),
    Case("gpu-busy", "on the CPU", healthy_facts(nvml=BUSY), ON_CPU),
    Case(
        "gpu-busy",
        "nobody can tell whose instance",
        healthy_facts(nvml=with_gpu(0, mig_enabled=True, mig_devices=SLICES, processes=(TRAINER,))),
        NO_LAUNCH,
    ),
    Case("gpu-busy", "not told", healthy_facts(nvml=with_gpu(0, processes=Unavailable("NVML: Not Supported")))),
    Case("gpu-exclusive-mode", "and idle", healthy_facts(nvml=with_gpu(1, compute_mode="exclusive process"))),
    Case("gpu-lost", "hidden", healthy_facts(nvml=with_gpu(7, fault="lost"), environment=HIDES_IT)),
    Case("gpu-lost", "on the CPU", healthy_facts(nvml=with_gpu(7, fault="lost")), ON_CPU),
    Case("gpu-ecc-errors", "not one of ours", healthy_facts(nvml=with_gpu(4, ecc_uncorrected=3)), healthy_launch(4)),
    Case("gpu-ecc-errors", "no ECC", healthy_facts(nvml=with_gpu(4, ecc_uncorrected=Unavailable("Not Supported")))),
    Case("gpu-remap-pending", "not told", healthy_facts(nvml=with_gpu(4, remap_pending=Unavailable("Not Supported")))),
    Case("gpu-remap-failed", "not one of ours", healthy_facts(nvml=with_gpu(4, remap_failed=True)), healthy_launch(4)),
    Case("gpu-recovery-needed", "old driver", healthy_facts(nvml=with_gpu(6, recovery_action=Unavailable("too old")))),
    Case("gpu-throttled", "not told", healthy_facts(nvml=with_gpu(2, throttle_reasons=Unavailable("Not Supported")))),
)


@pytest.mark.parametrize("case", (*FIRES, *SILENT), ids=str)
def test_fires_with_words_and_stays_silent_without(case: Case) -> None:
    judge(case)
