"""The labelled logs: every answer to the fault sets, and how many are right beside the repository, where those are."""

from __future__ import annotations

import json

import pytest

from benchmarks.explain import CORPUS, WRONG_MOST, score, tuned
from benchmarks.fault_sets import logs
from tests.conftest import Golden
from tests.explain.logs import explained


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.exists(), reason="the labelled logs are not part of the repository")
def test_the_goals_hold() -> None:
    cases = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    on_tuned = score([case for case in cases if tuned(case)])
    assert on_tuned.kept, on_tuned
    unseen = score([case for case in cases if not tuned(case)])
    assert unseen.kept and unseen.wrong <= WRONG_MOST * unseen.logs, unseen


@pytest.mark.slow
def test_every_labelled_log_keeps_its_answer(golden: Golden) -> None:
    """Those that are answered wrongly are known by name; doubt is seldom where the answer is right."""
    wrong, sure, right = [], 0, 0
    for fault in logs():
        found = explained(fault.log).diagnosis
        code = "none" if found is None else found.code
        if code not in fault.codes:
            wrong.append(f"{fault.name}: {code}, not {fault.codes[0]}\n")
        elif found is not None:
            right += 1
            sure += found.certainty == "observed"
    golden("labelled-wrong", "".join(sorted(wrong)))
    assert sure > 0.9 * right > 500
