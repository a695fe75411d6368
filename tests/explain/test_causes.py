"""Root before cascade: code, rank and certainty of each log in ``causes.txt``, and why; ``none - -`` for a good end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.explain.logs import explained

_, *PARTS = re.split(
    r"(?m)^=== (\S+ \S+ \S+): (.*)\n", Path(__file__).with_name("causes.txt").read_text(encoding="utf-8")
)


@pytest.mark.parametrize(("answer", "why", "log"), [*zip(PARTS[::3], PARTS[1::3], PARTS[2::3], strict=True)])
def test_cause_and_rank(answer: str, why: str, log: str) -> None:
    found = explained(log).diagnosis
    known = (
        ("none", "-", "-")
        if found is None
        else (found.code, "-" if found.rank is None else found.rank, found.certainty)
    )
    assert " ".join(map(str, known)) == answer, why
