"""Outcomes: written and read back, of other versions, of other nodes, and short for sending."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.explain.diagnosis import Diagnosis, Explanation, Raised, RankEnd
from ddplaunch.records.earlier_run import run_before
from ddplaunch.records.outcome import (
    AttemptOutcome,
    PreviousRun,
    RankOutcome,
    RunOutcome,
    outcome_json,
    outcome_of,
    rank_end,
    read_findings,
    read_outcome,
    short_outcome,
    write_findings,
    write_outcome,
)
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import warning
from ddplaunch.values.resolved import Unavailable
from tests.records.fake_runs import outcome, record

RANKS = tuple(RankOutcome(n, n, "h", 40 + n, None, "SIGKILL", 1.0, 2.0, "itself", ("last",)) for n in range(66))
WHY = Diagnosis("oom-kill", "likely", "rank 3 was killed", "memory", ("less",), 3, "h")
ATTEMPTS = (AttemptOutcome(0, 0.0, 1.0, True, None, RANKS[:1]), AttemptOutcome(1, 1.0, 2.0, True, WHY, RANKS))
TOLD = warning("numbers-differ", "each rank loads 4", why="the plan says 8", fix="look")
OUTCOME = RunOutcome("r", "h", 1, "failed", 137, 0.0, 2.0, 3, WHY, (), ATTEMPTS, ("note",), (TOLD,), True,
                     PreviousRun("before", "alike", ("train.py",)), "token")  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_outcome(tmp_path, 1) is None and OUTCOME.last_ranks == RANKS
    assert write_outcome(tmp_path, OUTCOME) is None
    assert (tmp_path / "node-1" / "outcome.json").exists() and read_outcome(tmp_path, 1) == OUTCOME
    assert write_outcome(tmp_path, replace(OUTCOME, node=0)) is None and (tmp_path / "outcome.json").exists()
    assert OUTCOME.explanation == Explanation(WHY, (), warnings=(TOLD,))
    assert replace(OUTCOME, attempts=()).last_ranks == ()
    assert rank_end(RANKS[3]) == RankEnd(3, "h", None, "SIGKILL", 2.0, "itself", None)
    assert rank_end(replace(RANKS[3], host="")).host is None
    assert write_outcome(tmp_path, OUTCOME, tmp_path) == "Is a directory"
    assert write_outcome(tmp_path, OUTCOME, tmp_path / "\0") == "embedded null byte"


def test_an_outcome_is_of_a_launch_unless_both_have_tokens_that_differ() -> None:
    of_both = (("token", "token"), ("", "x"), ("token", ""))
    assert all(replace(OUTCOME, launch=mine).is_of(launch) for mine, launch in of_both)
    assert not replace(OUTCOME, launch="token").is_of("other")


@pytest.mark.parametrize(
    ("left_out", "changes", "read"),
    [
        (("host", "node", "started_s", "cascade", "attempts", "run_id"), {}, True),
        (("state",), {}, False),
        (("exit_status",), {}, False),
        (("ended_s",), {}, False),
        ((), {"exit_status": "137"}, False),
    ],
)
def test_the_least_that_an_outcome_says(
    tmp_path: Path, left_out: tuple[str, ...], changes: dict[str, object], read: bool
) -> None:
    data = {name: value for name, value in outcome_json(OUTCOME).items() if name not in left_out}
    (tmp_path / "outcome.json").write_text(json.dumps({**data, **changes}))
    found = read_outcome(tmp_path)
    if read:
        assert isinstance(found, RunOutcome)
        assert (found.run_id, found.host, found.node, found.started_s) == (tmp_path.name, "", 0, found.ended_s)
    else:
        assert isinstance(found, Unavailable) and found.reason.startswith("outcome.json")
    assert (outcome_of({**data, **changes}) is not None) is read


def test_words_that_this_version_does_not_know_leave_the_rest(tmp_path: Path) -> None:
    """How ranks ended still counts; why they did is explained anew."""
    data = outcome_json(OUTCOME)
    del data["diagnosis"]
    old = outcome_of(data)
    assert old is not None and old.explanation is None and old.attempts == ATTEMPTS
    newer = outcome_of({**outcome_json(OUTCOME), "diagnosis": {"code": 5}, "attempts": data["attempts"]})
    assert newer is not None and newer.explanation is None and (newer.findings, newer.previous) == ((), None)
    assert [(attempt.diagnosis, attempt.ranks) for attempt in newer.attempts] == [(None, RANKS[:1]), (None, RANKS)]
    (tmp_path / "outcome.json").mkdir()
    assert read_outcome(tmp_path) == Unavailable("outcome.json: Is a directory")


def test_other_nodes_are_sent_the_last_attempt_of_64_ranks() -> None:
    sent = outcome_of(short_outcome(OUTCOME))
    assert sent is not None and (sent.notes, sent.findings, sent.previous) == ((), (), None)
    ((number, ranks),) = [(attempt.attempt, attempt.ranks) for attempt in sent.attempts]
    assert number == 1 and ranks == tuple(replace(rank, last_lines=()) for rank in RANKS[:64])


def test_findings_of_a_run_that_goes_on(tmp_path: Path) -> None:
    assert read_findings(tmp_path) == ()
    write_findings(f"{tmp_path}/node-0", (TOLD,))
    assert read_findings(tmp_path) == (TOLD,)
    for text in ('{"schema": 1, "findings": 5}', '{"schema": 1}'):
        (tmp_path / "node-0" / "observed.json").write_text(text)
        assert read_findings(tmp_path) == ()


# The run of the same command before: whether it failed alike, and what has changed since

RAISED = Diagnosis(
    "script-exception", "observed", "ValueError: bad at t.py:5", "it raised", ("look",), 1, "node-1",
    exception=Raised("ValueError", "bad", "t.py:5"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (RAISED, True),
        (replace(RAISED, rank=0, host="node-2"), True),  # all ranks raise it, and another one was first
        (replace(RAISED, exception=Raised("ValueError", "worse", "t.py:5")), False),
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
    failed(run(tmp_path, "later", "x", 1003.0), RAISED)
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
