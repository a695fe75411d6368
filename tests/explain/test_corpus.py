"""The labelled logs beside the repository, where they are: goals of the half that rules were not tuned on."""

from __future__ import annotations

import json

import pytest

from benchmarks.explain import CORPUS, score, tuned
from benchmarks.fault_sets import Fault, logs
from tests.explain.logs import explained


@pytest.mark.skipif(not CORPUS.exists(), reason="the labelled logs are not part of the repository")
def test_the_goals_hold() -> None:
    cases = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    on_tuned = score([case for case in cases if tuned(case)])
    assert on_tuned.kept, on_tuned
    unseen = score([case for case in cases if not tuned(case)])
    assert unseen.right >= 0.95 * unseen.logs and unseen.wrong <= 0.04 * unseen.logs, unseen


@pytest.mark.parametrize("fault", list(logs("third")), ids=lambda each: each.name)
def test_logs_that_were_written_before_any_rule_was_mended_on_them(fault: Fault) -> None:
    found = explained(fault.log).diagnosis
    assert ("none" if found is None else found.code) in fault.codes
