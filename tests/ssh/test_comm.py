"""`doctor --hosts … --comm` over real sshds: hosts with a bad network are named, and nothing is left anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.agent.guarded import until
from tests.hosts.launching import clean_environment, ddplaunch
from tests.hosts.namespaces import INTERFACE, Node, in_network
from tests.ssh.lab import Lab, lab
from tests.ssh.launched import started_by

pytestmark = [pytest.mark.root, pytest.mark.slow]

DEADLINE_S = 400
TIMEOUT = "8"  # of each group that does not get through
RUN = "comm-"  # what its run ids begin with
PROGRAM = "ddplaunch.examples.comm_test"


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(5, tmp_path_factory.mktemp("five")) as made:
        yield made


def doctor(made: Lab, hosts: tuple[Node, ...], *words: str) -> subprocess.Popen[str]:
    """Start `doctor --comm --json` on the login host."""
    names = ",".join(host.name for host in hosts)
    size = "2" if len(hosts) == 1 else "1"
    argv = made.login.command(ddplaunch("doctor", size, "--hosts", names, "--comm", "--json", *words), made.work)
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=clean_environment(), stdout=pipe, stderr=pipe, text=True)


def test_the_cut_off_and_the_slow_host_are_each_named(five: Lab) -> None:
    first, cut_off, _, slow, _ = five.hosts
    for other in set(five.hosts) - {cut_off, first}:  # the ranks meet at the first, and these two are no pair of five
        in_network(cut_off.pid, "ip", "route", "add", "blackhole", other.address)
        in_network(cut_off.pid, "ip", "-6", "route", "add", "blackhole", other.address6)
    in_network(slow.pid, *f"tc qdisc replace dev {INTERFACE} root tbf rate 10mbit burst 32kbit latency 400ms".split())
    process = doctor(five, five.hosts, "--comm-timeout", TIMEOUT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1, out + err
    data = json.loads(out)
    found: dict[str, list[list[str]]] = {}
    for finding in data["findings"]:
        found.setdefault(finding["code"], []).append(finding["where"])
    assert found["comm-cut-off"] == [[cut_off.name]], data["comm"]
    assert found["comm-slow-host"] == [[slow.name]], data["comm"]
    assert "comm-untested" not in found
    groups = data["comm"]["groups"]
    assert [group["problem"] is None for group in groups if group["test"] == "all"] == [False]
    rates = [group["bandwidth"] or 0.0 for group in groups if slow.name in group["hosts"] and group["test"] == "pair"]
    assert 0 < max(rates) < 3e6  # 10 Mbit/s are 1.25 MB/s
    five.nothing_left(RUN)


def test_nothing_is_left_when_the_doctor_is_killed(five: Lab) -> None:
    hosts = five.hosts[:1]
    process = doctor(five, hosts, "--comm-timeout", "120")
    until(lambda: all(five.processes(host, PROGRAM) for host in hosts), "all test", DEADLINE_S)
    os.kill(started_by(process), signal.SIGKILL)
    process.communicate(timeout=90)
    five.nothing_left(RUN, hosts=hosts)


def test_large_packets_that_are_dropped_on_the_way_are_suspected_and_what_is_typed_helps(five: Lab) -> None:
    """The hosts send more than the switch between them takes."""
    hosts = (five.hosts[2], five.hosts[4])
    for host in hosts:
        in_network(host.pid, "ip", "link", "set", "dev", INTERFACE, "mtu", "9000")
    out, _ = doctor(five, hosts, "--comm-timeout", TIMEOUT).communicate(timeout=DEADLINE_S)
    (finding,) = (each for each in json.loads(out)["findings"] if each["code"] == "comm-cut-off")
    assert "(MTU)" in finding["why"], finding
    typed = finding["fix"].partition("`sudo ")[2].partition("`")[0]
    for host in hosts:
        in_network(host.pid, *typed.replace("INTERFACE", INTERFACE).split())
    process = doctor(five, hosts, "--comm-timeout", TIMEOUT)
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, out
