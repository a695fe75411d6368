"""Who is to blame on several hosts: the earliest own failure by one clock, a lost host, a torchrun that died."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.cli.hosts.hosts_verdict import EndedLaunch, most_telling
from ddplaunch.explain.diagnosis import Diagnosis, Evidence, Explanation
from ddplaunch.hosts.session.start_hosts import HostEnd
from ddplaunch.records import outcome as outcomes_of
from ddplaunch.records.directory import note_stop
from ddplaunch.records.hosts_record import merged_attempts, without_skew, write_for_all
from ddplaunch.records.outcome import AttemptOutcome, EndedBy, RankOutcome, RunOutcome, RunState
from ddplaunch.ui.outcome_view import attempts_text
from ddplaunch.ui.terminal import Terminal

T = 1_700_000_000.0


def rank(
    number: int, at_s: float, code: int | None = None, sig: str | None = None, by: EndedBy = "itself"
) -> RankOutcome:
    return RankOutcome(number, 0, f"h{number}", 9, code, sig, T, at_s, by)


def outcome(node: int, state: RunState, *ranks: RankOutcome) -> RunOutcome:
    attempt = AttemptOutcome(0, T, T + 9, True, None, ranks)
    return RunOutcome("x", f"h{node}", node, state, 1, T, T + 9, None, None, (), (attempt,))


def verdict(
    tmp_path: Path, ends: list[HostEnd], outcomes: dict[int, RunOutcome], interrupted: int | None = None
) -> RunOutcome:
    """Write the record as the hosts did, and decide."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "run.json").write_text(json.dumps({"run_id": "x", "created_s": T - 1}))
    for node, each in outcomes.items():
        folder = tmp_path / f"node-{node}" / "attempt-0"
        folder.mkdir(parents=True)
        (folder / f"rank-{node}.err").write_text("")
        assert outcomes_of.write_outcome(tmp_path, each) is None
    return EndedLaunch(tmp_path, "x", T, ends, outcomes, interrupted).outcome()


SILENT = "nothing was heard of it for 15 s"
TOLD = outcome(0, "terminated", rank(0, T + 1, None, "SIGTERM", "launcher"))


@pytest.mark.parametrize(
    ("ends", "outcomes", "expected"),
    [
        ([HostEnd(0, "a", 0), HostEnd(1, "b", 0)], (), ("succeeded", 0, "a", None)),
        (
            [HostEnd(0, "a", 143, told=15), HostEnd(1, "b", None, lost=SILENT, heard_s=T + 10)],
            (TOLD,),
            ("failed", 1, "b", "host-lost"),
        ),
        (  # a failure before a host was lost counts
            [HostEnd(0, "a", 3), HostEnd(1, "b", None, lost="its ssh session ended", heard_s=T + 10)],
            (outcome(0, "failed", rank(0, T + 5, 3)),),
            ("failed", 3, "a", "unknown"),
        ),
        # nothing but a status is known
        ([HostEnd(0, "a", 0), HostEnd(1, "b", 5)], (), ("failed", 5, "b", "unknown")),
        ([HostEnd(0, "a", 143, told=15), HostEnd(1, "b", 4)], (), ("failed", 4, "b", "host-refused")),
        # hosts that are lost at once are not blamed, and of others the first one is
        (
            [HostEnd(node, name, None, lost=SILENT, heard_s=T + node / 10) for node, name in enumerate("ab")],
            (),
            ("failed", 1, "a", "launcher-cut-off"),
        ),
        (
            [HostEnd(node, name, None, lost=SILENT, heard_s=T + node * 60) for node, name in enumerate("ab")],
            (),
            ("failed", 1, "a", "host-lost"),
        ),
    ],
)
def test_who_is_to_blame(
    tmp_path: Path, ends: list[HostEnd], outcomes: tuple[RunOutcome, ...], expected: tuple[str, int, str, str | None]
) -> None:
    found = verdict(tmp_path, ends, {each.node: each for each in outcomes})
    assert (found.state, found.exit_status, found.host, found.diagnosis and found.diagnosis.code) == expected
    kept = {each.node for each in outcomes}
    missing = [end.name for end in ends if end.node not in kept and end.status != 4]  # a refused host has no record
    assert [note.partition(": its record was not brought")[0] for note in found.notes] == missing


