"""`doctor --hosts … --comm` over real sshds: hosts with a bad network are named, and nothing is left anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
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
    slots = 2 if len(hosts) == 1 else 1
    names = ",".join(f"{host.name}:{slots}" for host in hosts)
    argv = made.login.command(ddplaunch("doctor", "--hosts", names, "--comm", "--json", *words), made.work)
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=clean_environment(), stdout=pipe, stderr=pipe, text=True)


def test_what_is_wrong_between_hosts_is_named_and_what_is_typed_helps(five: Lab) -> None:
    """One host is cut off, one is slow, and two send each other more than the switch between them takes."""
    _, cut_off, one, slow, other = five.hosts
    for host in (one, slow, other):  # the ranks meet at the first, which is no partner of the one that is cut off
        in_network(cut_off.pid, "ip", "route", "add", "blackhole", host.address)
        in_network(cut_off.pid, "ip", "-6", "route", "add", "blackhole", host.address6)
    in_network(slow.pid, *f"tc qdisc replace dev {INTERFACE} root tbf rate 10mbit burst 32kbit latency 400ms".split())
    for host in (one, other):
        in_network(host.pid, "ip", "link", "set", "dev", INTERFACE, "mtu", "9000")
    process = doctor(five, five.hosts, "--comm-timeout", TIMEOUT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1, out + err
    data = json.loads(out)
    told = [
        each for each in data["findings"] if each["code"] in ("comm-cut-off", "comm-slow-host")
    ]  # a busy CPU adds more
    found = {(finding["code"], *finding["where"]): finding for finding in told}
    (sizes,) = found.keys() - {("comm-cut-off", cut_off.name), ("comm-slow-host", slow.name)}
    assert sizes[0] == "comm-cut-off" and {*sizes[1:]} == {one.name, other.name}, data["comm"]
    assert len(found) == 3 and "(MTU)" in found[sizes]["why"], data
    groups = data["comm"]["groups"]
    assert [group["problem"] is None for group in groups if group["test"] == "all"] == [False]
    rates = [group["bandwidth"] or 0.0 for group in groups if slow.name in group["hosts"] and group["test"] == "pair"]
    assert 0 < max(rates) < 3e6  # 10 Mbit/s are 1.25 MB/s
    five.nothing_left(RUN)

    typed = found[sizes]["fix"].partition("`sudo ")[2].partition("`")[0]
    for host in (one, other):
        in_network(host.pid, *typed.replace("INTERFACE", INTERFACE).split())
    process = doctor(five, (one, other), "--comm-timeout", TIMEOUT)
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, out


def test_nothing_is_left_when_the_doctor_is_killed(five: Lab) -> None:
    hosts = five.hosts[:1]
    process = doctor(five, hosts, "--comm-timeout", "120")

    def measuring() -> bool:
        time.sleep(0.3)  # looking starts programs there
        return bool(five.processes(hosts[0], PROGRAM))

    until(measuring, "it measures", DEADLINE_S)
    os.kill(started_by(process), signal.SIGKILL)
    process.communicate(timeout=90)
    five.nothing_left(RUN, hosts=hosts)
