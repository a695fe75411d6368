from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ddplaunch.checks.check import CheckOutcome
from ddplaunch.planning.hosts_plan import HostReport
from ddplaunch.ui.doctor_view import (
    doctor_json,
    doctor_text,
    explain_text,
    hosts_json,
    hosts_text,
    list_json,
    list_text,
    verdict_text,
)
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import warning
from ddplaunch.values.resolved import Unavailable
from tests.checks.healthy import healthy_facts
from tests.conftest import Golden
from tests.planning.sample_launch import BUSY_CHECK, CHECKS, FILES_CHECK, HEALTHY, MIXED, SHM_CHECK, facts

CRASH = CheckOutcome(BUSY_CHECK, "crashed", reason="KeyError: 'pid'")
SKIP = CheckOutcome(BUSY_CHECK, "skipped", reason="no NVIDIA driver is loaded")


@pytest.mark.parametrize("width", [80, 40])
def test_findings_and_skips(golden: Golden, width: int) -> None:
    text = doctor_text(MIXED, facts(), Terminal(width), verbose=True)
    assert max(map(len, text.splitlines())) <= width
    golden(f"doctor-{width}", text)


def test_a_platform_is_said_to_be_what_it_is() -> None:
    plain = healthy_facts()
    assert not isinstance(plain.host, Unavailable)
    assert "aarch64" not in doctor_text(HEALTHY, plain, Terminal(200))
    host = replace(plain.host, container="docker", machine="aarch64")
    shown = doctor_text(HEALTHY, replace(plain, host=host), Terminal(200))
    assert shown.startswith("host gpu-node-1 (docker, aarch64), Python ")
    assert max(map(len, doctor_text(HEALTHY, replace(plain, host=host), Terminal(40)).splitlines())) <= 40


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (HEALTHY, "healthy: 3 checks passed"),
        ((*HEALTHY, SKIP), "healthy: 3 checks passed, 1 skipped"),
        ((*HEALTHY, CRASH), "no findings: 3 checks passed, 1 crashed"),
        ((SKIP,), "nothing was checked: 0 checks passed, 1 skipped"),
        (MIXED, "1 error, 1 warning: 0 checks passed, 1 skipped"),
    ],
)
def test_verdict(outcomes: tuple[CheckOutcome, ...], verdict: str) -> None:
    assert verdict_text(outcomes) == verdict
    more = " (`--verbose` says why)" if "skipped" in verdict else ""
    assert doctor_text(outcomes, facts(), Terminal(80)).endswith(f"\n{verdict}{more}\n")
    assert doctor_text(outcomes, facts(), Terminal(80), verbose=True).endswith(f"\n{verdict}\n")


def test_skips_of_one_reason_share_a_line_and_crashes_are_ours() -> None:
    crashed = CheckOutcome(FILES_CHECK, "crashed", reason="E: x")
    skips = (SKIP, CheckOutcome(SHM_CHECK, "skipped", reason=SKIP.reason), crashed)
    assert "no NVIDIA driver" not in doctor_text(skips, facts(), Terminal(80))
    text = doctor_text(skips, facts(), Terminal(80), verbose=True)
    assert "  no NVIDIA driver is loaded: gpu-busy, shm-too-small\n" in text
    assert "a bug in ddplaunch" in text
    assert "  E: x: open-files-low\n" in text


def test_hosts_have_a_row_each_with_how_far_their_clocks_are_off() -> None:
    clocks = (("a", 0.96, 0.0), ("b", -1.25, 1.5), ("c", 2.0004, 1.5))
    reports = [HostReport(name, facts(), "1", clock_ahead_s=ahead, clock_unsure_s=off) for name, ahead, off in clocks]
    missing = [warning("host-silent", "d does not answer", why="w", fix="f")]
    rows, *_, verdict = hosts_text(reports, missing, missing, 9, Terminal(100), picture=["links"]).split("\n\n")
    assert [line.rpartition("  ")[2] for line in rows.splitlines()[1:]] == ["ok", "ok", "+2.0 s"]
    assert verdict == "1 warning: 3 of 4 hosts answered, 9 checks passed\n"
    data = hosts_json(reports, [HEALTHY, MIXED, ()], [CRASH], missing)
    assert [(host["name"], host["clock_ahead_s"], len(host["checks"])) for host in data["hosts"]] == [
        ("a", 0.96, 3), ("b", -1.25, 3), ("c", 2.0, 0)]  # fmt: skip
    assert data["checks"][0]["status"] == "crashed" and data["findings"][0]["code"] == "host-silent"


def test_list_and_explain(golden: Golden) -> None:
    golden("checks-80", list_text(CHECKS, Terminal(80)) + "\n" + explain_text(SHM_CHECK, Terminal(80)))
    listed = list_json(CHECKS)["checks"]
    assert [check["code"] for check in listed] == ["shm-too-small", "open-files-low", "gpu-busy"]
    assert [*listed[0]] == ["code", "family", "title", "explanation", "needs", "wants"]


def test_json_carries_findings_and_facts_but_no_secret() -> None:
    environment = {"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_secretsecretsecret", "TORCH_TOKEN": "s3cret"}
    busy = warning("gpu-busy", "GPU 0 is held by `train.py --api-key s3cret --epochs 3`", why="w", fix="f")
    outcomes = (*MIXED, CheckOutcome(BUSY_CHECK, "found", (busy,)))
    data = json.loads(json.dumps(doctor_json(outcomes, facts(environment=environment))))
    assert (data["schema"], data["counts"]) == (1, {"passed": 0, "found": 3, "skipped": 1, "crashed": 0})
    assert data["facts"]["memory"] == {"unavailable": "no such thing in this test"}
    assert data["facts"]["host"]["name"] == "node-1"
    assert data["facts"]["environment"]["NCCL_DEBUG"] == "INFO"
    assert [word for word in ("s3cret", "hf_secret") if word in json.dumps(data)] == []
    assert "--epochs 3" in data["checks"][-1]["findings"][0]["what"]
