"""CPU, memory and process limits, and what the kernel tells about GPUs: made-up trees, and a real cgroup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddplaunch.machine import cgroups, deadline
from ddplaunch.machine.facts import MemoryFacts, NvidiaFacts, ShmFacts
from ddplaunch.machine.hardware import probe_cpu, probe_limits, probe_memory, probe_nvidia, probe_shm
from ddplaunch.machine.processes.orphans import _COMMAND_LENGTH, gpu_process
from ddplaunch.values.resolved import Unavailable
from tests.machine.cpu_trees import write

GIB = 1024**3
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\nCached: 5 kB\n"


def tree(root: Path, membership: str, mountinfo: str, files: dict[str, str]) -> Path:
    files |= {"proc/self/cgroup": membership, "proc/self/mountinfo": mountinfo, "proc/meminfo": MEMINFO}
    for path, text in files.items():
        write(root / path, text)
    return root


V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def v2(root: Path, files: dict[str, str], membership: str = "0::/job/step\n") -> Path:
    (root / "sys/fs/cgroup/job/step").mkdir(parents=True)
    return tree(root, membership, V2_MOUNT, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})


def v1(root: Path, controller: str, files: dict[str, str], inside: str = "/") -> Path:
    mountinfo = f"32 31 0:29 {inside} /sys/fs/cgroup/{controller} rw - cgroup cgroup rw,{controller}\n" + (
        "33 31 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    files = {f"sys/fs/cgroup/{controller}/{name}": text for name, text in files.items()}
    return tree(root, f"5:{controller}:/docker/abc\n0::/\n", mountinfo, files)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"job/step/cpu.max": "max 100000\n", "job/cpu.max": "150000 100000\n"}, 1.5),  # the tightest level
        ({"job/step/cpu.max": "max 100000\n"}, None),
        ({"job/cpu.max": "50000 100000\n"}, 0.5),
    ],
)
def test_v2_cpu(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    facts = probe_cpu(v2(tmp_path, files))
    assert facts.quota_cpus == quota and facts.affinity == len(os.sched_getaffinity(0))
    assert facts.usable == (1 if quota else facts.affinity), "a fraction of a CPU still counts as one"


def test_v1_cpu(tmp_path: Path) -> None:
    files = {"docker/abc/cpu.cfs_quota_us": "-1", "cpu.cfs_quota_us": "400000", "cpu.cfs_period_us": "100000"}
    assert probe_cpu(v1(tmp_path, "cpu", files)).quota_cpus == 4.0
    assert probe_cpu(v1(tmp_path, "cpu", files, inside="/docker/abc")).quota_cpus == 4.0, "the container's part alone"
    # a membership outside of the namespace uses the mount's top
    root = v2(tmp_path / "v2", {"cpu.max": "100000 100000\n"}, membership="0::/../../other\n")
    assert cgroups.levels("cpu", root).folders == (f"{root}/sys/fs/cgroup",)
    assert probe_cpu(root).quota_cpus == 1.0


def test_v2_memory_counts_reclaimable_cache_as_available(tmp_path: Path) -> None:
    files = {
        "job/memory.max": f"{4 * GIB}\n",
        "job/memory.current": f"{3 * GIB}\n",
        "job/memory.stat": f"anon 5\ninactive_file {1 * GIB}\n",
        "job/step/memory.max": "max\n",
    }
    assert probe_memory(v2(tmp_path, files)) == MemoryFacts(16 * GIB, 2 * GIB, 4 * GIB)


def test_v1_memory(tmp_path: Path) -> None:
    files = {
        "docker/abc/memory.limit_in_bytes": str(2 * GIB),
        "docker/abc/memory.usage_in_bytes": str(GIB),
        "docker/abc/memory.stat": "inactive_file 7\ntotal_inactive_file 1024\n",
        "memory.limit_in_bytes": "9223372036854771712",
    }
    assert probe_memory(v1(tmp_path, "memory", files)) == MemoryFacts(16 * GIB, GIB + 1024, 2 * GIB)
    assert isinstance(probe_memory(tmp_path / "nothing"), Unavailable)
    endless = {"docker/abc/memory.limit_in_bytes": "9223372036854771712"}
    assert probe_memory(v1(tmp_path / "endless", "memory", endless)) == MemoryFacts(16 * GIB, 8 * GIB, None)


@pytest.mark.parametrize(("step", "least"), [("max", None), ("700", 512)])
def test_pids_max_is_the_smallest_on_the_way_up(tmp_path: Path, step: str, least: int | None) -> None:
    files = {"job/step/pids.max": step, "job/pids.max": "max" if least is None else "512"}
    assert probe_limits(v2(tmp_path, files)).cgroup_pids_max == least


def test_this_machine(tmp_path: Path) -> None:
    memory, shm = probe_memory(), probe_shm()
    assert isinstance(memory, MemoryFacts) and isinstance(shm, ShmFacts)
    assert 0 < memory.available_bytes <= memory.total_bytes
    assert 0 < shm.free_bytes <= shm.size_bytes
    assert probe_cpu().usable >= 1
    assert probe_shm(tmp_path) == Unavailable("/dev/shm: No such file or directory")


@pytest.mark.root
def test_a_real_cgroup_with_a_quota() -> None:
    base = cgroups.levels("cpu")
    folder = Path(base.folders[0] if base.folders else "/nowhere") / "ddplaunch-test"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        name, text = ("cpu.cfs_quota_us", "50000") if base.version == 1 else ("cpu.max", "50000 100000")
        if not (folder / name).exists():
            pytest.skip(f"{folder} has no {name}: the controller is not delegated")
        (folder / name).write_text(text)

        def inside() -> tuple[float | None, int]:
            (folder / "cgroup.procs").write_text(str(os.getpid()))
            facts = probe_cpu()
            return facts.quota_cpus, facts.usable

        answer = deadline.collect([deadline.start(inside)], 20)[0]
        assert answer.error is None and answer.value == (0.5, 1)
    finally:
        folder.rmdir()


def pci(root: Path, slot: str, vendor: str, device_class: str) -> None:
    directory = root / "sys/bus/pci/devices" / slot
    directory.mkdir(parents=True)
    (directory / "vendor").write_text(vendor + "\n")
    (directory / "class").write_text(device_class + "\n")


def test_only_gpus_and_their_own_device_nodes_count(tmp_path: Path) -> None:
    assert probe_nvidia(None, tmp_path) == NvidiaFacts(0, None, 0, None)
    pci(tmp_path, "0000:01:00.0", "0x10de", "0x030000")
    pci(tmp_path, "0000:02:00.0", "0x10de", "0x030200")
    pci(tmp_path, "0000:01:00.1", "0x10de", "0x040300")  # the sound part of a graphics card
    pci(tmp_path, "0000:03:00.0", "0x10de", "0x068000")  # an NVSwitch
    pci(tmp_path, "0000:04:00.0", "0x8086", "0x030000")
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / "dev" / name).touch()
    found = probe_nvidia("Driver Not Loaded", tmp_path)
    assert (found.pci_gpus, found.device_nodes, found.nvml_error) == (2, 2, "Driver Not Loaded")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:20:39 UTC 2025",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder)",
    ],
)
def test_version_of_the_kernel_module(tmp_path: Path, line: str) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(f"{line}\nGCC version:  gcc version 12.3.0\n")
    assert probe_nvidia(None, tmp_path).kernel_module_version == "570.124.06"


def process(proc: Path, pid: int, *, parent: int = 1, command: bytes = b"", environment: bytes = b"") -> None:
    directory = proc / str(pid)
    directory.mkdir(parents=True)
    (directory / "cmdline").write_bytes(command)
    (directory / "comm").write_text("name (of) it\n")
    (directory / "stat").write_text(f"{pid} (name (of) it) S {parent} {pid} {pid} 0 -1{' 0' * 13} 4711\n")
    (directory / "environ").write_bytes(environment)


ELASTIC = b"PATH=/bin\0TORCHELASTIC_RUN_ID=none\0"


@pytest.mark.parametrize(
    ("init", "parent", "environment", "orphan"),
    [
        (b"/sbin/init\0", 1, ELASTIC, True),
        (b"/sbin/init\0", 69, ELASTIC, False),  # its parent lives
        (b"/sbin/init\0", 1, b"NOT_TORCHELASTIC_RUN_ID=x\0", False),  # a daemon
        (b"python\0-m\0torch.distributed.run\0train.py\0", 1, ELASTIC, False),  # process 1 of a container
    ],
)
def test_a_worker_whose_torchrun_is_gone_is_an_orphan(
    tmp_path: Path, init: bytes, parent: int, environment: bytes, orphan: bool
) -> None:
    process(tmp_path, 1, parent=0, command=init)
    process(tmp_path, 70, parent=parent, command=b"python\0-u\0train.py\0", environment=environment)
    found = gpu_process(70, 5, str(tmp_path))
    assert (found.command, found.memory_bytes, found.orphan) == ("python -u train.py", 5, orphan)


def test_a_command_is_one_line_and_that_of_a_kernel_thread_its_name(tmp_path: Path) -> None:
    process(tmp_path, 70, command=b"python\0a\nb\xff\x1b[31m\0" + b"x" * 500)
    command = gpu_process(70, None, str(tmp_path)).command
    assert command is not None and len(command) == _COMMAND_LENGTH and command.isprintable()
    process(tmp_path, 71)
    assert gpu_process(71, None, str(tmp_path)).command == "[name (of) it]"
    found = gpu_process(os.getpid(), None)
    assert found.user and found.command and found.orphan is False
