"""Facts of this machine as a whole: gathering, installed packages, secrets, JSON there and back."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from ddplaunch.machine import gather, software
from ddplaunch.machine.facts import (
    NOT_ASKED,
    Facts,
    Gpu,
    NvmlFacts,
    PackageFacts,
    PathFact,
    PortFact,
    ProbeRequest,
    Route,
)
from ddplaunch.values import codec
from ddplaunch.values.resolved import Unavailable

BANNED = ["torch", "psutil", "subprocess", "asyncio", "logging", "tempfile", "importlib.metadata"]


@pytest.fixture(scope="module")
def facts() -> Facts:
    return gather.gather(ProbeRequest(), {"RANK": "0", "HF_TOKEN": "abc", "SHELL": "/bin/sh"})


def test_this_machine_has_facts(facts: Facts) -> None:
    for each in fields(facts):
        value = getattr(facts, each.name)
        assert not (isinstance(value, Unavailable) and value.reason.startswith("probe failed")), (each.name, value)
    assert facts.environment == {"RANK": "0", "HF_TOKEN": "***"}
    # what matters to a launch is kept
    kept = ["CUDA_VISIBLE_DEVICES", "PET_NNODES", "SLURM_JOB_ID"]
    assert list(software.probe_environment(dict.fromkeys(["EDITOR", *reversed(kept), "AWS_REGION"], "1"))) == kept


def test_paths_and_a_local_master(tmp_path: Path) -> None:
    request = ProbeRequest((str(tmp_path),), (f"{tmp_path}/out",), "localhost", 0)
    found = gather.gather(request)
    assert [fact.kind for fact in found.data_paths + found.output_paths] == ["directory", "missing"]
    assert not isinstance(found.network, Unavailable)
    assert isinstance(found.network.route_to_master, Route) and found.network.route_to_master.is_local
    assert found.master_port == PortFact(0, free=True)
    elsewhere = gather.gather(ProbeRequest(master_addr="198.51.100.77", master_port=29500)).master_port
    assert isinstance(elsewhere, Unavailable) and "198.51.100.77" in elsewhere.reason


def test_a_probe_that_breaks_becomes_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    for probe in ("hardware.probe_cpu", "network.probe_interfaces", "network.look_up", "paths.begin_looks"):
        monkeypatch.setattr(f"ddplaunch.machine.{probe}", broken)
    found = gather.gather(ProbeRequest(data_paths=("/x",), master_addr="h", master_port=1))
    reason = "probe failed: ZeroDivisionError: oops"
    assert found.cpu == found.network == Unavailable(reason)
    assert found.data_paths == (PathFact("/x", "unreachable", error=reason),)
    assert isinstance(found.master_port, Unavailable)
    assert not isinstance(found.memory, Unavailable)


def test_nothing_slow_is_imported() -> None:
    code = (
        "import sys; from ddplaunch.machine.gather import gather; from ddplaunch.machine.facts import ProbeRequest\n"
        f"gather(ProbeRequest()); print([m for m in {BANNED!r} if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("environ", "file", "text", "kind"),
    [
        ({"KUBERNETES_SERVICE_HOST": "1"}, ".dockerenv", "", "kubernetes"),
        ({"APPTAINER_CONTAINER": "x.sif"}, "etc/x", "", "apptainer"),
        ({"ENROOT_ROOTFS": "/x", "SLURM_JOB_ID": "3"}, "etc/x", "", "slurm-pyxis"),
        ({}, ".dockerenv", "", "docker"),
        ({}, "run/.containerenv", "", "podman"),
        ({}, "proc/1/cgroup", "0::/kubepods.slice/kubepods-pod1.slice\n", "kubernetes"),
        ({}, "proc/self/cgroup", "0::/system.slice/docker.service\n", None),
        ({"SLURM_JOB_ID": "3"}, "etc/x", "", None),
    ],
)
def test_containers(tmp_path: Path, environ: dict[str, str], file: str, text: str, kind: str | None) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert software.container(environ, tmp_path) == kind
    for task, runs in (({}, True), ({"SLURM_TASK_PID": "4711"}, False), ({"SLURM_TASK_PID": "12"}, True)):
        (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/12").mkdir(exist_ok=True)
        assert software.probe_host((), environ | task, tmp_path).slurm_task is runs


def test_facts_survive_json_also_with_text_that_is_no_utf8(facts: Facts) -> None:
    nvml = NvmlFacts("550", (12, 4), (Gpu(0, "GPU-0", "H100", utilization_percent=Unavailable("NVML: Unknown")),))
    odd = replace(facts, data_paths=(PathFact("/\udcff\udcfe", "missing"),), environment={"PATH": "/\udc80"}, nvml=nvml)
    for one in (facts, odd):
        text = codec.to_json(one)
        assert text.isascii() and codec.from_json(text, Facts) == one
    asked = gather.gather(ProbeRequest(packages=True))
    assert isinstance(asked.packages, PackageFacts) and facts.packages == NOT_ASKED
    assert codec.from_json(codec.to_json(asked), Facts).packages == asked.packages


def test_folders_name_what_is_installed(tmp_path: Path) -> None:
    first, second = tmp_path / "user", tmp_path / "site"
    for folder in (
        first / "numpy-1.26.4.dist-info",
        second / "numpy-2.0.0.dist-info",
        second / "huggingface_hub-0.24.1.dist-info",
        second / "torch-2.13.0+cpu.dist-info",
        second / "zope.interface-6.1.dist-info",
        second / "PyYAML-6.0-py3.11.egg-info",
        second / "source_tree.egg-info",  # no version in its name
        second / "~umpy-1.0.dist-info",  # pip's left-over of an interrupted uninstall
        second / "numpy",
    ):
        folder.mkdir(parents=True)
    found = software.probe_packages(["", str(first), str(second), str(first), str(tmp_path / "none")])
    expected = {"numpy": "1.26.4", "huggingface-hub": "0.24.1", "torch": "2.13.0+cpu"}
    assert found.versions == expected | {"zope-interface": "6.1", "pyyaml": "6.0"}


@pytest.mark.parametrize(("drivers", "imports"), [((), False), (("/dev/null",), True)])
def test_torch_is_imported_for_its_gpus(
    drivers: tuple[str, ...], imports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr("ddplaunch.machine.gather._DRIVERS", drivers)
    monkeypatch.setattr("ddplaunch.machine.torch_child.start_import", lambda: started.append(1))
    monkeypatch.setattr("ddplaunch.machine.torch_child.finish", lambda _: NOT_ASKED)
    gather.gather(ProbeRequest(import_torch=True, torch_needs_gpu=True))
    assert bool(started) is imports
    gather.gather(ProbeRequest(import_torch=True))
    assert len(started) == 1 + imports
