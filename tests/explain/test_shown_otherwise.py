"""The answer to a log stays the same however a service, a viewer or a paste shows it."""

from __future__ import annotations

import pytest

from benchmarks.fault_sets import logs
from tests.explain.logs import every_code, explained
from tests.explain.shown import SHOWN

LOGS = [fault.log for fault in logs("sixth", "seventh", "eighth")]
LOGS += every_code()
#: Few lines do not tell what stands in front of them.
FEWEST_LINES = 6
EVERY = 40
#: Numbers before the lines, and marks of a quotation, hide where some tracebacks begin.
MOST_CHANGED = {"cat -n": 3, "a quoted mail": 3}


def _answer(log: str) -> tuple[str, int | None] | None:
    found = explained(log).diagnosis
    return None if found is None else (found.code, found.rank)


@pytest.mark.parametrize("place", SHOWN)
def test_the_answer_stays(place: str) -> None:
    long = [log for log in LOGS if log.count("\n") >= FEWEST_LINES]
    some = long[list(SHOWN).index(place) :: EVERY]
    changed = [SHOWN[place](log) for log in some if _answer(SHOWN[place](log)) != _answer(log)]
    assert len(changed) <= MOST_CHANGED.get(place, 0), changed


def test_there_is_enough_to_look_at() -> None:
    assert sum(log.count("\n") >= FEWEST_LINES for log in LOGS) > 150
