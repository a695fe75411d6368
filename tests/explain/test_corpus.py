"""The labelled logs beside the repository, where they are: goals of the half that rules were not tuned on."""

from __future__ import annotations

import json

import pytest

from benchmarks.explain import CORPUS, score, tuned


@pytest.mark.skipif(not CORPUS.exists(), reason="the labelled logs are not part of the repository")
def test_the_goals_hold() -> None:
    cases = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    on_tuned = score([case for case in cases if tuned(case)])
    assert on_tuned.kept, on_tuned
    unseen = score([case for case in cases if not tuned(case)])
    assert unseen.right >= 0.95 * unseen.logs and unseen.wrong <= 0.04 * unseen.logs, unseen
