"""Checks that compare hosts: each fires on hosts that differ, and stays silent on hosts that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddplaunch import __version__
from ddplaunch.checks.all_checks import across, run_across
from ddplaunch.machine.facts import NvmlFacts, PackageFacts, PathFact, PythonFacts, TorchFacts
from ddplaunch.planning.hosts_plan import HostReport
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.resolved import Unavailable
from tests.checks.healthy import healthy_facts

TORCH, NVML = healthy_facts().torch, healthy_facts().nvml
assert isinstance(TORCH, TorchFacts) and isinstance(NVML, NvmlFacts)
OTHER_GPUS = replace(NVML, gpus=tuple(replace(gpu, name="NVIDIA T4") for gpu in NVML.gpus))


def host(name: str, facts: dict[str, Any] | None = None, **more: Any) -> HostReport:
    given = {"script_name": "train.py", "script": "a" * 64, "machine": name, "cwd": "/work", **more}
    given = {"sources": (("net/model.py", "a"),), **given}
    known = {"packages": PackageFacts({"numpy": "2.0.0", "torch": "2.13.0", "pip": "24.0"}), **(facts or {})}
    return HostReport(name, healthy_facts(**known), __version__, **given)


def data(kind: str) -> tuple[PathFact, ...]:
    return (PathFact("/data/train", kind, readable=kind != "missing"),)


GOOD = (host("gpu-a"), host("gpu-b"), host("gpu-c"))
#: What gpu-c is like in each case, and words that the finding says.
FIRES: dict[str, tuple[HostReport, str]] = {
    "same-host-twice": (host("gpu-c", machine="gpu-a"), "gpu-a and gpu-c are the same machine"),
    "host-directory-missing": (host("gpu-c", cwd_problem="No such file or directory"), "`/work` cannot be entered"),
    "host-script-missing": (host("gpu-c", script="missing"), "no `train.py` in `/work` on gpu-c"),
    "hosts-differ-script": (host("gpu-c", script="b" * 64), "digest aaaaaaaaaaaa on 2 hosts"),
    "hosts-differ-ddplaunch": (
        replace(host("gpu-c"), ddplaunch="0.1"),
        f"ddplaunch differs: {__version__} on 2 hosts, 0.1 on gpu-c",
    ),
    "hosts-differ-python": (host("gpu-c", {"python": PythonFacts("/p", "3.9.1")}), "3.9 on gpu-c"),
    "hosts-differ-torch": (host("gpu-c", {"torch": replace(TORCH, version="2.3.0")}), "2.3.0 on gpu-c"),
    "hosts-differ-cuda": (host("gpu-c", {"torch": replace(TORCH, cuda=None)}), "none (a CPU build) on gpu-c"),
    "hosts-differ-nccl": (host("gpu-c", {"torch": replace(TORCH, nccl_version="2.1")}), "NCCL differs"),
    "hosts-differ-driver": (host("gpu-c", {"nvml": replace(NVML, driver_version="1.2")}), "1.2 on gpu-c"),
    "hosts-differ-gpu-count": (host("gpu-c", {"nvml": replace(NVML, gpus=NVML.gpus[:2])}), "2 on gpu-c"),
    "hosts-differ-gpu-model": (host("gpu-c", {"nvml": OTHER_GPUS}), "NVIDIA T4 on gpu-c"),
    "hosts-differ-data": (host("gpu-c", {"data_paths": data("missing")}), "missing on gpu-c"),
    "hosts-differ-packages": (
        host("gpu-c", {"packages": PackageFacts({"numpy": "1.26.4", "pip": "1"})}),
        "numpy differs: 2.0.0 on 2 hosts, 1.26.4 on gpu-c",
    ),
    "hosts-differ-sources": (host("gpu-c", sources=(("net/model.py", "b"),)), "`net/model.py` on gpu-c"),
    "clock-skew": (host("gpu-c", clock_ahead_s=61.0, clock_unsure_s=0.1), "gpu-c is 61.0 s ahead"),
}


def test_the_launchers_own_version_counts() -> None:
    (finding,) = findings(*(replace(one, ddplaunch="0.1") for one in GOOD))
    assert finding.what == f"ddplaunch differs: {__version__} here, 0.1 on 3 hosts"


def findings(*hosts: HostReport) -> list[Finding]:
    outcomes = run_across(hosts)
    assert [(each.check.code, each.reason) for each in outcomes if each.status in ("crashed", "skipped")] == []
    return [finding for outcome in outcomes for finding in outcome.findings]


def test_alike_hosts_have_nothing() -> None:
    assert findings(*GOOD) == []
    assert findings(GOOD[0]) == []


@pytest.mark.parametrize("code", sorted(FIRES))
def test_hosts_that_differ(code: str) -> None:
    bad, words = FIRES[code]
    others = [replace(each, facts=replace(each.facts, data_paths=data("directory"))) for each in GOOD[:2]]
    found = [
        each for each in findings(*(others if code == "hosts-differ-data" else GOOD[:2]), bad) if each.code == code
    ]
    assert len(found) == 1, found
    assert words in found[0].what and "gpu-c" in found[0].where


def test_login_node_as_rank_0() -> None:
    login = host("login", {"nvml": Unavailable("no driver")})
    assert "login-node-as-rank-0" in [each.code for each in findings(login, *GOOD)]
    assert "login-node-as-rank-0" not in [each.code for each in findings(GOOD[0], login)]


def test_hosts_without_gpus_are_alike() -> None:
    bare = {"nvml": Unavailable("no driver")}
    assert findings(host("a", bare), host("b", bare)) == []


def test_a_clock_that_could_not_be_measured_well_is_not_blamed() -> None:
    assert findings(GOOD[0], host("gpu-b", clock_ahead_s=6.0, clock_unsure_s=2.0)) == []
    ahead, unknown = host("gpu-b", clock_ahead_s=60.0), host("gpu-c", clock_unsure_s=1e6)
    assert findings(ahead, unknown) == []


def packages(name: str, **versions: str) -> HostReport:
    return host(name, {"packages": PackageFacts({each.replace("_", "-"): text for each, text in versions.items()})})


def test_packages_of_trainings_are_compared() -> None:
    usual = {"numpy": "2.0.0", "transformers": "4.46.1", "attrs": "1"}
    good = [packages(f"gpu-{name}", **usual) for name in "acd"]
    found = findings(packages("gpu-b", numpy="1.9.0", attrs="2"), *good)
    assert [each.what for each in found] == [
        "numpy differs: 2.0.0 on 3 hosts, 1.9.0 on gpu-b",
        "transformers differs: 4.46.1 on 3 hosts, missing on gpu-b",
    ]
    assert {each.severity for each in found} == {Severity.WARNING} and found[0].where == ("gpu-b",)
    assert findings(*good, packages("gpu-e", **usual, pip="9")) == []


def test_every_check_across_hosts_has_a_case_and_a_description() -> None:
    assert {check.code for check in across()} == {*FIRES, "login-node-as-rank-0", "hosts-differ-from-here"}


def test_nothing_crashes_where_nothing_is_known() -> None:
    gone = Unavailable("gone")
    bare = dict.fromkeys(("torch", "nvml", "python", "host", "cpu", "memory", "shm", "network"), gone)
    findings(host("a", bare), *GOOD)


def with_sources(name: str, **digests: str) -> HostReport:
    return host(name, sources=tuple((f"net/{file}.py", digest) for file, digest in digests.items()))


def test_files_are_named_with_their_hosts() -> None:
    good = [with_sources(name, model="1", data="1") for name in "abc"]
    assert findings(*good) == []
    (found,) = findings(*good, with_sources("d", model="2", data="missing"), with_sources("e", model="2", data="1"))
    assert found.severity is Severity.ERROR and found.where == ("d", "e")
    assert found.what == (
        "what the script imports differs: `net/model.py`, `net/data.py` (missing) on d; `net/model.py` on e"
    )


def test_a_file_that_most_hosts_lack_is_missing_there() -> None:
    (found,) = findings(*(with_sources(name, model="missing") for name in "ab"), with_sources("c", model="1"))
    assert found.where == ("a", "b") and found.what.endswith("`net/model.py` (missing) on b")


def test_what_was_changed_here_and_not_copied() -> None:
    same = [replace(with_sources(name, model="1"), sources_here=(("net/model.py", "2"),)) for name in "ab"]
    (found,) = findings(*same)
    assert (found.code, found.severity) == ("hosts-differ-from-here", Severity.WARNING)
    assert findings(*(replace(each, sources_here=(("net/model.py", "1"),)) for each in same)) == []
