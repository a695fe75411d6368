"""The answer to a log stays the same however a service, a viewer or a paste shows it."""

from __future__ import annotations

import pytest

from benchmarks.later_faults import FILES
from tests.explain.logs import every_code, explained
from tests.explain.shown import SHOWN

SETS = ("sixth", "seventh", "seventh_held_out", "eighth", "eighth_held_out")
LOGS = [each.log for name in SETS for each in FILES[name] if each.log]
LOGS += every_code()
#: Few lines do not tell what stands in front of them.
FEWEST_LINES = 6


def _answer(log: str) -> tuple[str, int | None] | None:
    found = explained(log).diagnosis
    return None if found is None else (found.code, found.rank)


@pytest.mark.parametrize("place", SHOWN)
def test_the_answer_stays(place: str) -> None:
    long = [log for log in LOGS if log.count("\n") >= FEWEST_LINES]
    for log in long[list(SHOWN).index(place) % 7 :: 7]:
        assert _answer(SHOWN[place](log)) == _answer(log), SHOWN[place](log)


def test_there_is_enough_to_look_at() -> None:
    assert sum(log.count("\n") >= FEWEST_LINES for log in LOGS) > 150
