"""AMD's GPUs through a made-up amdsmi, whose functions answer as those of amdsmi 7.0.2 do, to facts and variables."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ddplaunch.checks.gpu_choice import CHECKS
from ddplaunch.machine.facts import Gpu, NvmlFacts
from ddplaunch.machine.nvml import probe_amd
from ddplaunch.planning.gpus import exported, select, shown
from ddplaunch.values.finding import RefusedError
from ddplaunch.values.resolved import Unavailable
from tests.checks.cases import found
from tests.checks.healthy import healthy_facts, healthy_torch
from tests.planning.test_resolve import decide
from tests.planning.test_topology import said

GIB = 2**30


class AmdSmiException(Exception):
    """As amdsmi's: ``err_info`` is what people search for."""

    def __init__(self, err_info: str) -> None:
        super().__init__(err_info)
        self.err_info = err_info


@pytest.fixture
def amdsmi(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An amdsmi with two GPUs, which HIP counts the other way round."""
    api: Any = ModuleType("amdsmi")
    api.AmdSmiException = AmdSmiException
    api.AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hot")
    api.AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="now")
    api.closed = 0

    def close() -> None:
        api.closed += 1

    api.amdsmi_init = lambda: None
    api.amdsmi_shut_down = close
    api.amdsmi_get_processor_handles = lambda: ["far", "near"]
    api.amdsmi_get_gpu_enumeration_info = lambda gpu: {
        "drm_card": 1,
        "hip_id": 1 if gpu == "far" else 0,
        "hip_uuid": f"GPU-{'b' if gpu == 'far' else 'a'}5a1e0c6de0f4d11",
    }
    api.amdsmi_get_gpu_asic_info = lambda gpu: {"market_name": "AMD Instinct MI300X", "vendor_name": "AMD"}
    api.amdsmi_get_gpu_device_bdf = lambda gpu: "0000:c1:00.0" if gpu == "far" else "0000:05:00.0"
    api.amdsmi_get_gpu_vram_usage = lambda gpu: {"vram_total": 196592, "vram_used": 283}
    api.amdsmi_get_gpu_driver_info = lambda gpu: {"driver_name": "amdgpu", "driver_version": "6.12.12"}
    api.amdsmi_get_gpu_activity = lambda gpu: {"gfx_activity": 97 if gpu == "far" else "N/A"}
    api.amdsmi_get_gpu_process_list = lambda gpu: (
        [{"name": "python", "pid": 2**22 + 1, "memory_usage": {"vram_mem": 5 * GIB}}] if gpu == "far" else []
    )
    api.amdsmi_get_gpu_total_ecc_count = lambda gpu: {"correctable_count": 4, "uncorrectable_count": 0}
    api.amdsmi_get_temp_metric = lambda gpu, kind, metric: 41
    monkeypatch.setitem(sys.modules, "amdsmi", api)
    return api


def known(details: bool = True) -> NvmlFacts:
    facts = probe_amd(details)
    assert isinstance(facts, NvmlFacts)
    return facts


def test_gpus_are_in_the_order_in_which_hip_counts(amdsmi: Any) -> None:
    facts = known()
    assert (facts.vendor, facts.driver_version) == ("amd", "6.12.12")
    near, far = facts.gpus
    assert near == Gpu(
        index=0,
        uuid="GPU-a5a1e0c6de0f4d11",
        name="AMD Instinct MI300X",
        pci_bus_id="0000:05:00.0",
        memory_total_bytes=196592 << 20,
        memory_used_bytes=283 << 20,
        utilization_percent=Unavailable("the installed amdsmi or the driver does not tell"),
        processes=(),
        ecc_uncorrected=0,
        temperature_c=41,
        mig_enabled=False,
    )
    assert far.utilization_percent == 97
    assert isinstance(far.processes, tuple) and far.processes[0].memory_bytes == 5 * GIB
    assert amdsmi.closed == 1


def test_what_one_gpu_does_not_tell_is_said_of_that_fact_alone(amdsmi: Any) -> None:
    def refuses(*_: object) -> Any:
        raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")

    amdsmi.amdsmi_get_gpu_vram_usage = amdsmi.amdsmi_get_temp_metric = refuses
    gpu = known().gpus[0]
    assert gpu.temperature_c == Unavailable("amdsmi: AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")
    assert isinstance(gpu.memory_total_bytes, Unavailable) and gpu.ecc_uncorrected == 0
    amdsmi.amdsmi_init = refuses
    said_ = probe_amd()
    assert isinstance(said_, Unavailable) and "amdsmi does not start: AMDSMI_STATUS_NOT_SUPPORTED" in said_.reason


def test_without_amdsmi_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    facts = probe_amd()
    assert isinstance(facts, Unavailable) and facts.reason.startswith("the package amdsmi does not import")


def seen(nvml: NvmlFacts, **variables: str) -> list[int]:
    return [entry.gpu.index for entry in shown(nvml, exported(variables, (), nvml)).entries]


def test_the_variables_of_hip_are_read_as_torch_reads_them(amdsmi: Any) -> None:
    nvml = known()
    assert seen(nvml) == [0, 1]
    assert seen(nvml, CUDA_VISIBLE_DEVICES="1") == [1]
    assert seen(nvml, CUDA_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="0") == [0], "HIP's own wins"
    assert seen(nvml, ROCR_VISIBLE_DEVICES="1") == [1]
    assert seen(nvml, ROCR_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="0") == [1], "counted among what ROCR leaves"
    assert seen(nvml, ROCR_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="1") == []
    assert seen(nvml, HIP_VISIBLE_DEVICES="GPU-b5a1e0c6de0f4d11") == [1]
    assert seen(nvml, HIP_VISIBLE_DEVICES="-1") == []


def test_a_launch_names_gpus_to_hip(amdsmi: Any) -> None:
    nvml = known()
    facts = healthy_facts(nvml=nvml, torch=healthy_torch(cuda=None, hip="6.4"))
    chosen = select("1", nvml, exported({}, (), nvml), frozenset(), None)
    variables = {
        each.name: each.value for each in decide(said(nproc="1", gpus="1"), facts, selection=chosen).environment
    }
    assert variables["HIP_VISIBLE_DEVICES"] == "1" and "CUDA_VISIBLE_DEVICES" not in variables
    assert "CUDA_DEVICE_ORDER" not in variables, "HIP has one order"
    within = exported({"ROCR_VISIBLE_DEVICES": "1"}, (), nvml)
    (entry,) = select("1", nvml, within, frozenset(), None).entries
    assert entry.text == "GPU-b5a1e0c6de0f4d11", "an index would count among what ROCR leaves"
    with pytest.raises(RefusedError):
        select("free:2", nvml, exported({}, (), nvml), frozenset(), None)
    on_cpu = decide(said(nproc="1", device="cpu"), facts).environment
    assert {each.name: each.value for each in on_cpu}["HIP_VISIBLE_DEVICES"] == "-1"


def test_auto_counts_them(amdsmi: Any) -> None:
    facts = healthy_facts(nvml=known(), torch=healthy_torch(cuda=None, hip="6.4"))
    assert decide(said(nproc="auto"), facts).topology.nproc_per_node.value == 2


def test_a_variable_that_names_no_gpu_is_called_by_its_name(amdsmi: Any) -> None:
    facts = healthy_facts(nvml=known(), environment={"HIP_VISIBLE_DEVICES": "7"})
    finding = found(CHECKS, "visible-devices-unknown", facts)
    assert finding and finding.what.startswith("HIP_VISIBLE_DEVICES names `7`, which does not exist")
