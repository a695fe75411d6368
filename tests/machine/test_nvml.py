"""The NVML probe through the real pynvml and a library of made-up GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddplaunch.machine.facts import NvmlFacts
from ddplaunch.values.resolved import Unavailable
from tests.checks.healthy import healthy_gpu
from tests.machine.fake_nvml import FakeNvml

MIB = 2**20
NO_ANSWER = ["memory", "utilization", "process", "ecc", "remap", "recovery", "throttle", "temperature", "mode"]
#: Name, number of GPUs, and their state.
MACHINES: dict[str, tuple[int, list[str]]] = {
    "none": (0, ["system driver 550.54.15", "system cuda 12040"]),
    "healthy": (1, []),
    "eight": (8, ["* name NVIDIA A100-SXM4-40GB", "* capability 8 0", "5 name Tesla T4"]),
    **{f"lost by {what}": (2, [f"0 {what} 15"]) for what in ("every", "handle", "fail-memory", "fail-ecc")},
    "may not use": (3, ["1 handle 4"]),
    "no answers": (1, [f"0 fail-{name} 3" for name in NO_ANSWER]),
    "unhealthy": (1, ["0 ecc 7", "0 remap 1 2 1 1", "0 recovery 1", "0 throttle 0xed", "0 mode 3"]),
    "slowed by nothing": (1, ["0 throttle 0x117", "0 recovery 99", "0 fail-mig 3", "0 old-memory 1"]),
    "busy": (1, [f"0 process {os.getpid()} 30000", "0 process 4194399 0", "0 memory 81559 30004", "0 utilization 97"]),
    "mig": (2, ["0 mig 1", "0 instances 2"]),
    "mismatch": (8, ["system init 18"]),
    "not loaded": (8, ["system init 9"]),
}
Probe = Callable[[str], NvmlFacts]
Answers = dict[str, tuple[NvmlFacts | Unavailable, str | None]]


@pytest.fixture(scope="module")
def answers(fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    fake = FakeNvml(fake_nvml_library, tmp_path_factory.mktemp("states"))
    return dict(zip(MACHINES, fake.probes(*MACHINES.values()), strict=True))


@pytest.fixture
def probe(answers: Answers) -> Probe:
    """``probe(name)`` is what NVML says of a machine on which it works."""

    def found(name: str) -> NvmlFacts:
        facts, error = answers[name]
        assert isinstance(facts, NvmlFacts) and error is None, facts
        return facts

    return found


def test_healthy_gpus_answer_everything(probe: Probe) -> None:
    assert probe("none") == NvmlFacts("550.54.15", (12, 4), ())
    healthy = probe("healthy")
    assert (healthy.driver_version, healthy.cuda_driver_version) == ("570.124.06", (12, 8))
    assert healthy.gpus == (
        healthy_gpu(
            uuid="GPU-000000a0-5a1e-4000-8000-000000000000",
            memory_total_bytes=81559 * MIB,
            memory_used_bytes=4 * MIB,
            temperature_c=33,
        ),
    )
    gpus = probe("eight").gpus
    assert [gpu.index for gpu in gpus] == list(range(8)) and len({gpu.uuid for gpu in gpus}) == 8
    assert [gpu.name for gpu in gpus if gpu.name != "NVIDIA A100-SXM4-40GB"] == ["Tesla T4"]
    assert {gpu.compute_capability for gpu in gpus} == {(8, 0)}


@pytest.mark.parametrize("name", [name for name in MACHINES if name.startswith("lost")])
def test_a_lost_gpu_is_one_fault_and_the_others_answer(probe: Probe, name: str) -> None:
    lost, healthy = probe(name).gpus
    assert (lost.index, lost.fault) == (0, "GPU is lost")
    assert healthy.fault is None and healthy.utilization_percent == 0


def test_a_gpu_that_this_user_may_not_use_is_left_out_and_an_unanswered_question_costs_one_fact(probe: Probe) -> None:
    gpus = probe("may not use").gpus
    assert [(gpu.index, gpu.pci_bus_id) for gpu in gpus] == [(0, "00000000:10:00.0"), (1, "00000000:12:00.0")]
    (gpu,) = probe("no answers").gpus
    assert gpu.fault is None and gpu.compute_capability == (9, 0)
    memory = {gpu.memory_total_bytes, gpu.utilization_percent, gpu.processes, gpu.ecc_uncorrected}
    health = {gpu.remap_pending, gpu.remap_failed, gpu.recovery_action, gpu.throttle_reasons}
    assert memory == health == {gpu.temperature_c, gpu.compute_mode} == {Unavailable("NVML: Not Supported")}


def test_an_unhealthy_gpu(probe: Probe) -> None:
    (gpu,) = probe("unhealthy").gpus
    assert (gpu.ecc_uncorrected, gpu.remap_pending, gpu.remap_failed) == (7, True, True)
    assert (gpu.recovery_action, gpu.compute_mode) == ("reset", "exclusive process")
    slow = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "hardware power brake")
    assert gpu.throttle_reasons == slow
    # idleness, power caps, old drivers and new actions are no fault
    (gpu,) = probe("slowed by nothing").gpus
    assert (gpu.throttle_reasons, gpu.recovery_action, gpu.mig_enabled) == ((), "unknown (99)", False)
    assert gpu.memory_used_bytes == 604 * MIB, "by the older of the two calls"


def test_who_is_on_a_busy_gpu(probe: Probe) -> None:
    (gpu,) = probe("busy").gpus
    assert gpu.utilization_percent == 97 and not isinstance(gpu.processes, Unavailable)
    mine, gone = gpu.processes
    assert (mine.pid, mine.memory_bytes) == (os.getpid(), 30000 * MIB) and mine.user and mine.command
    assert (gone.pid, gone.memory_bytes, gone.user, gone.command) == (4194399, None, None, None)


def test_mig_devices_are_listed(probe: Probe) -> None:
    split, whole = probe("mig").gpus
    assert split.mig_enabled is True
    assert [device.uuid for device in split.mig_devices] == [
        "MIG-000000a0-5a1e-4000-8000-000000000000",
        "MIG-000000a0-5a1e-4000-8000-000000000001",
    ]
    assert split.mig_devices[0].name == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert split.mig_devices[0].memory_bytes == 9728 * MIB
    assert split.utilization_percent == Unavailable("NVML: Not Supported")
    assert (whole.mig_enabled, whole.mig_devices) == (False, ())


@pytest.mark.parametrize(
    ("name", "text"), [("mismatch", "Driver/library version mismatch"), ("not loaded", "Driver Not Loaded")]
)
def test_nvml_that_does_not_start_says_why(answers: Answers, name: str, text: str) -> None:
    assert answers[name] == (Unavailable(f"NVML does not start: {text}"), text)


def test_a_library_that_is_no_library_is_told_from_none(tmp_path: Path) -> None:
    # The NVIDIA container toolkit leaves an empty file where a driver was mounted while the image was built.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    ((facts, error),) = FakeNvml.probes_in({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, [{}])
    assert isinstance(facts, Unavailable) and error is not None and "file too short" in error


def test_without_the_library_pynvml_is_not_imported() -> None:
    program = (
        "import ctypes, sys\nfrom ddplaunch.machine import nvml\nnvml.LIBRARY = "
        "'libnvidia-ml-nowhere.so.1'\nprint(nvml.probe_nvml())\nassert 'pynvml' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "`libnvidia-ml-nowhere.so.1` of the NVIDIA driver is not installed" in result.stdout
    assert result.stdout.strip().endswith("None)")
