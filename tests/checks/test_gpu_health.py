"""The checks of the gpu family about the GPUs' own health: where each fires and where it stays silent."""

from __future__ import annotations

import pytest

from ddplaunch.values.resolved import Resolved, Unavailable
from tests.checks.cases import NO_LAUNCH, Case, assert_fires, assert_silent
from tests.checks.healthy import FLAG, healthy_facts, healthy_launch, with_gpu

ON_CPU = healthy_launch(device=Resolved("cpu", FLAG))
HIDES_IT = {"CUDA_VISIBLE_DEVICES": "0,1"}

FIRES = (
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
    Case("gpu-lost", "hidden", healthy_facts(nvml=with_gpu(7, fault="lost"), environment=HIDES_IT)),
    Case("gpu-lost", "on the CPU", healthy_facts(nvml=with_gpu(7, fault="lost")), ON_CPU),
    Case("gpu-ecc-errors", "not one of ours", healthy_facts(nvml=with_gpu(4, ecc_uncorrected=3)), healthy_launch(4)),
    Case("gpu-ecc-errors", "no ECC", healthy_facts(nvml=with_gpu(4, ecc_uncorrected=Unavailable("Not Supported")))),
    Case("gpu-remap-pending", "not told", healthy_facts(nvml=with_gpu(4, remap_pending=Unavailable("Not Supported")))),
    Case("gpu-remap-failed", "not one of ours", healthy_facts(nvml=with_gpu(4, remap_failed=True)), healthy_launch(4)),
    Case("gpu-recovery-needed", "old driver", healthy_facts(nvml=with_gpu(6, recovery_action=Unavailable("too old")))),
    Case("gpu-throttled", "not told", healthy_facts(nvml=with_gpu(2, throttle_reasons=Unavailable("Not Supported")))),
)


@pytest.mark.parametrize("case", FIRES, ids=str)
def test_fires(case: Case) -> None:
    assert_fires(case)


@pytest.mark.parametrize("case", SILENT, ids=str)
def test_stays_silent(case: Case) -> None:
    assert_silent(case)