@pytest.mark.parametrize(
    ("silences", "code"),
    [
        ({1: (T + 5, T + 40)}, "host-lost"),
        ({1: (T + 5, T + 8)}, "host-lost"),  # TCP had not begun anew
        ({0: (T + 5, T + 40), 1: (T + 5, T + 40)}, "unknown"),  # this machine's network
        ({1: (T - 300, T - 200)}, "unknown"),
        ({1: (T + 21, T + 40)}, "unknown"),
    ],
)
def test_a_host_that_was_silent_when_ranks_gave_up_is_named(
    tmp_path: Path, silences: dict[int, tuple[float, float]], code: str
) -> None:
    ends = [HostEnd(0, "a", 1), HostEnd(1, "b", 143, told=15)]
    ends = [replace(end, silence=silences.get(end.node, (0.0, 0.0))) for end in ends]
    found = verdict(tmp_path, ends, {0: outcome(0, "failed", rank(0, T + 20, 1))}).diagnosis
    assert found is not None and found.code == code
    assert code == "unknown" or (found.host == "b" and "b was lost: nothing was heard of it from " in found.what)


@pytest.mark.parametrize("guilty", [0, 1])
@pytest.mark.parametrize("echo_s", [-0.5, 0.5], ids=["echo first", "echo afterwards"])
@pytest.mark.parametrize("code", ["host-out-of-memory", "gpu-fault", "time-limit", "scheduler-error"])
def test_what_a_host_knew_counts_where_the_logs_only_show_a_signal(
    tmp_path: Path, guilty: int, echo_s: float, code: str
) -> None:
    known = Diagnosis(code, "observed", "the kernel or the scheduler of that host ended it", "", (), guilty)
    lost = Diagnosis("unknown", "unknown", "ranks lost their connection to another one", "", (), 1 - guilty)
    killed = outcome(guilty, "failed", rank(guilty, T + 2, None, "SIGKILL"))
    echoes = outcome(1 - guilty, "failed", rank(1 - guilty, T + 2 + echo_s, 1))
    outcomes = {guilty: replace(killed, diagnosis=known), 1 - guilty: replace(echoes, diagnosis=lost)}
    ends = [HostEnd(node, "ab"[node], 137 if node == guilty else 1) for node in (0, 1)]
    found = verdict(tmp_path, ends, outcomes)
    assert found.diagnosis == replace(known, host="ab"[guilty])
    assert found.exit_status == 137


ELSEWHERE, IN_A_LOG = Evidence("dmesg", 0, "oom-kill"), Evidence("rank-0.err", 3, "Killed")


def explained(code: str, *evidence: Evidence) -> Explanation:
    return Explanation(Diagnosis(code, "likely", "", "", (), evidence=evidence))


@pytest.mark.parametrize(
    ("from_logs", "of_nodes", "chosen"),
    [
        (explained("script-exception"), [explained("host-out-of-memory")], "logs"),
        (Explanation(None), [explained("host-out-of-memory")], "logs"),
        (explained("killed"), [None, Explanation(None), explained("killed", IN_A_LOG)], "logs"),
        (explained("killed"), [explained("unknown", ELSEWHERE)], "logs"),
        (explained("killed"), [explained("killed", IN_A_LOG), explained("killed", IN_A_LOG, ELSEWHERE)], 1),
        (explained("killed"), [explained("killed", ELSEWHERE), explained("host-out-of-memory", IN_A_LOG)], 1),
    ],
)
def test_a_node_is_believed_where_the_logs_are_vague_and_it_knows_more(
    from_logs: Explanation, of_nodes: list[Explanation | None], chosen: int | str
) -> None:
    assert most_telling(from_logs, of_nodes) is (of_nodes[chosen] if isinstance(chosen, int) else from_logs)


