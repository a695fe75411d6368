"""A whole launch on forty scripted hosts: the real launcher starts them, one fails, all are told and leave a record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fan_out import played
from benchmarks.scripted_hosts import Script

pytestmark = pytest.mark.slow

HOSTS = 40
QUICK = Script(login_s=0.1, facts_s=0.05, end_s=0.1, train_s=0.5)


def test_one_that_fails_ends_all(tmp_path: Path) -> None:
    seen, _, status, _ = played(HOSTS, tmp_path / "run", QUICK, "--run-id", "many")
    said = (tmp_path / "run" / "err").read_text()
    assert status == 1, said
    assert (len(seen.answered), len(seen.launched), len(seen.ended)) == (HOSTS, HOSTS, HOSTS)
    assert len(seen.told) == HOSTS - 1  # all but the one that failed
    assert "h0, h1, h2, h3, h4, h5, h6, h7 … h39 (40 hosts)" in " ".join(said.split())
    record = tmp_path / "run" / ".ddplaunch" / "runs" / "many"
    assert len(list(record.glob("node-*/attempt-0/rank-*.out"))) == HOSTS * 8
    assert json.loads((record / "outcome.json").read_text())["diagnosis"]["host"] == "h20"
