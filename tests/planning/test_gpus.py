"""Which GPUs CUDA shows, which ones `--gpus` means, and what ranks of launches at once see."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.machine.facts import Gpu, GpuProcess, MigDevice, NvmlFacts
from ddplaunch.planning.gpus import GIB, Exported, Selection, VisibleGpu, busy_reason, cuda_visible, exported, select
from ddplaunch.values.finding import ExitStatus, Finding, RefusedError, UsageError
from ddplaunch.values.resolved import Source, Unavailable
from tests.agent.guarded import until
from tests.checks.healthy import healthy_gpu
from tests.hosts.launching import ddplaunch
from tests.machine.fake_nvml import FakeNvml


def picked(
    text: str,
    nvml: NvmlFacts | None = None,
    within: Exported = Exported(),  # noqa: B008 - frozen
    held: tuple[str, ...] = (),
    wanted: int | None = None,
) -> Selection:
    return select(text, nvml or FOUR, within, frozenset(held), wanted)


def refused(text: str, nvml: NvmlFacts | None = None, **more: Any) -> Finding:
    with pytest.raises((RefusedError, UsageError)) as caught:
        picked(text, nvml, **more)
    (finding,) = caught.value.findings
    assert (caught.value.status == ExitStatus.USAGE) == (finding.code == "gpus-invalid")
    return finding


def named(selection: Selection) -> str:
    """Return what CUDA_VISIBLE_DEVICES becomes."""
    return ",".join(entry.text for entry in selection.entries)


def uuids(selection: Selection) -> tuple[str, ...]:
    return tuple(entry.uuid for entry in selection.entries)


def gpu(index: int, **changes: object) -> Gpu:
    short = {"uuid": f"GPU-{index}{index}aa-{index}", "name": "H100", "memory_used_bytes": 0}
    return healthy_gpu(index, **{**short, **changes})


def machine(*gpus: Gpu) -> NvmlFacts:
    return NvmlFacts("570.124.06", (12, 8), gpus)


FOUR = machine(*(gpu(index) for index in range(4)))
SPLIT = gpu(
    1,
    mig_enabled=True,
    utilization_percent=Unavailable("NVML: Not Supported"),
    mig_devices=(MigDevice("MIG-a1", "1g", GIB), MigDevice("MIG-b2", "1g", GIB)),
)


def shown(nvml: NvmlFacts, value: str | None, order: str | None = None) -> list[int]:
    return [entry.gpu.index for entry in cuda_visible(nvml, value, order).entries]


@pytest.mark.parametrize(
    ("value", "indices", "unknown", "unread"),
    [
        (None, [0, 1, 2, 3], (), ()),
        ("", [], (), ()),
        ("1gpu,+2", [1, 2], (), ()),  # as strtoul reads it
        ("0,-1,2", [0], (), ("2",)),
        ("0,9,2", [0], ("9",), ("2",)),
        ("0,,2", [0], ("",), ("2",)),
        ("1,1", [], ("1 (duplicate)",), ()),
        ("GPU-22aa-2,GPU-00", [2, 0], (), ()),
        ("GPU-", [], ("GPU-",), ()),  # four begin like this
        ("GPU-22aa,GPU-22aa-2", [], ("GPU-22aa-2 (duplicate)",), ()),
        ("GPU-22aa-2,0", [2], ("0",), ()),  # the first entry decides how all are read
        ("MIG-a1", [], ("MIG-a1",), ()),
    ],
)
def test_visible_devices(
    value: str | None, indices: list[int], unknown: tuple[str, ...], unread: tuple[str, ...]
) -> None:
    found = cuda_visible(FOUR, value, None)
    assert [entry.gpu.index for entry in found.entries] == indices
    assert (found.unknown, found.unread) == (unknown, unread)


MIXED = machine(gpu(0, name="T4", compute_capability=(7, 5)), gpu(1), gpu(2))
BOTH = machine(gpu(0), SPLIT)


@pytest.mark.parametrize(
    ("nvml", "value", "order", "indices"),
    [
        (MIXED, "0", None, [1]),
        (MIXED, None, "PCI_BUS_ID", [0, 1, 2]),
        (MIXED, None, "FASTEST_FIRST", [1, 2, 0]),
        (BOTH, "0", None, [0]),
        (machine(replace(SPLIT, mig_devices=()), gpu(1)), None, None, [1]),  # split without instances: no device
    ],
)
def test_the_order_of_cuda(nvml: NvmlFacts, value: str | None, order: str | None, indices: list[int]) -> None:
    assert shown(nvml, value, order) == indices


def test_with_mig_a_process_sees_one_instance_and_nothing_else() -> None:
    found = cuda_visible(BOTH, None, None)
    assert [entry.text for entry in found.entries] == ["MIG-a1"]
    assert [entry.text for entry in found.devices] == ["0", "MIG-a1", "MIG-b2"]
    assert [entry.uuid for entry in cuda_visible(BOTH, "MIG-b2", None).entries] == ["MIG-b2"]


USED = machine(gpu(0, memory_used_bytes=GIB // 2), gpu(1), gpu(2, memory_used_bytes=5 * 2**20), gpu(3))
PARTLY = machine(gpu(0), gpu(1, fault="GPU is lost"), gpu(2, compute_mode="prohibited"), gpu(3))


@pytest.mark.parametrize(
    ("text", "nvml", "more", "chosen"),
    [
        ("0,GPU-22", FOUR, {}, "GPU-00aa-0,GPU-22aa-2"),  # a list of both kinds becomes UUIDs
        ("1", BOTH, {"within": Exported("MIG-a1,MIG-b2")}, "MIG-b2"),  # nvidia-smi has no numbers for them
        ("0,2", MIXED, {"within": Exported(None, order="FASTEST_FIRST")}, "GPU-00aa-0,GPU-22aa-2"),
        # exported 0,1 are the two fast ones then: nvidia-smi's 1 and 2
        ("2", MIXED, {"within": Exported("0,1", order="FASTEST_FIRST")}, "GPU-22aa-2"),
        ("1", BOTH, {}, "MIG-a1"),
        ("free:1", BOTH, {}, "0"),
        ("free:1", machine(SPLIT), {"held": ("MIG-a1",)}, "MIG-b2"),
        ("free:2", USED, {}, "1,2"),  # little memory first, in the order of PCI
        ("free:4", USED, {}, "0,1,2,3"),
        ("free", USED, {"wanted": 1}, "1"),
        ("free:1", PARTLY, {"held": ("GPU-00aa-0",)}, "3"),
    ],
)
def test_what_cuda_visible_devices_becomes(text: str, nvml: NvmlFacts, more: dict[str, Any], chosen: str) -> None:
    found = picked(text, nvml, **more)
    assert chosen in (named(found), ",".join(uuids(found)))


@pytest.mark.parametrize(
    ("requested", "devices", "chosen", "note"),
    [
        ("3,4,5", "3,4,5", "3,4,5", "`--gpus` counts as nvidia-smi does, within CUDA_VISIBLE_DEVICES=3,4,5 from ann"),
        ("3", "GPU-55,GPU-33", "GPU-33", "counts as nvidia-smi does"),
        ("0,2", "3,4,5", "3,5", "`--gpus` counts positions in CUDA_VISIBLE_DEVICES=3,4,5 from ann; nvidia-smi's"),
        ("0,1", "1,2", "1,2", "nvidia-smi's numbers are 1,2"),  # 0 is not among 1,2: both count by position
        ("1", "1,2", "1", "; by position there it would be 2"),
        ("free:2", "6,3,4", "3,4", "`--gpus` chooses within CUDA_VISIBLE_DEVICES=6,3,4 from ann"),
    ],
)
def test_numbers_are_those_of_nvidia_smi_where_all_are_exported_and_positions_where_not(
    requested: str, devices: str, chosen: str, note: str
) -> None:
    nvml = machine(*(gpu(index, processes=(GpuProcess(7, 1, None, None),) if index > 4 else ()) for index in range(8)))
    found = picked(requested, nvml, Exported(devices, "ann"))
    assert named(found) == chosen
    assert note in found.notes[0]
    # What the ranks get is what was meant, whichever way it was counted.
    assert shown(nvml, named(found)) == [entry.gpu.index for entry in found.entries]


@pytest.mark.parametrize("requested", ["3,0", "6", "3,7"])
def test_numbers_that_fit_neither_way_are_refused_with_those_that_can_be_typed(requested: str) -> None:
    finding = refused(requested, machine(*map(gpu, range(8))), within=Exported("3,4,5", "ann"))
    assert finding.fix == "use `--gpus 3,4,5` or fewer of them, as nvidia-smi counts"
    assert "within CUDA_VISIBLE_DEVICES=3,4,5 from ann" in finding.what
    assert "3 (H100, GPU-33aa-3), 4 (H100, GPU-44aa-4)" in finding.what


SLURM = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "2,3", "SLURM_STEP_GPUS": "2,3"}


@pytest.mark.parametrize(
    ("environ", "pairs", "devices", "by"),
    [
        ({}, (), None, "the shell's environment"),
        (SLURM, (), "2,3", "Slurm"),
        ({**SLURM, "SLURM_STEP_GPUS": "", "GPU_DEVICE_ORDINAL": "2,3"}, (), "2,3", "Slurm"),
        ({**SLURM, "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2"}, (), "0,1", "Slurm"),
        ({**SLURM, "CUDA_VISIBLE_DEVICES": "3"}, (), "3", "the shell's environment"),  # the batch script narrowed it
        (SLURM, (("CUDA_VISIBLE_DEVICES", "2", Source("flag", "--env")),), "2", "`--env`"),
        ({}, (("CUDA_VISIBLE_DEVICES", "2", Source("profile", "ddplaunch.toml")),), "2", "ddplaunch.toml"),
        ({}, (("CUDA_VISIBLE_DEVICES", "2", Source("Slurm", "this task's own GPUs")),), "2", "Slurm"),
    ],
)
def test_who_set_the_variable_is_known(
    environ: dict[str, str], pairs: tuple[tuple[str, str, Source], ...], devices: str | None, by: str
) -> None:
    found = exported(environ, pairs)
    assert (found.devices, found.by) == (devices, by)


INVALID = ("", " ", "0,", "a", "-1", "0-3", "1.0", "²", "99999", "0,0", "0,GPU-00", "GPU-")
TWINS = machine(gpu(0, uuid="GPU-5a"), gpu(1, uuid="GPU-5b"))
BUSY = machine(gpu(0, processes=(GpuProcess(7, 30 * GIB, "ann", "python train.py"),)), gpu(1), gpu(2))


@pytest.mark.parametrize(
    ("text", "nvml", "code", "what", "fix"),
    [
        *((text, FOUR, "gpus-invalid", "", "") for text in (*INVALID, "free:", "free:0", "free:x", "free:-2")),
        *(
            (text, FOUR, "gpu-not-found", "3 (H100, GPU-33aa-3)", "use `--gpus 0,1,2,3` or fewer of them")
            for text in ("4", "0,7", "GPU-9", "MIG-x")
        ),
        ("GPU-5", TWINS, "gpu-not-found", "`GPU-5` names several GPUs", ""),
        ("0", machine(), "gpu-not-found", "there is no GPU on this machine", ""),
        ("free:1", machine(), "gpus-too-few", "1 free GPU asked for, and there are 0 GPUs", ""),
        ("free:2", BUSY, "gpus-not-free", "2 free GPUs asked for, 1 of 3 is free", "`--gpus free:1`"),
    ],
)
def test_what_cannot_be_chosen_is_refused(text: str, nvml: NvmlFacts, code: str, what: str, fix: str) -> None:
    finding = refused(text, nvml, held=("GPU-22aa-2",))
    assert finding.code == code and what in finding.what and fix in finding.fix
    if nvml is BUSY:
        assert finding.where == (
            "GPU 0: pid 7, ann, `python train.py`, 30 GiB",
            "GPU 2: held by another ddplaunch launch",
        )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"memory_used_bytes": GIB - 1, "memory_total_bytes": 4 * GIB}, None),  # under 1 GiB
        ({"memory_used_bytes": 3 * GIB}, None),  # under 5 % of 80 GiB
        ({"memory_used_bytes": 4 * GIB}, "4 GiB used, by a process that is not visible from here"),
        ({"utilization_percent": 9}, None),
        ({"utilization_percent": 10}, "10 % utilisation, by a process that is not visible from here"),
        ({"processes": (GpuProcess(7, 30 * GIB, "ann", "python train.py"),)}, "pid 7, ann, `python train.py`, 30 GiB"),
        ({"processes": (GpuProcess(7, None, None, None, orphan=True),)}, "pid 7, orphaned worker"),
        ({"processes": Unavailable("x"), "memory_used_bytes": Unavailable("x")}, None),
    ],
)
def test_what_keeps_a_gpu_busy(changes: dict[str, object], reason: str | None) -> None:
    assert busy_reason(VisibleGpu("0", gpu(0, **changes)), frozenset()) == reason


# Launches at once that must not meet

SHOW = """
import os, pathlib, time
told = os.environ["CUDA_VISIBLE_DEVICES"] + " " + os.environ["MASTER_PORT"]
pathlib.Path(os.environ["RANK"] + "-" + os.environ["DDPLAUNCH_RUN_ID"]).write_text(told)
end = time.time() + 270
while not pathlib.Path("go").exists() and time.time() < end:
    time.sleep(0.1)
