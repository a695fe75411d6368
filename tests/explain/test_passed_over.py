"""What programs print of errors that they pass over changes hardly any answer, nor do shells and services around it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks.fault_sets import logs
from ddplaunch.explain.decide.work import PROGRESS
from tests.explain.logs import explained

_, *PARTS = re.split(r"(?m)^=== (.*)\n", Path(__file__).with_name("passed_over.txt").read_text())
PASSED_OVER = dict(zip(PARTS[::2], PARTS[1::2], strict=True))
#: Of logs that are shorter, some change.
FEWEST_LINES, EVERY = 15, 22
LOGS = [fault.log for fault in logs() if fault.log.count("\n") >= FEWEST_LINES]
#: Of logs that tell of nothing else before they fail, some change: most where a shell is denied a file first.
MOST_CHANGED, MOST_CHANGED_BY = 0.15, {"first: profile": 0.3}


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


@pytest.mark.parametrize("name", PASSED_OVER)
def test_answers_stay(name: str) -> None:
    some = LOGS[list(PASSED_OVER).index(name) % EVERY :: EVERY]
    failed = [log for log in some if _code(log) != "none"] if name.startswith("last: ") else some
    changed = [log for log in failed if _code(_with(log, name)) != _code(log)]
    assert len(failed) > 20 and len(changed) <= MOST_CHANGED_BY.get(name, MOST_CHANGED) * len(failed), changed
