"""Who is named for what groups of ranks measured: every rule with a case that fires and one that does not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from ddplaunch.checks.all_checks import refuse_unknown
from ddplaunch.comm.checks import CHECKS as MEASURED
from ddplaunch.comm.checks import rate_text, run_measured, time_text
from ddplaunch.comm.results import Comm, GroupResult, Test
from ddplaunch.values.finding import Finding, error

#: Bandwidth and latency; None: nothing could be measured.
Measured = tuple[float, float] | None
FINE: Measured = (1.2e9, 90.0)
SLOW: Measured = (1.2e6, 90.0)
LATE: Measured = (1.2e9, 20e3)
NAMES = "abcdefghijklmnop"
REFUSED = error("host-unreachable", "b cannot be reached", why="its sshd is gone", fix="`ssh b true`", where="b")


def outcome_of(hosts: int, became: Callable[[set[str]], Measured], backend: str = "gloo") -> Comm:
    """Return what comes of a test in which ``became`` says what a group of hosts measures."""
    from ddplaunch.examples.comm_test import rounds_of  # torch: not while every worker collects

    ranks_of = {name: [2 * place, 2 * place + 1] for place, name in enumerate(NAMES[:hosts])}
    groups = []
    for group in (group for groups in rounds_of(ranks_of, backend) for group in groups):
        measured = became({*group.hosts})
        rate, latency = measured or (None, None)
        test: Test = "all" if group.test == "all" else "host" if group.test == "host" else "pair"
        problem = None if measured else "the ranks did not form a group within 20 s"
        groups.append(GroupResult(test, group.hosts, len(group.ranks), rate, latency, problem))
    return Comm(backend, tuple(ranks_of), tuple(groups), ended=True)


def findings(comm: Comm) -> list[Finding]:
    outcomes = run_measured(comm)
    assert [(each.check.code, each.reason) for each in outcomes if each.status in ("crashed", "skipped")] == []
    return [finding for outcome in outcomes for finding in outcome.findings]


def named(comm: Comm) -> set[tuple[str, tuple[str, ...]]]:
    return {(finding.code, finding.where) for finding in findings(comm)}


def one_bad(bad: str, what: Measured) -> Callable[[set[str]], Measured]:
    return lambda hosts: what if bad in hosts and len(hosts) > 1 else FINE


@pytest.mark.parametrize("hosts", range(1, 17))
def test_healthy_hosts_yield_nothing_and_meet_changed_partners(hosts: int) -> None:
    comm = outcome_of(hosts, lambda _: FINE)
    assert findings(comm) == []
    pairs = [frozenset(group.hosts) for group in comm.pairs]
    assert len(set(pairs)) == len(pairs)
    assert all(sum(name in pair for pair in pairs) >= min(2, hosts - 1) for name in comm.hosts)


@pytest.mark.parametrize("hosts", [3, 4, 5, 6, 9])
@pytest.mark.parametrize(("what", "code"), [(None, "comm-cut-off"), (SLOW, "comm-slow-host"), (LATE, "comm-late-host")])
def test_the_one_bad_host_is_named_wherever_it_stands(hosts: int, what: Measured, code: str) -> None:
    for bad in NAMES[:hosts]:
        assert named(outcome_of(hosts, one_bad(bad, what))) == {(code, (bad,))}


@pytest.mark.parametrize("hosts", [7, 8])
def test_two_faults_are_told_apart_wherever_they_stand(hosts: int) -> None:
    for dead, slow in permutations(NAMES[:hosts], 2):

        def became(group: set[str], dead: str = dead, slow: str = slow) -> Measured:
            return FINE if len(group) == 1 else None if dead in group else SLOW if slow in group else FINE

        assert named(outcome_of(hosts, became)) == {("comm-cut-off", (dead,)), ("comm-slow-host", (slow,))}


def test_two_hosts_cannot_be_told_apart() -> None:
    (finding,) = findings(outcome_of(2, lambda hosts: None if len(hosts) == 2 else FINE))
    assert (finding.code, finding.where) == ("comm-cut-off", ("a", "b")) and "two hosts" in finding.why
    (finding,) = findings(outcome_of(2, lambda hosts: SLOW if len(hosts) == 2 else FINE))
    assert (finding.code, finding.where) == ("comm-slow-network", ("a", "b"))


def test_a_network_that_is_slow_everywhere_is_said_once() -> None:
    (finding,) = findings(outcome_of(5, lambda hosts: SLOW if len(hosts) > 1 else FINE))
    assert (finding.code, finding.what) == ("comm-slow-network", "no two hosts exchange more than 9.6 Mbit/s")
    assert "333 s" in finding.why


def test_a_link_between_two_hosts_that_are_fine_with_others_is_the_pairs() -> None:
    (finding,) = findings(outcome_of(4, lambda hosts: None if hosts >= {"a", "b"} else FINE))
    assert finding.where == ("a", "b") and "works with another host" in finding.why


def test_ranks_of_one_host() -> None:
    (finding,) = findings(outcome_of(3, lambda hosts: None if hosts == {"b"} else FINE))
    assert (finding.code, finding.where) == ("comm-ranks-fail", ("b",))
    slow = {"nccl": {("comm-slow-inside", ("b",))}, "gloo": set()}  # ranks on CPUs measure what else runs there
    for backend, expected in slow.items():
        assert named(outcome_of(3, lambda hosts: SLOW if hosts == {"b"} else FINE, backend)) == expected


def test_all_ranks_together_that_fail_alone_are_named() -> None:
    (finding,) = findings(outcome_of(4, lambda hosts: None if len(hosts) == 4 else FINE))
    assert (finding.code, finding.where) == ("comm-ranks-fail", ("a", "b", "c", "d"))


def test_a_run_that_does_not_end_well_says_why_in_the_words_of_its_own() -> None:
    (finding,) = findings(Comm(failure=REFUSED))
    assert finding.code == "comm-untested" and finding.what.endswith("end: b cannot be reached")
    assert (finding.why, finding.fix, finding.where) == (REFUSED.why, REFUSED.fix, REFUSED.where)


def test_every_rule_has_a_description() -> None:
    refuse_unknown([check.code for check in MEASURED], MEASURED)
    assert all("Remedy:" in check.explanation for check in MEASURED)


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