@pytest.mark.parametrize(
    ("what", "told", "host"),
    [
        ("eve ended it: `ddplaunch stop`", None, "b"),
        ("eve ended it: `ddplaunch stop`", 15, None),  # the launcher told it to end
        ("the time limit ended it", None, None),
    ],
)
def test_a_stop_that_was_typed_on_a_host(tmp_path: Path, what: str, told: int | None, host: str | None) -> None:
    by_stop = Diagnosis("terminated", "observed", what, "", (), is_stop="stop" in what)
    ended = replace(outcome(1, "terminated", rank(1, T, None, "SIGTERM", "launcher")), diagnosis=by_stop)
    ends = [HostEnd(0, "a", 143, told=15), HostEnd(1, "b", 143, told=told)]
    found = verdict(tmp_path, ends, {0: TOLD, 1: ended}, None if host else signal.SIGTERM)
    assert (found.state, found.exit_status) == ("terminated", 143)
    assert found.diagnosis == (replace(by_stop, host=host) if host else None)


def test_a_stop_that_was_typed_at_the_launcher(tmp_path: Path) -> None:
    for launcher_lost in (True, False):  # a host says the first of a launcher that is gone
        note_stop(tmp_path, launcher_lost)
        found = EndedLaunch(tmp_path, "x", T, [HostEnd(0, "a", 143, told=15)], {}, signal.SIGTERM).outcome()
        assert (found.diagnosis is None) is launcher_lost
    assert found.diagnosis is not None and found.diagnosis.what.endswith("`ddplaunch stop`") and found.host == "a"


def test_how_a_host_without_a_record_ended_and_times_by_one_clock(tmp_path: Path) -> None:
    for status, how in ((5, "with status 5"), (128, "with status 128"), (129, "by SIGHUP")):
        found = verdict(tmp_path, [HostEnd(0, "a", 0), HostEnd(1, "b", status)], {})
        assert found.diagnosis is not None and f"on b ended {how}" in found.diagnosis.what
    moved = without_skew(outcome(1, "failed", rank(1, T + 5, 1)), 60.0)
    assert moved.last_ranks[0].ended_s == T - 55 and moved.ended_s == T - 51


def test_one_outcome_for_all(tmp_path: Path) -> None:
    outcomes = {0: outcome(0, "failed", rank(0, T + 5, 1)), 1: outcome(1, "failed", rank(1, T + 4, 7))}
    found = verdict(tmp_path, [HostEnd(0, "a", 1), HostEnd(1, "b", 7)], outcomes)
    assert (found.exit_status, found.host) == (7, "b") and found.diagnosis is not None, "the earliest counts"
    assert write_for_all(tmp_path, found) is None and outcomes_of.read_outcome(tmp_path) == found
    (attempt,) = found.attempts
    assert [each.rank for each in attempt.ranks] == [0, 1]
    assert attempt.failed and attempt.diagnosis == found.diagnosis
    assert json.loads((tmp_path / "node-0" / "outcome.json").read_text())["host"] == "h0"


def test_an_attempt_before_the_last_has_the_reason_of_the_host_where_it_failed() -> None:
    def restarted(node: int, *first: RankOutcome, found: Diagnosis | None) -> RunOutcome:
        attempts = (
            AttemptOutcome(0, T, T + 5, found is not None, found, first),
            AttemptOutcome(1, T, T, False, None, ()),
        )
        return replace(outcome(node, "succeeded"), attempts=attempts)

    cause = Diagnosis("script-exception", "observed", "RuntimeError: bad batch", "", (), 1)
    follows = Diagnosis("network-connection-lost", "observed", "reset", "", (), 2)
    outcomes = (
        restarted(0, rank(0, T + 4.2, None, "SIGTERM", "launcher"), found=None),
        restarted(1, rank(1, T + 4.0, 1), found=cause),
        restarted(2, rank(2, T + 4.1, 1), found=follows),
    )
    before, last = merged_attempts(outcomes, None)
    assert before.diagnosis == replace(cause, host="h1") and before.failed and last.diagnosis is None
    said = attempts_text(replace(outcomes[0], attempts=(before, last)), Terminal(80))
    assert said == "attempt 1 of 2 failed: error[script-exception] RuntimeError: bad batch, rank 1\n  on h1\n"
