"""Checks that compare hosts: each fires on hosts that differ, and stays silent on hosts that do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ddplaunch import __version__
from ddplaunch.checks.all_checks import across, run_across
from ddplaunch.machine.facts import NvmlFacts, PackageFacts, PathFact, PythonFacts, TorchFacts
from ddplaunch.planning.hosts_plan import HostReport
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Unavailable
from tests.checks.healthy import healthy_facts

TORCH, NVML = healthy_facts().torch, healthy_facts().nvml
assert isinstance(TORCH, TorchFacts) and isinstance(NVML, NvmlFacts)
OTHER_GPUS = replace(NVML, gpus=tuple(replace(gpu, name="NVIDIA T4") for gpu in NVML.gpus))


def host(name: str, facts: dict[str, Any] | None = None, **more: Any) -> HostReport:
    given = {"script_name": "train.py", "script": "a" * 64, "machine": name, "cwd": "/work", **more}
    given = {"sources": (("net/model.py", "a"), ("train.py", given["script"])), **given}
    known = {"packages": PackageFacts({"numpy": "2.0.0", "torch": "2.13.0", "pip": "24.0"}), **(facts or {})}
    return HostReport(name, healthy_facts(**known), __version__, **given)


def data(kind: str) -> tuple[PathFact, ...]:
    return (PathFact("/data/train", kind, readable=kind != "missing"),)


OLD_NUMPY = {"packages": PackageFacts({"numpy": "1.26.4", "pip": "1"})}
GOOD = (host("gpu-a"), host("gpu-b"), host("gpu-c"))
#: What gpu-c is like in each case, and words that the finding says.
FIRES: dict[str, tuple[HostReport, str]] = {
    "same-host-twice": (host("gpu-c", machine="gpu-a"), "gpu-a and gpu-c are the same machine"),
    "host-directory-missing": (host("gpu-c", cwd_problem="No such file or directory"), "`/work` cannot be entered"),
    "host-script-missing": (host("gpu-c", script="missing"), "gpu-c: there is no `train.py` in `/work`"),
    "hosts-differ-script": (host("gpu-c", script="b" * 64), "digest aaaaaaaaaaaa on 2 hosts"),
    "hosts-differ-ddplaunch": (replace(host("gpu-c"), ddplaunch="0.1"), f"{__version__} on 2 hosts, 0.1 on gpu-c"),
    "hosts-differ-python": (host("gpu-c", {"python": PythonFacts("/p", "3.9.1")}), "3.9 on gpu-c"),
    "hosts-differ-torch": (host("gpu-c", {"torch": replace(TORCH, version="2.3.0")}), "2.3.0 on gpu-c"),
    "hosts-differ-cuda": (host("gpu-c", {"torch": replace(TORCH, cuda=None)}), "none (a CPU build) on gpu-c"),
    "hosts-differ-nccl": (host("gpu-c", {"torch": replace(TORCH, nccl_version="2.1")}), "NCCL differs"),
    "hosts-differ-driver": (host("gpu-c", {"nvml": replace(NVML, driver_version="1.2")}), "1.2 on gpu-c"),
    "hosts-differ-gpu-count": (
        host("gpu-c", {"nvml": replace(NVML, gpus=NVML.gpus[:2])}),
        "2 on gpu-c … `ddplaunch run 8+8+2",
    ),
    "hosts-differ-gpu-model": (host("gpu-c", {"nvml": OTHER_GPUS}), "NVIDIA T4 on gpu-c"),
    "hosts-differ-data": (host("gpu-c", {"data_paths": data("missing")}), "missing on gpu-c"),
    "hosts-differ-packages": (host("gpu-c", OLD_NUMPY), "numpy differs: 2.0.0 on 2 hosts, 1.26.4 on gpu-c"),
    "hosts-differ-sources": (host("gpu-c", sources=(("net/model.py", "b"),)), "`net/model.py` on gpu-c"),
}


def test_the_launchers_own_version_counts() -> None:
    (finding,) = findings(*(replace(one, ddplaunch="0.1") for one in GOOD))
    assert finding.what == f"ddplaunch differs: {__version__} here, 0.1 on 3 hosts"
    (finding,) = findings(replace(GOOD[0], ddplaunch="0.1"), replace(GOOD[1], ddplaunch="0.2"))
    assert finding.what == "ddplaunch differs: 0.1 on gpu-a, 0.2 on gpu-b"


def findings(*hosts: HostReport) -> list[Finding]:
    outcomes = run_across(hosts)
    assert [(each.check.code, each.reason) for each in outcomes if each.status in ("crashed", "skipped")] == []
    return [finding for outcome in outcomes for finding in outcome.findings]


NO_GPUS = {"nvml": Unavailable("no driver")}


def of_packages(name: str, **versions: str) -> HostReport:
    return host(name, {"packages": PackageFacts(versions)})


def with_sources(name: str, here: str = "", **digests: str) -> HostReport:
    files = tuple((f"net/{file}.py", digest) for file, digest in digests.items())
    return host(name, sources=files, sources_here=(("net/model.py", here),) if here else ())


def same(of: Callable[..., HostReport], *names: str, **more: str) -> tuple[HostReport, ...]:
    return tuple(of(name, **more) for name in names)


THEIRS = dict.fromkeys("pqrst", "2")
USUAL = {"numpy": "2.0.0", "transformers": "4.46.1", "attrs": "1"}


@pytest.mark.parametrize(
    "hosts",
    [
        GOOD,
        GOOD[:1],
        (host("a", NO_GPUS),),
        (host("a", NO_GPUS), host("b", NO_GPUS)),
        tuple(host(name, {"data_paths": data("missing")}) for name in ("a", "b")),  # data-missing says it
        (*same(of_packages, "a", "c", "d", **USUAL), of_packages("e", **USUAL, pip="9")),  # pip trains nothing
        same(with_sources, "a", "b", model="1", here="1"),
    ],
)
def test_alike_hosts_have_nothing(hosts: tuple[HostReport, ...]) -> None:
    assert findings(*hosts) == []


def test_login_node_as_rank_0() -> None:
    login = host("login", NO_GPUS)
    fixes = {each.code: each.fix for each in findings(login, *GOOD)}
    assert fixes.keys() == {"login-node-as-rank-0", "hosts-differ-gpu-count"}
    assert "`ddplaunch run 4x8 …`" in fixes["hosts-differ-gpu-count"]
    assert "login-node-as-rank-0" not in [each.code for each in findings(GOOD[0], login)]


@pytest.mark.parametrize(
    ("hosts", "expected", "whats"),
    [
        (
            (of_packages("b", numpy="1.9.0", attrs="2"), *same(of_packages, "a", "c", "d", **USUAL)),
            ("warning", ("b",)),
            ["1.9.0 on b", "transformers differs: 4.46.1 on 3 hosts, missing on b"],
        ),
        (
            (*same(with_sources, "a", "b", model="1", data="1"), with_sources("d", model="2", data="missing")),
            ("error", ("d",)),
            ["differs: `net/model.py`, `net/data.py` (missing) on d"],
        ),
        (
            (*same(with_sources, "a", "b", model="missing"), with_sources("c", model="1")),  # most lack it
            ("error", ("a", "b")),
            ["`net/model.py` (missing) on b"],
        ),
        (
            (*same(with_sources, *"abcde", **dict.fromkeys("pqrst", "1")), *same(with_sources, *"wxyz", **THEIRS)),
            ("error", tuple("wxyz")),
            ["`net/r.py` and 2 more on y; and on 1 more host"],
        ),
        (same(with_sources, "a", "b", model="1", here="2"), ("warning", ("a", "b")), [""]),  # not copied
    ],
)
def test_packages_of_trainings_and_files_are_compared(
    hosts: tuple[HostReport, ...], expected: tuple[str, tuple[str, ...]], whats: list[str]
) -> None:
    found = findings(*hosts)
    assert [each.what.endswith(what) for each, what in zip(found, whats, strict=True)] == [True] * len(whats)
    assert {(each.severity.value, each.where) for each in found} == {expected}


@pytest.mark.parametrize("code", sorted(FIRES))
def test_hosts_that_differ(code: str) -> None:
    bad, words = FIRES[code]
    others = [replace(each, facts=replace(each.facts, data_paths=data("directory"))) for each in GOOD[:2]]
    (found,) = findings(*(others if code == "hosts-differ-data" else GOOD[:2]), bad)
    assert found.code == code and all(part in found.what + found.fix for part in words.split(" … "))
    assert "gpu-c" in found.where


def test_every_check_across_hosts_has_a_case_and_a_description() -> None:
    assert {check.code for check in across()} == {*FIRES, "login-node-as-rank-0", "hosts-differ-from-here"}


def test_nothing_crashes_where_nothing_is_known() -> None:
    gone = Unavailable("gone")
    bare = dict.fromkeys(("torch", "nvml", "python", "host", "cpu", "memory", "shm", "network"), gone)
    findings(host("a", bare), *GOOD)
