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
RUN = "comm-"  # what its run ids begin with
PROGRAM = "ddplaunch.examples.comm_test"


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(6, tmp_path_factory.mktemp("six")) as made:
        yield made


def limit(host: Node, rate: str) -> None:
    """Let ``host`` send no more than ``rate``, as tc spells it."""
    words = f"tc qdisc replace dev {INTERFACE} root tbf rate {rate} burst 32kbit latency 400ms"
    in_network(host.pid, *words.split())


def doctor(made: Lab, hosts: tuple[Node, ...], *words: str) -> subprocess.Popen[str]:
    """Start `doctor --comm --json` on the login host."""
    names = ",".join(host.name for host in hosts)
    argv = made.login.command(ddplaunch("doctor", "1", "--hosts", names, "--comm", "--json", *words), made.work)
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=clean_environment(), stdout=pipe, stderr=pipe, text=True)


def test_the_cut_off_and_the_slow_host_are_each_named(six: Lab) -> None:
    first, _, cut_off, _, slow, _ = six.hosts
    for other in set(six.hosts) - {cut_off, first}:  # at the first the ranks meet, without which nothing would start
        in_network(cut_off.pid, "ip", "route", "add", "blackhole", other.address)
        in_network(cut_off.pid, "ip", "-6", "route", "add", "blackhole", other.address6)
    limit(slow, "10mbit")
    process = doctor(six, six.hosts, "--comm-timeout", "12")
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
    six.nothing_left(RUN)


def test_nothing_is_left_when_the_doctor_is_killed(six: Lab) -> None:
    hosts = six.hosts[:2]
    limit(hosts[1], "1mbit")  # so that it takes long enough to be interrupted
    process = doctor(six, hosts, "--comm-timeout", "120")
    until(lambda: all(six.processes(host, PROGRAM) for host in hosts), "all test", DEADLINE_S)
    os.kill(started_by(process), signal.SIGKILL)
    process.communicate(timeout=90)
    six.nothing_left(RUN, hosts=hosts)


def test_large_packets_that_are_dropped_on_the_way_are_suspected_and_what_is_typed_helps(six: Lab) -> None:
    """The hosts send more than the switch between them takes."""
    hosts = (six.hosts[3], six.hosts[5])
    for host in hosts:
        in_network(host.pid, "ip", "link", "set", "dev", INTERFACE, "mtu", "9000")
    out, _ = doctor(six, hosts, "--comm-timeout", "12").communicate(timeout=DEADLINE_S)
    (finding,) = (each for each in json.loads(out)["findings"] if each["code"] == "comm-cut-off")
    assert "(MTU)" in finding["why"], finding
    typed = finding["fix"].partition("`sudo ")[2].partition("`")[0]
    for host in hosts:
        in_network(host.pid, *typed.replace("INTERFACE", INTERFACE).split())
    process = doctor(six, hosts, "--comm-timeout", "12")
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, out
