"""Which GPUs CUDA shows, and which ones `--gpus` means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddplaunch.machine.facts import Gpu, GpuProcess, MigDevice, NvmlFacts
from ddplaunch.planning.gpus import GIB, Exported, Selection, VisibleGpu, busy_reason, cuda_visible, exported, select
from ddplaunch.values.finding import ExitStatus, RefusedError, UsageError
from ddplaunch.values.resolved import Source, Unavailable

IDLE = Gpu(
    index=0,
    uuid="",
    name="H100",
    compute_capability=(9, 0),
    memory_total_bytes=80 * GIB,
    memory_used_bytes=0,
    utilization_percent=0,
    processes=(),
    compute_mode="default",
    mig_enabled=False,
)
NOBODY: frozenset[str] = frozenset()


def named(selection: Selection) -> str:
    """Return what CUDA_VISIBLE_DEVICES becomes."""
    return ",".join(entry.text for entry in selection.entries)


def uuids(selection: Selection) -> tuple[str, ...]:
    return tuple(entry.uuid for entry in selection.entries)


def gpu(index: int, **changes: object) -> Gpu:
    return replace(IDLE, **{"index": index, "uuid": f"GPU-{index}{index}aa-{index}", **changes})  # type: ignore[arg-type]


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
        ("  ", [], (), ()),
        ("2,0", [2, 0], (), ()),
        (" 1 , 3 ", [1, 3], (), ()),
        ("1gpu,+2", [1, 2], (), ()),  # as strtoul reads it
        ("-1", [], (), ()),
        ("0,-1,2", [0], (), ("2",)),
        ("0,9,2", [0], ("9",), ("2",)),
        ("0,,2", [0], ("",), ("2",)),
        ("none", [], ("none",), ()),
        ("99999999999999999999999", [], ("99999999999999999999999",), ()),
        ("²", [], ("²",), ()),
        ("1,1", [], ("1 (duplicate)",), ()),
        ("GPU-22aa-2,GPU-00", [2, 0], (), ()),
        ("GPU-", [], ("GPU-",), ()),  # four begin like this
        ("GPU-22aa,GPU-22aa-2", [], ("GPU-22aa-2 (duplicate)",), ()),
        ("GPU-22aa-2,0", [2], ("0",), ()),  # the first entry decides how all are read
        ("0,GPU-22aa-2", [0], ("GPU-22aa-2",), ()),
        ("MIG-a1", [], ("MIG-a1",), ()),
    ],
)
def test_visible_devices(
    value: str | None, indices: list[int], unknown: tuple[str, ...], unread: tuple[str, ...]
) -> None:
    found = cuda_visible(FOUR, value, None)
    assert [entry.gpu.index for entry in found.entries] == indices
    assert (found.unknown, found.unread) == (unknown, unread)


def test_mixed_models_are_fastest_first_unless_pci_order_is_set() -> None:
    mixed = machine(gpu(0, name="T4", compute_capability=(7, 5)), gpu(1), gpu(2))
    assert shown(mixed, None) == [1, 2, 0]
    assert shown(mixed, "0") == [1]
    assert shown(mixed, None, "PCI_BUS_ID") == [0, 1, 2]
    assert shown(mixed, None, "FASTEST_FIRST") == [1, 2, 0]


def test_with_mig_a_process_sees_one_instance_and_nothing_else() -> None:
    found = cuda_visible(machine(gpu(0), SPLIT), None, None)
    assert [entry.text for entry in found.entries] == ["MIG-a1"]
    assert [entry.text for entry in found.devices] == ["0", "MIG-a1", "MIG-b2"]


def test_mig_instance_by_uuid_and_the_whole_gpu_beside_it() -> None:
    assert [entry.uuid for entry in cuda_visible(machine(gpu(0), SPLIT), "MIG-b2", None).entries] == ["MIG-b2"]
    assert shown(machine(gpu(0), SPLIT), "0") == [0]


def test_a_split_gpu_without_instances_is_no_device() -> None:
    assert shown(machine(replace(SPLIT, mig_devices=()), gpu(1)), None) == [1]


def test_indices_and_uuids_are_taken_in_the_order_given() -> None:
    chosen = select("3,0", FOUR, None, NOBODY, None)
    assert (named(chosen), chosen.notes) == ("3,0", ())
    assert uuids(chosen) == ("GPU-33aa-3", "GPU-00aa-0")
    assert select("GPU-22", FOUR, None, NOBODY, None).entries[0].gpu.index == 2


def test_a_list_of_both_kinds_becomes_uuids() -> None:
    assert named(select("0,GPU-22", FOUR, None, NOBODY, None)) == "GPU-00aa-0,GPU-22aa-2"


@pytest.mark.parametrize(
    ("requested", "devices", "chosen", "note"),
    [
        ("3,4,5", "3,4,5", "3,4,5", "`--gpus` counts as nvidia-smi does, within CUDA_VISIBLE_DEVICES=3,4,5 from ann"),
        ("5,3", "3,4,5", "5,3", "counts as nvidia-smi does"),
        ("3", "GPU-55,GPU-33", "GPU-33", "counts as nvidia-smi does"),
        ("0,2", "3,4,5", "3,5", "`--gpus` counts positions in CUDA_VISIBLE_DEVICES=3,4,5 from ann; nvidia-smi's"),
        ("0,1", "1,2", "1,2", "nvidia-smi's numbers are 1,2"),  # 0 is not among 1,2: both count by position
        ("1", "1,2", "1", "; by position there it would be 2"),
        ("1,2", "1,2,3", "1,2", "; by position there it would be 2,3"),
        ("GPU-44", "3,4,5", "GPU-44", "`--gpus` chooses within CUDA_VISIBLE_DEVICES=3,4,5 from ann"),
        ("free:2", "6,3,4", "3,4", "`--gpus` chooses within CUDA_VISIBLE_DEVICES=6,3,4 from ann"),
        ("free:1", "GPU-55,GPU-33", "GPU-33", "chooses within"),
    ],
)
def test_numbers_are_those_of_nvidia_smi_where_all_are_exported_and_positions_where_not(
    requested: str, devices: str, chosen: str, note: str
) -> None:
    nvml = machine(*(gpu(index, processes=(GpuProcess(7, 1, None, None),) if index > 4 else ()) for index in range(8)))
    found = select(requested, nvml, Exported(devices, "ann"), NOBODY, None)
    assert named(found) == chosen
    assert note in found.notes[0]
    # What the ranks get is what was meant, whichever way it was counted.
    assert shown(nvml, named(found)) == [entry.gpu.index for entry in found.entries]


@pytest.mark.parametrize("requested", ["3,0", "6", "3,7"])
def test_numbers_that_fit_neither_way_are_refused_with_those_that_can_be_typed(requested: str) -> None:
    with pytest.raises(RefusedError, match="within CUDA_VISIBLE_DEVICES=3,4,5 from ann") as caught:
        select(requested, machine(*map(gpu, range(8))), Exported("3,4,5", "ann"), NOBODY, None)
    (finding,) = caught.value.findings
    assert finding.fix == "use `--gpus 3,4,5` or fewer of them, as nvidia-smi counts"
    assert "3 (H100, GPU-33aa-3), 4 (H100, GPU-44aa-4)" in finding.what


def test_exported_mig_instances_count_by_position_for_nvidia_smi_has_no_numbers_for_them() -> None:
    both = machine(gpu(0), SPLIT)
    assert named(select("1", both, Exported("MIG-a1,MIG-b2"), NOBODY, None)) == "MIG-b2"


def test_the_order_of_cuda_is_the_users_and_nvidia_smis_numbers_hold() -> None:
    mixed = machine(gpu(0, name="T4", compute_capability=(7, 5)), gpu(1), gpu(2))
    found = select("0,2", mixed, Exported(None, order="FASTEST_FIRST"), NOBODY, None)
    assert named(found) == "GPU-00aa-0,GPU-22aa-2"
    assert shown(mixed, named(found), "FASTEST_FIRST") == [0, 2]
    # exported 0,1 are the two fast ones then: nvidia-smi's 1 and 2
    assert named(select("2", mixed, Exported("0,1", order="FASTEST_FIRST"), NOBODY, None)) == "GPU-22aa-2"


SLURM = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "2,3", "SLURM_STEP_GPUS": "2,3"}


@pytest.mark.parametrize(
    ("environ", "pairs", "devices", "by"),
    [
        ({}, (), None, "the shell's environment"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, (), "1", "the shell's environment"),
        (SLURM, (), "2,3", "Slurm"),
        ({**SLURM, "SLURM_STEP_GPUS": "", "GPU_DEVICE_ORDINAL": "2,3"}, (), "2,3", "Slurm"),
        ({**SLURM, "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2"}, (), "0,1", "Slurm"),
        ({**SLURM, "CUDA_VISIBLE_DEVICES": "3"}, (), "3", "the shell's environment"),  # the batch script narrowed it
        (SLURM, (("CUDA_VISIBLE_DEVICES", "2", Source("flag", "--env")),), "2", "`--env`"),
        ({}, (("CUDA_VISIBLE_DEVICES", "2", Source("flag", "--env-file a.env")),), "2", "`--env-file a.env`"),
        ({}, (("CUDA_VISIBLE_DEVICES", "2", Source("profile", "ddplaunch.toml")),), "2", "ddplaunch.toml"),
        ({}, (("CUDA_VISIBLE_DEVICES", "2", Source("Slurm", "this task's own GPUs")),), "2", "Slurm"),
    ],
)
def test_who_set_the_variable_is_known(
    environ: dict[str, str], pairs: tuple[tuple[str, str, Source], ...], devices: str | None, by: str
) -> None:
    found = exported(environ, pairs)
    assert (found.devices, found.by) == (devices, by)


def test_mig_by_uuid_or_by_the_index_of_its_gpu() -> None:
    both = machine(gpu(0), SPLIT)
    assert uuids(select("MIG-b2", both, None, NOBODY, None)) == ("MIG-b2",)
    assert named(select("1", both, None, NOBODY, None)) == "MIG-a1"
    assert named(select("0", both, None, NOBODY, None)) == "0"
    assert named(select("free:1", both, None, NOBODY, None)) == "0"
    assert uuids(select("free:1", machine(SPLIT), None, frozenset({"MIG-a1"}), None)) == ("MIG-b2",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "0,",
        "a",
        "-1",
        "0-3",
        "1.0",
        "²",
        "99999",
        "0,0",
        "0,GPU-00",
        "GPU-",
        "free:",
        "free:0",
        "free:x",
        "free:-2",
    ],
)
def test_a_wrong_list_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        select(text, FOUR, None, NOBODY, None)
    assert [finding.code for finding in caught.value.findings] == ["gpus-invalid"]
    assert caught.value.status == ExitStatus.USAGE


@pytest.mark.parametrize("text", ["4", "0,7", "GPU-9", "MIG-x"])
def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(RefusedError) as caught:
        select(text, FOUR, None, NOBODY, None)
    (finding,) = caught.value.findings
    assert finding.code == "gpu-not-found"
    assert "3 (H100, GPU-33aa-3)" in finding.what
    assert finding.fix == "use `--gpus 0,1,2,3` or fewer of them"


def test_a_beginning_of_two_uuids_names_neither() -> None:
    with pytest.raises(RefusedError, match="`GPU-5` names several GPUs"):
        select("GPU-5", machine(gpu(0, uuid="GPU-5a"), gpu(1, uuid="GPU-5b")), None, NOBODY, None)


def test_no_gpu_at_all() -> None:
    with pytest.raises(RefusedError, match="there is no GPU on this machine"):
        select("0", machine(), None, NOBODY, None)


def test_free_prefers_little_memory_and_keeps_pci_order() -> None:
    used = machine(gpu(0, memory_used_bytes=GIB // 2), gpu(1), gpu(2, memory_used_bytes=5 * 2**20), gpu(3))
    assert named(select("free:2", used, None, NOBODY, None)) == "1,2"
    assert named(select("free:4", used, None, NOBODY, None)) == "0,1,2,3"
    assert named(select("free", used, None, NOBODY, 1)) == "1"
    assert named(select("free", used, None, NOBODY, None)) == "0,1,2,3"


def test_free_leaves_out_what_is_locked_lost_or_prohibited() -> None:
    nvml = machine(gpu(0), gpu(1, fault="GPU is lost"), gpu(2, compute_mode="prohibited"), gpu(3))
    assert named(select("free:1", nvml, None, frozenset({"GPU-00aa-0"}), None)) == "3"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"memory_used_bytes": GIB - 1, "memory_total_bytes": 4 * GIB}, None),  # under 1 GiB
        ({"memory_used_bytes": 3 * GIB}, None),  # under 5 % of 80 GiB
        ({"memory_used_bytes": 4 * GIB}, "4 GiB used, by a process that is not visible from here"),
        ({"utilization_percent": 9}, None),
        ({"utilization_percent": 10}, "10 % utilisation, by a process that is not visible from here"),
        (
            {"processes": (GpuProcess(7, 30 * GIB, "ann", "python train.py"),)},
            "pid 7, ann, `python train.py`, 30 GiB",
        ),
        ({"processes": (GpuProcess(7, None, None, None, orphan=True),)}, "pid 7, orphaned worker"),
        ({"processes": Unavailable("x"), "memory_used_bytes": Unavailable("x")}, None),
    ],
)
def test_what_keeps_a_gpu_busy(changes: dict[str, object], reason: str | None) -> None:
    assert busy_reason(VisibleGpu("0", gpu(0, **changes)), NOBODY) == reason


def test_too_few_free_gpus_say_who_is_on_the_others() -> None:
    process = GpuProcess(7, 30 * GIB, "ann", "python train.py")
    nvml = machine(gpu(0, processes=(process,)), gpu(1), gpu(2))
    with pytest.raises(RefusedError) as caught:
        select("free:2", nvml, None, frozenset({"GPU-22aa-2"}), None)
    (finding,) = caught.value.findings
    assert finding.code == "gpus-not-free"
    assert finding.what == "2 free GPUs asked for, 1 of 3 is free"
    assert finding.where == (
        "GPU 0: pid 7, ann, `python train.py`, 30 GiB",
        "GPU 2: held by another ddplaunch launch",
    )
    assert "`--gpus free:1`" in finding.fix


def test_free_on_a_machine_without_gpus() -> None:
    with pytest.raises(RefusedError) as caught:
        select("free:1", machine(), None, NOBODY, None)
    assert caught.value.findings[0].what == "1 free GPU asked for, and there are 0 GPUs"
