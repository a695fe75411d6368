"""`doctor --comm` on this machine: real ranks, what becomes of those that hang or are left alone, and the picture."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.cli.commands.doctor import counts, device_of, refuse_deadline
from ddplaunch.comm.checks import run_measured
from ddplaunch.comm.drive import _MODULE, CommTest, Member, Reports
from ddplaunch.comm.groups import Comm, HostGroup, Measured
from ddplaunch.comm.rank import resent, unanswered
from ddplaunch.comm.view import comm_json, comm_text
from ddplaunch.hosts.session.links import Links
from ddplaunch.machine.facts import TorchImport
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.planning.options import Options
from ddplaunch.ui.speech import findings_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source
from tests.agent.guarded import until
from tests.checks.healthy import healthy_facts
from tests.checks.test_comm import FINE, LOSSY, NAMES, SLOW, findings, outcome_of
from tests.conftest import Golden
from tests.hosts.launching import SERVICE, clean_environment, ddplaunch, links, stand_in

__all__ = ["links"]  # a fixture

FLAG = Source("flag", "NPROC")


def mixed(hosts: int) -> Comm:
    """Return what comes of a cut-off host, one that loses packets and a slow one."""

    def became(group: set[str]) -> Measured | None:
        if len(group) == 1:
            return FINE
        return None if "b" in group else LOSSY if "c" in group else SLOW if "e" in group else FINE

    comm = outcome_of(hosts, became)
    renamed = {name: f"gpu-{name}" for name in NAMES}
    groups = tuple(replace(group, hosts=tuple(renamed[host] for host in group.hosts)) for group in comm.groups)
    return replace(comm, hosts=tuple(renamed[host] for host in comm.hosts), groups=groups)


@pytest.mark.parametrize(("hosts", "width"), [(6, 80), (12, 80), (6, 40)])
def test_picture(golden: Golden, hosts: int, width: int) -> None:
    lines = comm_text(mixed(hosts), Terminal(width))
    assert max(map(len, lines)) <= width
    golden(f"comm-{hosts}-{width}", "\n".join(lines) + "\n")


def test_findings(golden: Golden) -> None:
    comm = mixed(6)
    lost = replace(comm, untested=(("gpu-f", "nothing was heard of it for 15 s"),))
    two = outcome_of(2, lambda group: None)
    found = [*findings(comm), *findings(lost)[:1], *findings(two)]
    golden("comm-findings-80", findings_text(found, Terminal(80)))


def test_picture_of_many_hosts_stays_within_the_line() -> None:
    for hosts in (30, 36):
        assert max(map(len, comm_text(mixed(hosts), Terminal(80)))) <= 80
    assert "x" in "".join(comm_text(mixed(36), Terminal(80))[1:-3])


def test_picture_of_more_hosts_than_fit_lists_what_is_bad() -> None:
    comm = mixed(36)
    many = replace(comm, hosts=tuple(f"a-very-long-name-of-a-host-in-a-rack-{host}" for host in comm.hosts))
    groups = tuple(
        replace(group, hosts=tuple(f"a-very-long-name-of-a-host-in-a-rack-{host}" for host in group.hosts))
        for group in comm.groups
    )
    lines = comm_text(replace(many, groups=groups), Terminal(80))
    assert sum("fails" in line for line in lines) == 2 and any("do well" in line for line in lines)


def test_picture_of_one_host() -> None:
    alone = Comm("gloo", ("gpu-a",), (HostGroup(("gpu-a",), 0, 2, FINE),))
    assert comm_text(alone, Terminal(80))[1] == "  2 ranks: 9.6 Gbit/s, an all-reduce of 4 bytes takes 90 us"
    assert "one rank" in "".join(comm_text(replace(alone, groups=()), Terminal(80)))


def test_json_has_every_step_with_its_numbers() -> None:
    data = json.loads(json.dumps(comm_json(mixed(6))))
    steps = {tuple(step["hosts"]): step for step in data["steps"]}
    assert steps["gpu-a", "gpu-b"]["verdict"] == "failed" and "bandwidth_bytes_per_s" not in steps["gpu-a", "gpu-b"]
    assert steps["gpu-c", "gpu-d"]["tcp_resent"] == 20 and steps["gpu-c", "gpu-d"]["verdict"] == "lossy"
    assert steps["gpu-a",]["round"] == 0 and steps["gpu-a",]["bandwidth_bytes_per_s"] == 1.2e9


def rank_said(rank: int, **more: object) -> dict[str, object]:
    return {"step": 1, "rank": rank, **more}


def test_reports_of_a_step() -> None:
    reports = Reports(1, ("gpu-a", "gpu-b"), 2)
    for rank in (0, 1):
        reports.add(rank_said(rank, latency_us=[90.0 + rank, 400.0], segments=100, resent=rank))
        reports.add(rank_said(rank, bandwidth=10, size=4))
        reports.add(rank_said(rank, bandwidth=1000, size=16))
    reports.add(rank_said(0, late=True, all_segments=900, all_resent=9))  # it was measured before that
    assert not reports.done
    reports.end("gpu-a")
    reports.end("gpu-b")
    group = reports.group(20.0)
    assert reports.done and group.measured == Measured(1000.0, 16, 91.0, 400.0)
    assert (group.segments, group.resent) == (200, 1)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ([], "the ranks did not form a group within 20 s"),
        ([rank_said(0, joined=True)], "an all-reduce of 4 bytes did not end within 20 s"),
        (
            [rank_said(0, latency_us=[2e5, 3e5]), rank_said(1, latency_us=[1e5, 2e5], all_segments=90, all_resent=20)],
            "all-reduces of 4 bytes took 200 ms, larger ones did not end within 20 s; TCP sent 20 of 90 segments again",
        ),
        (
            [rank_said(0, problem="Dist: timed out"), rank_said(1, problem="ConnectionError: no TCP connection to x")],
            "no TCP connection to x",
        ),
    ],
)  # fmt: skip
def test_what_did_not_come_about(said: list[dict[str, object]], problem: str) -> None:
    reports = Reports(1, ("gpu-a", "gpu-b"), 2)
    for line in said:
        reports.add(line)
    group = reports.group(20.0)
    assert (group.measured, group.problem) == (None, problem)


HOSTILE = [
    {"rank": "0"},
    {"rank": 2},
    {"rank": -1},
    {"rank": True},
    {"bandwidth": float("nan")},
    {"bandwidth": float("inf")},
    {"bandwidth": -1},
    {"bandwidth": 10**400},
    {"bandwidth": None},
    {"bandwidth": "9"},
    {"bandwidth": True},
    {"size": [4]},
    {"latency_us": 90.0},
    {"latency_us": [90.0]},
    {"latency_us": [90.0, float("nan")]},
    {"latency_us": {"0": 1, "1": 2}},
    {"segments": -5},
    {"resent": 1e300},
    {"all_segments": "many"},
]


@pytest.mark.parametrize("numbers", HOSTILE)
def test_what_no_rank_measures_is_refused(numbers: dict[str, object]) -> None:
    reports = Reports(1, ("gpu-a", "gpu-b"), 2)
    with pytest.raises((ValueError, TypeError)):
        reports.add({**rank_said(0, latency_us=[90.0, 400.0]), **numbers})
    reports.add(rank_said(1, bandwidth=10, size=4))
    assert reports.group(20.0).measured is None


@pytest.mark.parametrize("left_out", ["bandwidth", "size", "latency_us", "segments", "resent"])
def test_a_measurement_that_is_left_out_is_a_problem(left_out: str) -> None:
    said = {"bandwidth": 10, "size": 4, "latency_us": [90.0, 400.0], "segments": 9, "resent": 0}
    reports = Reports(1, ("gpu-a",), 1)
    reports.add(rank_said(0, **{name: value for name, value in said.items() if name != left_out}))
    reports.end("gpu-a")
    group = reports.group(20.0)
    assert (group.measured is None) == (left_out not in ("segments", "resent"))
    assert bool(group.problem) == (group.measured is None)


def test_the_least_and_the_most_that_can_be_said_are_shown() -> None:
    said = [
        rank_said(0, bandwidth=0, size=0, latency_us=[0, 0], segments=30, resent=90),
        rank_said(0, bandwidth=1e15, size=1e15, latency_us=[1e15, 1e15], segments=1e15, resent=1e15),
    ]
    for line in said:
        groups = []
        for pair in (("a", "b"), ("c", "d"), ("a", "c")):
            reports = Reports(1, pair, 1)
            reports.add(line)
            groups.append(reports.group(20.0))
        comm = Comm("gloo", ("a", "b", "c", "d"), tuple(groups))
        assert all(outcome.status in ("found", "passed") for outcome in run_measured(comm))
        assert comm_text(comm, Terminal(80))
        assert json.loads(json.dumps(comm_json(comm), allow_nan=False))


def test_who_waits_in_vain() -> None:
    reports = Reports(1, ("gpu-a", "gpu-b"), 2)
    reports.end("gpu-a")
    assert not reports.waiting_in_vain  # it was quicker
    reports.add(rank_said(0, problem="ValueError: x"))
    assert reports.waiting_in_vain == ("gpu-b",)
    lost = Reports(1, ("gpu-a", "gpu-b"), 2)
    lost.lose("gpu-b", "its ssh session ended")
    assert lost.waiting_in_vain == ("gpu-a",)
    assert lost.group(20.0).problem == "gpu-b was lost: its ssh session ended"


def test_which_ranks_take_part() -> None:
    torch = TorchImport(1.0, "2.13.0", True, True, "2.27", True, None, 8, ("sm_90",))
    gpus, none = healthy_facts(torch_import=torch), healthy_facts(torch_import=replace(torch, device_count=0))
    four = Options(nproc=Resolved(4, FLAG))
    assert device_of(Options(), [gpus, gpus]) == "cuda" and device_of(Options(), [gpus, none]) == "cpu"
    assert device_of(Options(device=Resolved("cpu", FLAG)), [gpus]) == "cpu"
    assert counts(Options(), "cuda", gpus) == (8, 8) and counts(four, "cuda", gpus) == (4, 4)
    assert counts(Options(), "cpu", none) == (2, 1) and counts(four, "cpu", none) == (4, 1)


def test_deadline() -> None:
    for comm, deadline_s in ((False, None), (True, None), (True, 60.0)):
        refuse_deadline(comm, deadline_s)
    for comm, deadline_s in ((False, 30.0), (True, 1.0)):
        with pytest.raises(UsageError):
            refuse_deadline(comm, deadline_s)


def test_segments_are_counted_of_sockets_only() -> None:
    sent, again = resent()
    assert sent >= again >= 0


def ours(run_id: str) -> list[int]:
    return [each.pid for each in process_table().values() if each.alive and each.mark("DDPLAUNCH_RUN_ID") == run_id]


def gone(run_id: str) -> None:
    until(lambda: not ours(run_id), f"nothing of {run_id} is left", 120)


def members(links: Links, count: int, python: str = sys.executable) -> list[Member]:
    return [Member(links.open(f"host{number}", SERVICE), python, 2, 1) for number in range(count)]


@pytest.mark.slow
def test_three_sessions_measure_each_other_and_leave_nothing(links: Links) -> None:
    run_id = f"comm-three-{os.getpid()}"
    comm = CommTest(links, members(links, 3), "cpu", run_id, 200.0).run()
    assert comm.untested == ()
    assert [(group.round, len(group.hosts)) for group in comm.groups] == [(0, 1)] * 3 + [(1, 2), (2, 2), (3, 2)]
    for group in comm.groups:
        assert group.measured is not None, group.problem
        assert group.measured.bandwidth > 1e5 and group.measured.latency_us > 1 and group.segments > 20
    gone(run_id)


@pytest.mark.slow
def test_a_host_without_torch_or_python_takes_no_part_and_the_others_do(links: Links, tmp_path: Path) -> None:
    broken = stand_in(tmp_path, "echo ImportError: libcudart.so.12 is missing >&2\nexit 3")
    three = [*members(links, 1), *members(links, 1, broken), *members(links, 1, "/nowhere/python")]
    for number, member in enumerate(three):
        member.link.name, member.alone = f"host{number}", 1
    comm = CommTest(links, three, "cpu", f"comm-broken-{os.getpid()}", 200.0).run()
    reasons = dict(comm.untested)
    assert reasons["host1"].endswith("status 3: ImportError: libcudart.so.12 is missing")
    assert "/nowhere/python" in reasons["host2"]
    assert comm.groups == ()  # one host alone, with one rank, has nobody to talk to


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1, "rank": 0, "bandwidth": NaN, "size": 4, "latency_us": [1, 2]}',
        '{"step": 1, "rank": 0, "bandwidth": 1e999, "size": 4, "latency_us": [1, 2]}',
        '{"step": 1, "rank": 0, "bandwidth": -4, "size": 4, "latency_us": [1, 2]}',
        '{"step": 1, "rank": 7777777, "problem": "x"}',
        '{"step": 1, "rank": 0, "latency_us": []}',
        "[" * 50_000,
        '{"hello": {"door": 1}, "store": Infinity}',
    ],
)
def test_a_host_that_says_what_no_rank_measures_is_named(links: Links, tmp_path: Path, line: str) -> None:
    says = tmp_path / "line"
    says.write_text(line + "\n")
    hello = """echo '{"hello": {"addresses": [], "door": 1, "nonce": "x"}, "store": 1}'"""
    odd = stand_in(tmp_path, f"{hello}\nread -r order\ncat {says}\nsleep 600")
    two = [Member(links.open(f"host{number}", SERVICE), odd, 2, 1) for number in range(2)]
    comm = CommTest(links, two, "cpu", f"comm-odd-{os.getpid()}", 200.0).run()
    assert dict(comm.untested) == dict.fromkeys(("host0", "host1"), "it said what is no line of the test")
    assert [finding.code for finding in findings(comm)] == ["comm-untested", "comm-untested"]
    assert all(group.measured is None for group in comm.groups)


@pytest.mark.slow
def test_ranks_end_at_their_deadline_and_with_their_parent() -> None:
    run_id = f"comm-alone-{os.getpid()}"
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", _MODULE, str(reading)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(DDPLAUNCH_RUN_ID=run_id),
        pass_fds=(reading,),
    )
    assert process.stdin is not None and process.stdout is not None
    hello = json.loads(process.stdout.readline())
    order = {"step": 1, "first": 0, "local": 2, "world": 3, "device": "cpu", "deadline_s": 2.0, "measure_s": 1.0,
             "alone": False, "leader": None}  # fmt: skip

    def begin(**more: object) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps({**order, **more}).encode() + b"\n")
        process.stdin.flush()

    begin()  # the third rank never comes
    said = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert [line.get("late") for line in said] == [True, True, None]
    assert said[-1]["ended"] and said[-1]["store"] != hello["store"]
    begin(step=2, deadline_s=600.0)
    until(lambda: len(ours(run_id)) == 3, "two ranks run", 120)
    begin(stop=2)
    assert json.loads(process.stdout.readline())["ended"]
    begin(step=3, deadline_s=600.0)
    until(lambda: len(ours(run_id)) == 3, "two ranks run", 120)
    process.send_signal(signal.SIGKILL)
    process.wait()
    gone(run_id)
    os.close(reading)
    os.close(writing)


@pytest.mark.slow
def test_doctor_tests_the_ranks_of_this_machine() -> None:
    done = subprocess.run(
        ddplaunch("doctor", "3", "--device", "cpu", "--comm", "--comm-timeout", "200"),
        capture_output=True,
        text=True,
        env=clean_environment(COLUMNS="80"),
        timeout=280,
        check=False,
    )
    assert re.search(
        r"\ncollectives, by gloo\n  3 ranks: \S+ [GM]bit/s, an all-reduce of 4 bytes takes", done.stdout
    ), done.stdout + done.stderr
    assert re.search(r"\n  comm +8 passed\n", done.stdout)


@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::ffff:127.0.0.1")],
)
def test_the_port_that_gives_no_answer_is_named(family: socket.AddressFamily, address: str) -> None:
    """Whoever asks a listener that has its hands full gets no answer, as from behind a firewall."""
    with ExitStack() as held:
        door = held.enter_context(socket.socket(family))
        door.bind((address, 0))
        door.listen(0)
        port = door.getsockname()[1]
        assert unanswered() is None
        for _ in range(8):
            asking = held.enter_context(socket.socket(family))
            asking.setblocking(False)
            asking.connect_ex((address, port))
        said, address = unanswered(), address.removeprefix("::ffff:")
        assert said == f"{address} got no answer from {address} port {port}"
        reports = Reports(1, ("gpu-a", "gpu-b"), 2)
        reports.add(rank_said(0, late=True))
        reports.add(rank_said(1, late=True, unanswered=said))
        assert reports.group(12).problem == f"the ranks did not form a group within 12 s; {said}"