"""
DEADLINE_S = 240


@pytest.mark.slow
def test_launches_at_once_get_gpus_ports_and_records_of_their_own(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    environment = fake_nvml.environment(8, ["0 process 1 40000", "0 memory 81559 40004"])
    environment["DDPLAUNCH_LOCK_DIR"] = str(tmp_path / "locks")
    words = ddplaunch("run", "2", "--gpus", "free:2", "--ignore", "torch-cpu-build-on-gpu-machine", "--", "show.py")
    piped: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(words, cwd=tmp_path, env=environment, **piped) for _ in range(2)]
    until(
        lambda: len(list(tmp_path.glob("[0-9]-*"))) == 4 or any(each.poll() is not None for each in processes),
        "every rank has said what it sees",
        DEADLINE_S,
    )
    (tmp_path / "go").touch()
    for process in processes:
        _, error = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, error
    runs = {path.name[2:]: path.read_text().split() for path in tmp_path.glob("0-*")}
    names = [name for devices, _ in runs.values() for name in devices.split(",")]
    assert len(runs) == 2 and len(set(names)) == 4, runs
    assert "0" not in names, "GPU 0 is busy"
    assert len({port for _, port in runs.values()}) == 2, "their stores are open at the same time"
    records = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob(".ddplaunch/runs/*/run.json")}
    assert {name: record["run_id"] for name, record in records.items()} == {name: name for name in runs}
    assert (tmp_path / ".ddplaunch" / "latest").resolve().name in runs
    assert not list((tmp_path / ".ddplaunch").glob(".*.*"))  # no draft of a link or a record is left
