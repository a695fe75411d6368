"""AMD's GPUs to facts, variables and `top`, by sysfs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.checks.gpu_choice import CHECKS
from ddplaunch.machine.facts import NvmlFacts
from ddplaunch.machine.hardware import amd_denied, amd_devices
from ddplaunch.machine.nvml import probe_amd
from ddplaunch.machine.sample import GpuSample, RankSample
from ddplaunch.planning.gpus import exported, select, shown_gpus
from ddplaunch.values.finding import RefusedError
from ddplaunch.values.resolved import Unavailable
from ddplaunch.watch.gpu_usage import GpuUsage
from tests.checks.cases import found
from tests.checks.healthy import healthy_facts, healthy_torch
from tests.planning.test_resolve import decide
from tests.planning.test_topology import said

GIB = 2**30


def kernel_tree(root: Path) -> Path:
    """Write what Linux shows of a CPU, two MI300X of which the second is warm and busy, and a GPU of another container.

    The shapes are those of drivers/gpu/drm/amd/amdkfd/kfd_topology.c and of docs.kernel.org/gpu/amdgpu.
    """
    files = {"proc/sys/kernel/osrelease": "6.8.0-60-generic", "sys/class/kfd/kfd/topology/nodes/0/gpu_id": "0"}
    for node, kfd_id, minor, place in ((1, 51110, 128, 0x0500), (2, 4242, 129, 0xC100), (10, 777, 130, 0xC200)):
        folder = f"sys/class/kfd/kfd/topology/nodes/{node}"
        files[f"{folder}/gpu_id"] = str(kfd_id)
        told = {"cpu_cores_count": 0, "simd_count": 1216, "gfx_target_version": 90402, "location_id": place}
        told |= {"domain": 0, "drm_render_minor": minor, "unique_id": 0xA5A1E0C6DE0F4D11 + node}
        files[f"{folder}/properties"] = "".join(f"{name} {value}\n" for name, value in told.items())
        device = f"sys/class/drm/renderD{minor}/device"
        files[f"{device}/mem_info_vram_total"] = str(192 * GIB)
        files[f"{device}/mem_info_vram_used"] = str(node * GIB)
        if minor < 130:
            files[f"dev/dri/renderD{minor}"] = ""
    device = "sys/class/drm/renderD129/device"
    files[f"{device}/product_name"] = "AMD Instinct MI300X OAM"
    files[f"{device}/gpu_busy_percent"] = "97"
    files[f"{device}/pp_dpm_sclk"] = "0: 132Mhz\n1: 2100Mhz *"
    sensors = {"power1_average": 612_000_000, "power1_cap": 750_000_000, "temp2_input": 71_000, "temp1_input": 55_000}
    files |= {f"{device}/hwmon/hwmon7/{name}": str(value) for name, value in sensors.items()}
    files[f"{device}/hwmon/hwmon7/freq1_input"] = "2087000000"
    files[f"sys/class/kfd/kfd/proc/{2**22 + 1}/vram_4242"] = str(5 * GIB)
    files[f"sys/class/kfd/kfd/proc/{2**22 + 1}/vram_51110"] = "0"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def test_the_kernel_tells(tmp_path: Path) -> None:
    facts = probe_amd(root=str(tmp_path))
    assert isinstance(facts, Unavailable) and facts.reason.startswith("the kernel shows no GPU of AMD's")
    facts = probe_amd(root=str(kernel_tree(tmp_path)))
    assert isinstance(facts, NvmlFacts)
    versions = (facts.driver_version, facts.cuda_driver_version)
    assert (facts.vendor, versions) == ("amd", ("of Linux 6.8.0-60-generic", (0, 0)))
    first, second = facts.gpus
    assert (first.index, first.uuid, first.name) == (0, "GPU-a5a1e0c6de0f4d12", "AMD gfx942")
    assert first.utilization_percent == Unavailable("the driver does not tell gpu_busy_percent")
    assert (second.name, second.pci_bus_id) == ("AMD Instinct MI300X OAM", "0000:c1:00.0")
    assert second.utilization_percent == 97
    assert (second.memory_total_bytes, second.memory_used_bytes) == (192 * GIB, 2 * GIB)
    assert isinstance(second.processes, tuple) and second.processes[0].memory_bytes == 5 * GIB and first.processes == ()


def test_devices_that_this_user_may_not_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (kernel_tree(tmp_path) / "dev/kfd").touch()
    devices = amd_devices(str(tmp_path))
    assert amd_denied(devices, str(tmp_path)) == ()
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK or not path.endswith(("kfd", "D129")))
    assert amd_denied(devices, str(tmp_path)) == ("/dev/kfd", "/dev/dri/renderD129")


def test_top_reads_them_from_sysfs(tmp_path: Path) -> None:
    holder = RankSample(0, 0, 2**22 + 1, "S")
    (placed,), (first, second) = GpuUsage(str(kernel_tree(tmp_path))).sample((holder,), {holder.pid: 0})
    assert first == GpuSample(0, "GPU-a5a1e0c6de0f4d12", memory_used_bytes=GIB, memory_total_bytes=192 * GIB), (
        "what the driver does not tell is unknown"
    )
    assert (second.utilization_percent, second.memory_used_bytes, second.ranks) == (97, 2 * GIB, (0,))
    assert (placed.gpu, placed.gpu_memory_bytes) == (1, 5 * GIB)
    assert GpuUsage(str(tmp_path / "nothing")).sample((holder,), {}) == ((holder,), ())


@pytest.mark.parametrize(
    ("variables", "on"),
    [
        ({}, [0, 1]),
        ({"HIP_VISIBLE_DEVICES": "1,0"}, [1, 0]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1, None]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, [1, None]),
    ],
)
def test_top_places_ranks_whose_pids_the_kernel_does_not_name(
    variables: dict[str, str], on: list[int | None], tmp_path: Path
) -> None:
    """As in a container, where the kernel's pids are the host's."""
    ranks = [RankSample(number, number, 100 + number, "S") for number in range(2)]
    for rank in ranks:
        (tmp_path / f"proc/{rank.pid}/fd").mkdir(parents=True)
        (tmp_path / f"proc/{rank.pid}/environ").write_text("".join(f"{a}={b}\0" for a, b in variables.items()))
        (tmp_path / f"proc/{rank.pid}/fd/5").symlink_to("/dev/kfd")
    usage = GpuUsage(str(kernel_tree(tmp_path)), str(tmp_path / "proc"))
    placed, gpus = usage.sample(ranks, {rank.pid: rank.rank for rank in ranks})
    assert [rank.gpu for rank in placed] == on
    assert [gpu.others for gpu in gpus] == [0, 0], "a pid of the host's is nobody here"


@pytest.fixture
def nvml(tmp_path: Path) -> NvmlFacts:
    facts = probe_amd(root=str(kernel_tree(tmp_path)))
    assert isinstance(facts, NvmlFacts)
    return facts


def seen(nvml: NvmlFacts, **variables: str) -> list[int]:
    return [entry.gpu.index for entry in shown_gpus(nvml, exported(variables, (), nvml)).entries]


def test_the_variables_of_hip_are_read_as_torch_reads_them(nvml: NvmlFacts) -> None:
    assert seen(nvml) == [0, 1]
    assert seen(nvml, CUDA_VISIBLE_DEVICES="1") == seen(nvml, HIP_VISIBLE_DEVICES="1") == [1]
    assert seen(nvml, CUDA_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="0") == [0], "HIP's own wins"
    assert seen(nvml, ROCR_VISIBLE_DEVICES="1") == seen(nvml, ROCR_VISIBLE_DEVICES="GPU-a5a1e0c6de0f4d13") == [1]
    assert seen(nvml, ROCR_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="0") == [1], "counted among what ROCR leaves"
    assert seen(nvml, ROCR_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="1") == []
    assert seen(nvml, HIP_VISIBLE_DEVICES="GPU-a5a1e0c6de0f4d13") == [1]
    assert seen(nvml, HIP_VISIBLE_DEVICES="-1") == []
    facts = healthy_facts(nvml=nvml, environment={"HIP_VISIBLE_DEVICES": "7"})
    finding = found(CHECKS, "visible-devices-unknown", facts)
    assert finding and finding.what.startswith("HIP_VISIBLE_DEVICES names `7`, which does not exist")


def test_a_launch_names_gpus_to_hip(nvml: NvmlFacts) -> None:
    facts = healthy_facts(nvml=nvml, torch=healthy_torch(cuda=None, hip="6.4"))
    chosen = select("1", nvml, exported({}, (), nvml), frozenset(), None)
    decided = decide(said(nproc="1", gpus="1"), facts, selection=chosen).environment
    variables = {each.name: each.value for each in decided}
    assert variables["HIP_VISIBLE_DEVICES"] == "1" and "CUDA_VISIBLE_DEVICES" not in variables
    assert "CUDA_DEVICE_ORDER" not in variables, "HIP has one order"
    unknown = decide(said(nproc="1", gpus="1"), replace(facts, torch=Unavailable("not found")), selection=chosen)
    assert "HIP_VISIBLE_DEVICES" in {each.name for each in unknown.environment}
    within = exported({"ROCR_VISIBLE_DEVICES": "1"}, (), nvml)
    (entry,) = select("1", nvml, within, frozenset(), None).entries
    assert entry.text == "GPU-a5a1e0c6de0f4d13", "an index would count among what ROCR leaves"
    with pytest.raises(RefusedError):
        select("free:2", nvml, exported({}, (), nvml), frozenset(), None)
    on_cpu = decide(said(nproc="1", device="cpu"), facts).environment
    assert {each.name: each.value for each in on_cpu}["HIP_VISIBLE_DEVICES"] == "-1"
    assert decide(said(nproc="auto"), facts).topology.nproc_per_node.value == 2
