"""`doctor --comm`: who is named for what groups measured, by every rule; real ranks, those that hang, and the table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddplaunch.cli.commands.launch import doctor
from ddplaunch.cli.commands.launch.doctor import comm_words, device_of, run_comm_test
from ddplaunch.cli.hosts.plan_hosts import AskedHosts
from ddplaunch.cli.parsing.typed_words import TypedLaunch
from ddplaunch.comm.checks import rate_text, run_measured, time_text
from ddplaunch.comm.results import Comm, GroupResult, Test, comm_results
from ddplaunch.comm.view import comm_text
from ddplaunch.machine.facts import TorchImport
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.planning.options import Options
from ddplaunch.ui.speech import findings_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.resolved import Resolved, Source
from tests.agent.guarded import until
from tests.checks.healthy import healthy_facts
from tests.conftest import Golden
from tests.hosts.launching import clean_environment, ddplaunch, run_to_end

pytestmark = pytest.mark.slow  # torch says which pairs are measured
FLAG = Source("flag", "--device")
#: Bandwidth and latency; None: nothing could be measured.
Measured = tuple[float, float] | None
FINE: Measured = (1.2e9, 90.0)
SLOW: Measured = (1.2e6, 90.0)
LATE: Measured = (1.2e9, 20e3)
NAMES = "abcdefghijklmnop"
REFUSED = error("host-unreachable", "b cannot be reached", why="its sshd is gone", fix="`ssh b true`", where="b")


def outcome_of(hosts: int, became: Callable[[set[str]], Measured], backend: str = "gloo") -> Comm:
    """Return what comes of a test in which ``became`` says what a group of hosts measures."""
    from ddplaunch.examples.comm_test import rounds_of

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


def mixed(hosts: int) -> Comm:
    """Return what comes of a cut-off host and a slow one."""

    def became(group: set[str]) -> Measured:
        return FINE if len(group) == 1 else None if "c" in group else SLOW if "e" in group else FINE

    comm = outcome_of(hosts, became)
    renamed = {name: f"gpu-{name}" for name in NAMES}
    groups = tuple(replace(group, hosts=tuple(renamed[host] for host in group.hosts)) for group in comm.groups)
    return replace(comm, hosts=tuple(renamed[host] for host in comm.hosts), groups=groups)


@pytest.mark.parametrize("width", [80, 40])
def test_table(golden: Golden, width: int) -> None:
    lines = comm_text(mixed(6), Terminal(width))
    assert max(map(len, lines)) <= width
    assert "nobody to talk to" in comm_text(Comm("gloo", ("a",), ended=True), Terminal(80))[1]
    assert "nothing was measured" in comm_text(Comm(failure=REFUSED), Terminal(80))[1]
    golden(f"comm-6-{width}", "\n".join(lines) + "\n")


def test_findings_and_their_units(golden: Golden) -> None:
    rates = [rate_text(rate) for rate in (1.175e9, 1.25e6, 2e4, 3.0)]
    assert rates == ["9.4 Gbit/s", "10 Mbit/s", "160 kbit/s", "24 bit/s"]
    assert [time_text(time) for time in (85.4, 1234.0, 2.2e6)] == ["85 us", "1.2 ms", "2.2 s"]
    two = outcome_of(2, lambda group: None)
    all_findings = [*findings(mixed(6)), *findings(Comm(failure=REFUSED)), *findings(two)]
    golden("comm-findings-80", findings_text(all_findings, Terminal(80)))


def test_where_only_small_messages_get_through_the_size_of_packets_is_suspected() -> None:
    pair = GroupResult("pair", ("a", "b"), 2, None, 90.0, "all-reduces did not end within 12 s")
    for group, said in ((pair, "(MTU)"), (replace(pair, latency_us=None), "with only two hosts")):
        (finding,) = findings(Comm("gloo", ("a", "b"), (group,), ended=True))
        assert finding.code == "comm-cut-off" and said in finding.why
        assert ("mtu 1500" in finding.fix) == (group is pair) != ("on all ports" in finding.fix)


BEGIN = {"test": "begin", "backend": "gloo", "timeout_s": 20.0, "hosts": {"a": 2, "b": 2}}
GROUP = {"test": "pair", "hosts": ["a", "b"], "ranks": 2, "problem": None, "latency_us": 90.0}
GROUP |= {"bandwidth_bytes_per_s": 1.2e9}


def test_what_else_is_printed_is_left_out_and_a_pair_counts_by_the_better() -> None:
    lines = ["a:1:2 [0] NCCL INFO Bootstrap", json.dumps(BEGIN), "[" * 50_000, "{}", "3", json.dumps(GROUP)]
    comm = comm_results([*lines, json.dumps({"test": "end"})])
    assert comm.ended and comm.hosts == ("a", "b") and [group.bandwidth for group in comm.groups] == [1.2e9]
    slow = GROUP | {"bandwidth_bytes_per_s": 1e6, "latency_us": 50.0}
    for twice in ((slow, GROUP), (GROUP, slow)):
        (group,) = comm_results(map(json.dumps, (BEGIN, *twice))).groups
        assert (group.bandwidth, group.latency_us) == (1.2e9, 50.0)
    (group,) = comm_results(map(json.dumps, (BEGIN, GROUP, GROUP | {"problem": "it hangs"}))).groups
    assert group.problem == "it hangs"


def test_slow_and_late_pairs_are_measured_again() -> None:
    from ddplaunch.examples.comm_test import doubtful

    pairs = [GROUP | {"hosts": ("a", str(other))} for other in range(5)]
    assert doubtful([GROUP | {"test": "all", "bandwidth_bytes_per_s": 1.0}, *pairs]) == []
    pairs[1] = pairs[1] | {"bandwidth_bytes_per_s": 0.4e9}
    pairs[3] = pairs[3] | {"latency_us": 900.0}
    assert doubtful([*pairs, GROUP | {"problem": "it hangs", "bandwidth_bytes_per_s": None}]) == [
        ("a", "1"),
        ("a", "3"),
    ]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("test", ["other"]),
        ("hosts", [[], ["stranger"]]),
        ("ranks", ["many"]),
        ("latency_us", [None, [90.0]]),
        ("bandwidth_bytes_per_s", [float("nan"), float("inf"), -1, 10**400, "9", True]),
    ],
)
def test_what_no_rank_measures_is_left_out(name: str, values: list[object]) -> None:
    for value in values:
        assert comm_results([json.dumps(BEGIN), json.dumps({**GROUP, name: value})]).groups == (), value


def test_which_device_is_tested() -> None:
    torch = TorchImport("2.13.0", True, True, None, 8, ("sm_90",))
    gpus, none = healthy_facts(torch_import=torch), healthy_facts(torch_import=replace(torch, device_count=0))
    assert device_of(Options(), [gpus, gpus]) == "cuda" and device_of(Options(), [gpus, none]) == "cpu"
    assert device_of(Options(device=Resolved("cpu", FLAG)), [gpus]) == "cpu"


def test_a_host_without_gpus_gets_no_more_ranks_than_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_gpus = healthy_facts(torch_import=TorchImport("2.13.0", False, False, None, 0, ()))
    answered = SimpleNamespace(reports=[SimpleNamespace(facts=without_gpus)], missing=())

    def tested(words: Sequence[str]) -> Comm:
        raise LookupError(words[1])

    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for name, stand_in in (
        ("LaunchedHosts", lambda *_: SimpleNamespace(facts=lambda torch: answered)),
        ("run_across", lambda *_: ()),
        ("check", lambda *_: ()),
        ("run_comm_test", tested),
    ):
        monkeypatch.setattr(doctor, name, stand_in)
    test = partial(doctor._collectives, TypedLaunch({}), Options(), None)
    for host, ranks in (("a:1", "1"), ("a", "2"), ("a:8", "2")):
        with pytest.raises(LookupError, match=f"^{ranks}$"):
            doctor._doctor_hosts(Options(), AskedHosts([host]), None, False, test)


def test_doctor_tests_the_ranks_of_this_machine(tmp_path: Path) -> None:
    command = ddplaunch("doctor", "2", "--device", "cpu", "--comm", "--comm-timeout", "200")
    status, said = run_to_end(command, tmp_path, clean_environment(COLUMNS="80"), 280)
    line = r"\ncollectives, by gloo\n  2 ranks: \S+ [GM]bit/s, all-reduce of 4 bytes in "
    assert re.search(line, said), said
    assert re.search(r"\nhealthy: \d+ checks passed, ", said) and status == 0, said


def test_ranks_are_told_apart_by_their_nodes_also_where_these_have_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddplaunch.examples.comm_test import ranks_by_host

    class Kept(dict[str, str]):
        set = dict.__setitem__  # as a Store

    monkeypatch.setenv("GROUP_RANK", "0")
    monkeypatch.setattr("socket.gethostname", lambda: "a")
    for names, expected in (("ab", {"a": [0, 1], "b": [2, 3]}), ("aa", {"a#0": [0, 1], "a#1": [2, 3]})):
        store = Kept({f"rank/{rank}": json.dumps([str(rank // 2), names[rank // 2], rank != 3]) for rank in range(4)})
        assert ranks_by_host(store, 0, 4, True) == (expected, False), "one has no GPU"  # type: ignore[arg-type]


def run_of(tmp_path: Path, program: str, timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> Comm:
    """Run ``program`` in the place of the script, and return what comes of it when none of its processes is left."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(program)
    words = comm_words(TypedLaunch({"device": Resolved("cpu", FLAG)}), "2", (), timeout_s)
    run_id = words[words.index("--run-id") + 1]
    at = words.index("--") + 1
    comm = run_comm_test([*words[:at], "program.py", *words[at + 2 :]])

    def alive() -> list[int]:
        table = process_table().values()
        return [each.pid for each in table if each.alive and each.mark("DDPLAUNCH_RUN_ID") == run_id]

    until(lambda: not alive(), f"nothing of {run_id} is left", 120)
    return comm


HANGS = """
import os, time
from ddplaunch.examples import comm_test
if os.environ["RANK"] == "1":
    comm_test.measure = lambda *_: time.sleep(600)
comm_test.main()
"""


def test_a_rank_that_hangs_ends_at_the_time_out_and_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = run_of(tmp_path, HANGS, 8.0, monkeypatch)
    (group,) = comm.groups
    assert comm.ended and group.problem is not None and comm.failure is not None
    (finding,) = findings(comm)
    assert finding.code == "comm-ranks-fail" and finding.fix.startswith("`ddplaunch explain comm-")


def test_a_test_that_says_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddplaunch.cli.commands.launch.doctor._START_S", 15.0)
    comm = run_of(tmp_path, "import time\ntime.sleep(600)\n", 0.1, monkeypatch)
    assert not comm.ended
    (finding,) = findings(comm)
    assert finding.code == "comm-untested" and "was ended after 16 s, as `--timeout` says" in finding.what
    assert "program.py:2" in finding.why


def test_a_launch_that_is_refused_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = comm_words(TypedLaunch({"master_port": Resolved("70000", FLAG)}), "2", (), 2.0)
    (finding,) = findings(run_comm_test(words))
    assert finding.code == "comm-untested" and "70000" in finding.what
