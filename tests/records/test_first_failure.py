"""Who failed first and which exit status follows: every rule, from the guard's ranks to a run on many nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.hosts.slurm.job_reasons import diagnosis
from ddplaunch.hosts.slurm.programs import JobState
from ddplaunch.records.find import RunRecord
from ddplaunch.records.first_failure import (
    NodeFailure,
    SeenEnd,
    exit_status,
    failed_by_itself,
    first_failed,
    first_failed_node,
    first_node_to_fail,
    first_to_fail,
    node_failure,
    own_status,
    run_state,
    status_of_all,
    who_ended,
)
from ddplaunch.records.outcome import AttemptOutcome, RankOutcome, RunOutcome
from ddplaunch.values.finding import ExitStatus

TERM, KILL, SEGV = 15, 9, 11


def seen(
    rank: int, code: int | None = None, signal: int | None = None, at_s: float | None = 5.0, **more: Any
) -> SeenEnd:
    return SeenEnd(rank, code, signal, at_s, **more)


@pytest.mark.parametrize(
    ("in_order", "others", "first"),
    [
        ([], [], None),
        ([seen(1, 3), seen(0, 7)], [], 1),  # the order of the ends, not that of the ranks
        ([seen(0, 0)], [seen(2, 7, at_s=9.0), seen(1, 3, at_s=8.0), seen(3, at_s=None)], 1),
        ([seen(0, None, TERM, seen_alive=False), seen(1, 1, seen_alive=False)], [], 1),  # torchrun sent that SIGTERM
        ([seen(0, None, TERM), seen(1, 1)], [], 0),  # somebody else did: the guard saw it alive, and end first
        ([seen(0, None, TERM, told_to_end=True), seen(1, 1, told_to_end=True)], [], 1),
        ([seen(0, 0, told_to_end=True), seen(1, 143, told_to_end=True)], [], None),
        ([seen(0, None, SEGV, told_to_end=True)], [], 0),  # nobody asks for that
        ([seen(0), seen(1, None, TERM)], [], 0),  # rank 1 was ended for what became of rank 0
        ([seen(0), seen(1, 1)], [], 1),
    ],
)
def test_the_guard(in_order: list[SeenEnd], others: list[SeenEnd], first: int | None) -> None:
    found = first_to_fail(in_order, others)
    assert (None if found is None else found.rank) == first


@pytest.mark.parametrize(
    ("one", "by"),
    [
        (seen(0, 1), "itself"),  # the first
        (seen(1, at_s=None), None),
        (seen(1, None, TERM, 6.0), "launcher"),
        (seen(1, None, TERM, 4.0), "itself"),
        (seen(1, 143, None, 6.0), "launcher"),  # as a shell says it
        (seen(1, 0, None, 6.0), "itself"),
        (seen(1, 0, None, 6.0, told_to_end=True), "launcher"),  # it saved what it had to
    ],
)
def test_who_ended_a_rank(one: SeenEnd, by: str | None) -> None:
    assert who_ended(one, seen(0, 1)) == by
    # without a first failure only orders end ranks
    assert who_ended(seen(1, None, TERM), None) == "itself"
    assert who_ended(seen(1, None, TERM, told_to_end=True), None) == "launcher"
    assert who_ended(seen(1, None, TERM), seen(0, 1)) == "launcher", "at the same time"
    assert who_ended(seen(1, None, TERM), seen(0, 1, at_s=None)) == "itself", "nobody knows when the first one ended"


ENDS = (
    RankOutcome(0, 0, "a", exit_code=1, ended_s=3.0, ended_by="itself"),
    RankOutcome(1, 1, "a", signal="SIGKILL", ended_s=2.0, ended_by="itself"),
    RankOutcome(2, 2, "a", exit_code=9, ended_by="itself"),
    RankOutcome(3, 3, "a", signal="SIGTERM", ended_s=1.0, ended_by="launcher"),
    RankOutcome(4, 4, "a", exit_code=0, ended_s=1.0, ended_by="itself"),
)


@pytest.mark.parametrize(
    ("accused", "seen_first", "first"), [(0, 2, 0), (None, 2, 2), (None, None, 1), (3, None, 1), (4, 3, 1), (7, 0, 0)]
)
def test_the_accused_the_seen_the_earliest(accused: int | None, seen_first: int | None, first: int) -> None:
    found = first_failed(ENDS, accused, seen_first)
    assert found is not None and found.rank == first
    assert first_failed(ENDS[3:], accused, seen_first) is None


def test_a_rank_s_own() -> None:
    assert [failed_by_itself(each) for each in ENDS] == [True, True, True, False, False]
    assert [own_status(each) for each in ENDS[:3]] == [1, 137, 9]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"state": "failed", "stopped": True, "launcher_died": True}, ExitStatus.TIMED_OUT),
        ({"state": "error", "launcher_died": True, "first": ENDS[0]}, 137),
        ({"state": "succeeded", "first": ENDS[0]}, 0),
        ({"state": "signal", "signal": 15, "first": ENDS[0]}, 143),
        ({"state": "signal", "first": ENDS[0]}, 1),
        ({"state": "failed", "signal": 15, "first": ENDS[1]}, 137),
        ({"state": "failed", "failures": [(9, 4), (5, -15), (6, -11), (6, 3)]}, 139),
        ({"state": "error"}, 1),
    ],
)
def test_exit_status(said: dict[str, Any], status: int) -> None:
    assert exit_status(**said) == status


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ({"state": "signal", "stopped": "time-limit"}, "terminated"),
        ({"state": "signal", "stopped": "collective-timeout"}, "failed"),
        ({"state": "error", "launcher_died": True}, "killed"),
        ({"state": "signal"}, "terminated"),
        ({"state": "succeeded"}, "succeeded"),
        ({"state": "error"}, "failed"),
    ],
)
def test_state(said: dict[str, Any], state: str) -> None:
    assert run_state(**said) == state


def rank(
    number: int, at_s: float | None, code: int | None = None, signal: str | None = None, by: Any = "itself"
) -> RankOutcome:
    return RankOutcome(number, 0, f"h{number}", exit_code=code, signal=signal, ended_s=at_s, ended_by=by)


def outcome(node: int, state: Any, *ranks: RankOutcome, before: tuple[RankOutcome, ...] = (), status: int = 1) -> Any:
    attempts = [AttemptOutcome(number, 0.0, 9.0, True, None, each) for number, each in enumerate((before, ranks))]
    return RunOutcome("r", f"h{node}", node, state, status, 0.0, 9.0, None, None, (), tuple(attempts))


@pytest.mark.parametrize(
    ("of", "status", "told", "failure"),
    [
        (outcome(1, "failed", rank(1, 5.0, 1), rank(2, 4.0, 3)), 1, None, NodeFailure(4.0, 1, "ranks")),
        (outcome(1, "failed", rank(1, 5.0, 1), before=(rank(1, 2.0, 3),)), 1, 15, NodeFailure(5.0, 1, "ranks")),
        (outcome(1, "failed", rank(1, 5.0, None, "SIGTERM", "launcher")), 1, None, NodeFailure(9.0, 1, "other")),
        (outcome(1, "failed", rank(1, 5.0, None, "SIGTERM", "launcher")), 1, 15, None),
        (outcome(1, "failed", rank(1, None, 1)), 1, None, NodeFailure(9.0, 1, "other")),  # nobody saw when
        (outcome(1, "killed", rank(1, 5.0, None, "SIGTERM", "launcher")), 137, None, NodeFailure(4.0, 1, "torchrun")),
        (outcome(1, "killed", rank(1, 5.0, 0)), 137, 15, NodeFailure(8.0, 1, "torchrun")),  # its ranks were through
        (outcome(1, "killed"), 137, KILL, None),  # the launcher insisted
        (outcome(1, "terminated"), 143, None, None),
        (None, 5, None, NodeFailure(7.0, 1, "other")),
        (None, 5, 15, None),
        (None, 0, None, None),
    ],
)
def test_a_node_s_own_failure(of: Any, status: int, told: int | None, failure: NodeFailure | None) -> None:
    assert node_failure(1, of, status, told=told, heard_s=7.0) == failure
    assert node_failure(1, of, None, lost=True, heard_s=7.0) == NodeFailure(7.0, 1, "lost")


def test_the_first_of_many_nodes() -> None:
    lost, torchrun = NodeFailure(3.0, 2, "lost"), NodeFailure(3.0, 1, "torchrun")
    ranks = NodeFailure(4.0, 0, "ranks")
    assert first_node_to_fail((ranks, lost, torchrun)) == torchrun, "at one time, the lower node"
    assert first_node_to_fail((lost, torchrun), interrupted=True) is None
    assert first_node_to_fail((lost, ranks), interrupted=True) == lost
    assert first_node_to_fail(()) is None


def test_the_status_of_all_nodes() -> None:
    outcomes = {0: outcome(0, "failed", rank(0, 5.0, 7)), 1: outcome(1, "failed", rank(1, 4.0, None, "SIGKILL"))}
    first = NodeFailure(4.0, 1, "ranks")
    assert status_of_all(first, 0, outcomes, 137) == 7, "the logs accuse a rank of the other node"
    assert status_of_all(first, 1, outcomes, 1) == 137
    assert status_of_all(first, None, outcomes, 3) == status_of_all(first, 9, outcomes, 3) == 3
    assert status_of_all(NodeFailure(4.0, 1, "torchrun"), 0, outcomes, 137) == 137
    assert status_of_all(NodeFailure(4.0, 1, "lost"), None, outcomes, None) == 1


def test_under_slurm() -> None:
    later = outcome(0, "failed", rank(0, 5.0, 7), before=(rank(0, 1.0, 7),), status=7)
    first = outcome(1, "failed", rank(1, 4.0, 42), status=42)
    ended = outcome(2, "killed", rank(2, 2.0, None, "SIGTERM", "launcher"), status=137)
    assert first_failed_node({0: later, 1: first, 2: ended}) == first
    assert first_failed_node({0: outcome(0, "terminated"), 2: ended}) is None and first_failed_node({}) is None


def test_what_slurm_told_node_0_counts_before_what_other_nodes_met_because_of_it() -> None:
    lost = outcome(1, "failed", rank(1, 4.0, 1))
    told = diagnosis("12", JobState("RUNNING", "NodeDown"))
    ended = replace(outcome(0, "terminated", status=143), diagnosis=told)
    record = RunRecord("r", Path("r"), 0.0, {}, {0: ended, 1: lost})
    assert record.outcome is ended and told is not None and told.code == "scheduler-error"
    for state in ("failed", "killed"):
        own = outcome(0, state, rank(0, 9.0, 1))
        assert replace(record, outcomes={0: own, 1: lost}).outcome is own, "though it failed later"
    by_hand = replace(record, outcomes={0: outcome(0, "terminated", status=143), 1: lost})
    assert by_hand.outcome is lost
