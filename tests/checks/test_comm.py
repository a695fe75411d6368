"""Pairs of hosts, and who is named for what they measured: every rule with a case that fires and one that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplaunch.checks.all_checks import refuse_unknown
from ddplaunch.comm.checks import CHECKS as MEASURED
from ddplaunch.comm.checks import rate_text, run_measured, time_text
from ddplaunch.comm.groups import ROUNDS, Comm, HostGroup, Measured, next_round, verdicts
from ddplaunch.values.finding import Finding

FINE = Measured(1.2e9, 32 << 20, 90.0, 400.0)
SLOW = replace(FINE, bandwidth=1.2e6)
LOSSY = replace(FINE, bandwidth=4e5, latency_us=110e3)
LATE = replace(FINE, latency_us=20e3)
NAMES = "abcdefghijklmnopqrstuvwxyz0123456789"


def group_of(hosts: tuple[str, ...], number: int, measured: Measured | None) -> HostGroup:
    """Return a step with the TCP segments that its measurement takes."""
    problem = "the ranks did not form a group" if len(hosts) == 1 else "no TCP connection"
    segments, resent = (150, 20) if measured == LOSSY else (800, 0) if measured else (0, 0)
    return HostGroup(hosts, number, 8, measured, problem, segments=segments, resent=resent)


def outcome_of(hosts: int, became: Callable[[set[str]], Measured | None], backend: str = "gloo") -> Comm:
    """Return what comes of a test in which ``became`` says what a pair of hosts measures, None: nothing."""
    names = tuple(NAMES[:hosts])
    groups = [group_of((name,), 0, became({name})) for name in names]
    while pairs := next_round(names, groups):
        number = groups[-1].round + 1
        groups += [group_of(pair, number, became(set(pair))) for pair in pairs]
    return Comm(backend, names, tuple(groups), deadline_s=20.0)


def findings(comm: Comm) -> list[Finding]:
    outcomes = run_measured(comm)
    assert [(each.check.code, each.reason) for each in outcomes if each.status in ("crashed", "skipped")] == []
    return [finding for outcome in outcomes for finding in outcome.findings]


def named(comm: Comm) -> set[tuple[str, tuple[str, ...]]]:
    return {(finding.code, finding.where) for finding in findings(comm)}


def one_bad(bad: str, what: Measured | None) -> Callable[[set[str]], Measured | None]:
    return lambda hosts: what if bad in hosts and len(hosts) == 2 else FINE


@pytest.mark.parametrize("hosts", [*range(2, 10), 31, 32])
def test_everybody_gets_changed_partners(hosts: int) -> None:
    comm = outcome_of(hosts, lambda _: FINE)
    pairs = [frozenset(group.hosts) for group in comm.between]
    assert len(set(pairs)) == len(pairs)
    assert {len([pair for pair in pairs if name in pair]) for name in comm.hosts} == ({2} if hosts > 2 else {1})
    assert findings(comm) == []


@settings(max_examples=60)
@given(st.integers(2, 14), st.data())
def test_no_pair_is_tried_twice_and_no_host_is_in_two_pairs_at_once(hosts: int, data: st.DataObject) -> None:
    names = tuple(NAMES[:hosts])
    groups: list[HostGroup] = []
    for number in range(1, ROUNDS + 2):
        pairs = next_round(names, groups)
        if not pairs:
            break
        assert number <= ROUNDS
        flat = [host for pair in pairs for host in pair]
        assert len(set(flat)) == len(flat)
        assert number > 2 or hosts < 4 or len(flat) == hosts - hosts % 2  # nobody idles who could be tested
        for pair in pairs:
            became = data.draw(st.sampled_from([FINE, FINE, FINE, SLOW, LOSSY, None]))
            groups.append(group_of(pair, number, became))
    assert len({frozenset(group.hosts) for group in groups}) == len(groups)
    findings(Comm("gloo", names, tuple(groups)))


@pytest.mark.parametrize("hosts", [3, 4, 5, 6, 9])
@pytest.mark.parametrize(
    ("what", "code"),
    [(None, "comm-cut-off"), (LOSSY, "comm-packet-loss"), (SLOW, "comm-slow-host"), (LATE, "comm-late-host")],
)
def test_the_one_bad_host_is_named_wherever_it_stands(hosts: int, what: Measured | None, code: str) -> None:
    for bad in NAMES[:hosts]:
        assert named(outcome_of(hosts, one_bad(bad, what))) == {(code, (bad,))}


@pytest.mark.parametrize("hosts", [6, 7])
def test_three_faults_are_told_apart_wherever_they_stand(hosts: int) -> None:
    for dead, lossy, slow in permutations(NAMES[:hosts], 3):

        def became(group: set[str], dead: str = dead, lossy: str = lossy, slow: str = slow) -> Measured | None:
            if len(group) == 1:
                return FINE
            return None if dead in group else LOSSY if lossy in group else SLOW if slow in group else FINE

        found = named(outcome_of(hosts, became))
        assert found == {("comm-cut-off", (dead,)), ("comm-packet-loss", (lossy,)), ("comm-slow-host", (slow,))}


def test_two_hosts_cannot_be_told_apart() -> None:
    (finding,) = findings(outcome_of(2, lambda hosts: None if len(hosts) == 2 else FINE))
    assert finding.where == ("a", "b") and "two hosts" in finding.why
    (finding,) = findings(outcome_of(2, lambda hosts: LOSSY if len(hosts) == 2 else FINE))
    assert (finding.code, finding.where) == ("comm-packet-loss", ("a", "b"))
    (finding,) = findings(outcome_of(2, lambda hosts: SLOW if len(hosts) == 2 else FINE))
    assert (finding.code, finding.where) == ("comm-slow-network", ("a", "b")) and "two hosts" in finding.why


def test_a_network_that_is_slow_everywhere_is_said_once() -> None:
    (finding,) = findings(outcome_of(5, lambda hosts: SLOW if len(hosts) == 2 else FINE))
    assert (finding.code, finding.what) == ("comm-slow-network", "no two hosts exchange more than 9.6 Mbit/s")
    assert "333 s" in finding.why and "two hosts" not in finding.why


def test_a_link_between_two_hosts_that_are_fine_with_others_is_the_pairs() -> None:
    (finding,) = findings(outcome_of(4, lambda hosts: None if hosts == {"a", "b"} else FINE))
    assert finding.where == ("a", "b") and "between these two" in finding.why


def test_only_partners_that_did_well_are_called_as_witnesses() -> None:
    def became(hosts: set[str]) -> Measured | None:
        return FINE if len(hosts) == 1 else None if "b" in hosts else SLOW if "a" in hosts else FINE

    slow = next(each for each in findings(outcome_of(4, became)) if each.code == "comm-slow-host")
    assert slow.where == ("a",) and "c and d do well with another host" in slow.why


def test_a_pair_that_only_lost_packets_is_not_cut_off() -> None:
    comm = outcome_of(4, one_bad("d", None))
    groups = tuple(group if group.measured else replace(group, segments=2000, resent=400) for group in comm.groups)
    assert named(replace(comm, groups=groups)) == {("comm-packet-loss", ("d",))}


def test_a_host_that_was_slow_once_is_not_blamed() -> None:
    assert findings(outcome_of(4, lambda hosts: replace(FINE, bandwidth=3e8) if hosts == {"a", "b"} else FINE)) == []


def test_ranks_of_one_host() -> None:
    (finding,) = findings(outcome_of(3, lambda hosts: None if hosts == {"b"} else FINE))
    assert (finding.code, finding.where) == ("comm-ranks-fail", ("b",))
    slow = outcome_of(3, lambda hosts: SLOW if hosts == {"b"} else FINE, backend="nccl")
    assert named(slow) == {("comm-slow-inside", ("b",))}
    assert findings(replace(slow, backend="gloo")) == []  # ranks on CPUs measure what else runs there


def test_a_host_that_was_lost_is_named_once() -> None:
    comm = outcome_of(4, one_bad("c", None))
    assert named(replace(comm, untested=(("c", "nothing was heard of it for 15 s"),))) == {("comm-untested", ("c",))}


def test_every_rule_has_a_description() -> None:
    refuse_unknown([check.code for check in MEASURED], MEASURED)
    assert all("Remedy:" in check.explanation for check in MEASURED)


def test_verdicts_are_those_of_the_picture() -> None:
    comm = outcome_of(
        6, lambda hosts: None if hosts >= {"a", "b"} else LOSSY if "d" in hosts and len(hosts) > 1 else FINE
    )
    found = dict(zip((group.hosts for group in comm.groups), verdicts(comm), strict=True))
    assert found["a", "b"] == "failed" and found["c", "d"] == "lossy" and found["e", "f"] == "fine"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rate_text(1.175e9), "9.4 Gbit/s"),
        (rate_text(1.25e6), "10 Mbit/s"),
        (rate_text(2e4), "160 kbit/s"),
        (rate_text(3.0), "24 bit/s"),
        (time_text(85.4), "85 us"),
        (time_text(1234.0), "1.2 ms"),
        (time_text(2.2e6), "2.2 s"),
    ],
)
def test_numbers_are_said_in_units(text: str, expected: str) -> None:
    assert text == expected
