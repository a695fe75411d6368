"""What programs print of errors that they pass over changes hardly any answer, nor do shells and services around it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from benchmarks.fault_sets import logs
from ddplaunch.explain.decide.work import PROGRESS
from tests.conftest import Golden
from tests.explain.logs import explained
from tests.golden import sections

PASSED_OVER = dict(sections(Path(__file__).with_name("passed_over.txt")))
#: Of logs that are shorter, many tell of nothing else.
FEWEST_LINES, EVERY, GROUPS = 15, 132, 5
LOGS = {fault.name: fault.log for fault in logs() if fault.log.count("\n") >= FEWEST_LINES}


@cache
def _code(log: str) -> str:
    found = explained(log).diagnosis
    return "none" if found is None else found.code


def _with(log: str, name: str) -> str:
    """Return the log with lines at its start or end, else below its first step and above its first traceback."""
    passed_over = PASSED_OVER[name]
    if name.startswith("first: "):
        return passed_over + log
    if name.startswith("last: "):
        return log.rstrip("\n") + "\n" + passed_over
    lines = log.splitlines(keepends=True)
    first = next((at for at, line in enumerate(lines) if "Traceback" in line), len(lines))
    steps = (at + 1 for at, line in enumerate(lines[:first]) if PROGRESS.search(line) and line[0] != " ")
    place = next(steps, min(3, first))
    return "".join([*lines[:place], passed_over, *lines[place:]])


def _changes(number: int, name: str) -> list[str]:
    """Return which logs of a group of every 132nd get another code with the lines of ``name``."""
    changes = []
    for fault in [*LOGS][number % GROUPS :: EVERY]:
        before, now = _code(LOGS[fault]), _code(_with(LOGS[fault], name))
        if before != now and not (name.startswith("last: ") and before == "none"):  # a status there is of the run
            changes.append(f"  {fault}: {before} became {now}\n")
    return changes


@pytest.mark.slow
def test_answers_stay(golden: Golden) -> None:
    """The few that change are known by name."""
    assert len(LOGS) > 3 * EVERY
    told = [f"{name}\n{''.join(_changes(number, name))}" for number, name in enumerate(PASSED_OVER)]
    golden("passed-over", "".join(told))
