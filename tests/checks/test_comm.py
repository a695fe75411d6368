"""Who is named for what groups of ranks measured: every rule with a case that fires and one that does not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

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


@pytest.mark.parametrize(
    ("hosts", "became", "code", "where", "says"),
    [
        (2, lambda group: None if len(group) == 2 else FINE, "comm-cut-off", "ab", "two hosts"),
        (2, lambda group: SLOW if len(group) == 2 else FINE, "comm-slow-network", "ab", ""),
        (5, lambda group: SLOW if len(group) > 1 else FINE, "comm-slow-network", "abcde", "333 s"),
        (4, lambda group: None if group >= {"a", "b"} else FINE, "comm-cut-off", "ab", "works with another host"),
        (3, lambda group: None if group == {"b"} else FINE, "comm-ranks-fail", "b", ""),
        (4, lambda group: None if len(group) == 4 else FINE, "comm-ranks-fail", "abcd", ""),
    ],
)
def test_one_finding_names_what_is_wrong(
    hosts: int, became: Callable[[set[str]], Measured], code: str, where: str, says: str
) -> None:
    (finding,) = findings(outcome_of(hosts, became))
    assert (finding.code, finding.where) == (code, tuple(where)) and says in finding.why
    if hosts == 5:
        assert finding.what == "no two hosts exchange more than 9.6 Mbit/s"


def test_ranks_on_cpus_measure_what_else_runs_there() -> None:
    for backend, expected in {"nccl": {("comm-slow-inside", ("b",))}, "gloo": set()}.items():
        assert named(outcome_of(3, lambda hosts: SLOW if hosts == {"b"} else FINE, backend)) == expected


def test_a_run_that_does_not_end_well_says_why_in_the_words_of_its_own() -> None:
    (finding,) = findings(Comm(failure=REFUSED))
    assert finding.code == "comm-untested" and finding.what.endswith("end: b cannot be reached")
    assert (finding.why, finding.fix, finding.where) == (REFUSED.why, REFUSED.fix, REFUSED.where)


def test_numbers_are_said_in_units() -> None:
    rates = [rate_text(rate) for rate in (1.175e9, 1.25e6, 2e4, 3.0)]
    assert rates == ["9.4 Gbit/s", "10 Mbit/s", "160 kbit/s", "24 bit/s"]
    assert [time_text(time) for time in (85.4, 1234.0, 2.2e6)] == ["85 us", "1.2 ms", "2.2 s"]
