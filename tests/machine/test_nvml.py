"""The NVML probe through the real pynvml and a library of made-up GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ddplaunch.machine.facts import Gpu, NvmlFacts
from ddplaunch.values.resolved import Unavailable

if TYPE_CHECKING:
    from tests.machine.fake_nvml import FakeNvml

pytest_plugins = ("tests.machine.fake_nvml",)

MIB = 2**20


def test_no_gpu(fake_nvml: FakeNvml) -> None:
    assert fake_nvml.facts(0) == NvmlFacts("570.124.06", (12, 8), ())


def test_a_healthy_gpu_answers_everything(fake_nvml: FakeNvml) -> None:
    (gpu,) = fake_nvml.facts(1).gpus
    assert gpu == Gpu(
        index=0,
        uuid="GPU-000000a0-5a1e-4000-8000-000000000000",
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id="00000000:10:00.0",
        compute_capability=(9, 0),
        memory_total_bytes=81559 * MIB,
        memory_used_bytes=4 * MIB,
        utilization_percent=0,
        processes=(),
        ecc_uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        recovery_action="none",
        throttle_reasons=(),
        temperature_c=33,
        compute_mode="default",
        mig_enabled=False,
    )


def test_eight_gpus_in_order_with_distinct_uuids(fake_nvml: FakeNvml) -> None:
    gpus = fake_nvml.facts(8, ["* name NVIDIA A100-SXM4-40GB", "* capability 8 0", "5 name Tesla T4"]).gpus
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert len({gpu.uuid for gpu in gpus}) == 8
    assert [gpu.name for gpu in gpus if gpu.name != "NVIDIA A100-SXM4-40GB"] == ["Tesla T4"]
    assert {gpu.compute_capability for gpu in gpus} == {(8, 0)}


@pytest.mark.parametrize("line", ["0 every 15", "0 handle 15", "0 fail-memory 15", "0 fail-ecc 15"])
def test_a_lost_gpu_is_one_fault_and_the_others_answer(fake_nvml: FakeNvml, line: str) -> None:
    lost, healthy = fake_nvml.facts(2, [line]).gpus
    assert (lost.index, lost.fault) == (0, "GPU is lost")
    assert healthy.fault is None
    assert healthy.utilization_percent == 0


def test_a_gpu_that_this_user_may_not_use_is_left_out(fake_nvml: FakeNvml) -> None:
    gpus = fake_nvml.facts(3, ["1 handle 4"]).gpus
    assert [(gpu.index, gpu.pci_bus_id) for gpu in gpus] == [(0, "00000000:10:00.0"), (1, "00000000:12:00.0")]


def test_one_unanswered_question_costs_one_fact(fake_nvml: FakeNvml) -> None:
    unanswered = ["memory", "utilization", "process", "ecc", "remap", "recovery", "throttle", "temperature", "mode"]
    (gpu,) = fake_nvml.facts(1, [f"0 fail-{name} 3" for name in unanswered]).gpus
    assert gpu.fault is None
    reason = Unavailable("NVML: Not Supported")
    assert (gpu.memory_total_bytes, gpu.utilization_percent, gpu.processes) == (reason, reason, reason)
    assert (gpu.ecc_uncorrected, gpu.remap_pending, gpu.remap_failed) == (reason, reason, reason)
    assert (gpu.recovery_action, gpu.throttle_reasons) == (reason, reason)
    assert (gpu.temperature_c, gpu.compute_mode) == (reason, reason)
    assert gpu.compute_capability == (9, 0)


def test_an_unhealthy_gpu(fake_nvml: FakeNvml) -> None:
    state = ["0 ecc 7", "0 remap 1 2 1 1", "0 recovery 1", "0 throttle 0xed", "0 mode 3"]
    (gpu,) = fake_nvml.facts(1, state).gpus
    assert (gpu.ecc_uncorrected, gpu.remap_pending, gpu.remap_failed) == (7, True, True)
    assert (gpu.recovery_action, gpu.compute_mode) == ("reset", "exclusive process")
    slow = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "hardware power brake")
    assert gpu.throttle_reasons == slow


def test_idle_power_cap_and_clock_settings_slow_nothing_down(fake_nvml: FakeNvml) -> None:
    assert fake_nvml.facts(1, ["0 throttle 0x117"]).gpus[0].throttle_reasons == ()


def test_a_recovery_action_newer_than_this_program_is_not_lost(fake_nvml: FakeNvml) -> None:
    assert fake_nvml.facts(1, ["0 recovery 99"]).gpus[0].recovery_action == "unknown (99)"


def test_who_is_on_a_busy_gpu(fake_nvml: FakeNvml) -> None:
    state = [f"0 process {os.getpid()} 30000", "0 process 4194399 0", "0 memory 81559 30004", "0 utilization 97"]
    (gpu,) = fake_nvml.facts(1, state).gpus
    assert gpu.utilization_percent == 97
    assert not isinstance(gpu.processes, Unavailable)
    mine, gone = gpu.processes
    assert (mine.pid, mine.memory_bytes) == (os.getpid(), 30000 * MIB)
    assert mine.user is not None
    assert mine.command is not None
    assert (gone.pid, gone.memory_bytes, gone.user, gone.command) == (4194399, None, None, None)


def test_mig_devices_are_listed(fake_nvml: FakeNvml) -> None:
    split, whole = fake_nvml.facts(2, ["0 mig 1", "0 instances 2"]).gpus
    assert split.mig_enabled is True
    assert [device.uuid for device in split.mig_devices] == [
        "MIG-000000a0-5a1e-4000-8000-000000000000",
        "MIG-000000a0-5a1e-4000-8000-000000000001",
    ]
    assert split.mig_devices[0].name == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert split.mig_devices[0].memory_bytes == 9728 * MIB
    assert split.utilization_percent == Unavailable("NVML: Not Supported")
    assert (whole.mig_enabled, whole.mig_devices) == (False, ())


def test_a_gpu_that_knows_no_mig_has_none(fake_nvml: FakeNvml) -> None:
    assert fake_nvml.facts(1, ["0 fail-mig 3"]).gpus[0].mig_enabled is False


def test_an_old_driver_without_the_second_memory_call(fake_nvml: FakeNvml) -> None:
    assert fake_nvml.facts(1, ["0 old-memory 1"]).gpus[0].memory_used_bytes == 604 * MIB


def test_versions_of_the_driver(fake_nvml: FakeNvml) -> None:
    facts = fake_nvml.facts(0, ["system driver 550.54.15", "system cuda 12040"])
    assert (facts.driver_version, facts.cuda_driver_version) == ("550.54.15", (12, 4))


@pytest.mark.parametrize(("code", "text"), [(18, "Driver/library version mismatch"), (9, "Driver Not Loaded")])
def test_nvml_that_does_not_start_says_why(fake_nvml: FakeNvml, code: int, text: str) -> None:
    facts, error = fake_nvml.probe(8, [f"system init {code}"])
    assert facts == Unavailable(f"NVML does not start: {text}")
    assert error == text


def test_a_library_that_is_no_library_is_told_from_none(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    # The NVIDIA container toolkit leaves an empty file where a driver was mounted while the image was built.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    facts, error = fake_nvml.probe_in({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert isinstance(facts, Unavailable)
    assert error is not None
    assert "file too short" in error


def test_without_the_library_pynvml_is_not_imported() -> None:
    program = (
        "import ctypes, sys\nfrom ddplaunch.machine import nvml\nnvml.LIBRARY = "
        "'libnvidia-ml-nowhere.so.1'\nprint(nvml.probe_nvml())\nassert 'pynvml' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "`libnvidia-ml-nowhere.so.1` of the NVIDIA driver is not installed" in result.stdout
    assert result.stdout.strip().endswith("None)")
