"""The run of the same command before: whether it failed alike, and what has changed since."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.explain.diagnosis import Diagnosis, Raised
from ddplaunch.records.earlier_run import run_before
from ddplaunch.records.outcome import PreviousRun, RunOutcome, read_outcome
from ddplaunch.values.codec import plain
from tests.records.fake_runs import outcome, record

RAISED = Diagnosis(
    "script-exception", "observed", "ValueError: bad at t.py:5", "it raised", ("look",), 1, "node-1",
    exception=Raised("ValueError", "bad", "t.py:5"),
)  # fmt: skip


# Failures that are alike


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (RAISED, True),
        (replace(RAISED, rank=0, host="node-2"), True),  # all ranks raise it, and another one was first
        (replace(RAISED, exception=Raised("ValueError", "worse", "t.py:5")), False),
        (replace(RAISED, exception=Raised("ValueError", "bad", "t.py:9")), False),
        (replace(RAISED, exception=Raised("KeyError", "bad", "t.py:5")), False),
        (None, False),
    ],
)
def test_a_failure_comes_twice_where_it_is_raised_at_one_line_in_the_same_words(
    other: Diagnosis | None, alike: bool
) -> None:
    assert RAISED.is_like(other) is alike


def test_sizes_and_addresses_may_vary_and_what_comes_by_chance_is_never_alike() -> None:
    full = Diagnosis("cuda-out-of-memory", "observed", "GPU 0 is full: 2.00 GiB wanted, 1.31 GiB free", "", (), 0)
    assert full.is_like(replace(full, what="GPU 0 is full: 2.00 GiB wanted, 900 MiB free"))
    assert not full.is_like(replace(full, rank=3))  # no exception says where
    killed = Diagnosis("killed", "unknown", "rank 0 was killed", "", (), 0)
    assert not killed.is_like(killed)


def run(base: Path, name: str, argument: str, begun_s: float, code: str = "1") -> Path:
    """A record of ``train.py`` with this argument and this sum of its code."""
    directory = record(base, name, begun_s=begun_s, code={"train.py": code})
    data = json.loads((directory / "run.json").read_text())
    data["plan"]["target"] = {"kind": "script", "name": "train.py", "args": [argument]}
    (directory / "run.json").write_text(json.dumps(data))
    return directory


def failed(directory: Path, diagnosis: Diagnosis) -> None:
    outcome(directory, "failed", exit_status=1, diagnosis=plain(diagnosis), cascade=[])


def test_the_run_of_the_same_command_before_is_found(tmp_path: Path) -> None:
    first = run(tmp_path, "a", "x", 1000.0)
    failed(first, RAISED)
    outcome(run(tmp_path, "b", "y", 1001.0))
    now = run(tmp_path, "c", "x", 1002.0)
    failed(now, RAISED)
    this = read_outcome(now)
    assert isinstance(this, RunOutcome)
    assert run_before(now, this) == PreviousRun("a", "alike")
    outcome(first)
    assert run_before(now, this) == PreviousRun("a", "succeeded")
    failed(first, replace(RAISED, exception=Raised("OSError", "gone", "t.py:7")))
    assert run_before(now, this) == PreviousRun("a", "otherwise")
    outcome(first, "terminated")
    assert run_before(now, this) is None
    failed(run(tmp_path, "d", "x", 1001.5, "2"), RAISED)
    assert run_before(now, this) == PreviousRun("d", "alike", ("train.py",))
