"""`doctor --hosts … --comm` over real sshds: hosts with a bad network are named, and nothing is left anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.guarded import until
from tests.hosts.launching import clean_environment, ddplaunch
from tests.hosts.namespaces import Node
from tests.ssh.lab import Lab, lab
from tests.ssh.launched import started_by
from tests.ssh.weather import limit, unroute

pytestmark = [pytest.mark.root, pytest.mark.slow]

DEADLINE_S = 400
RUN = "comm-"  # what its run ids begin with
PROGRAM = "ddplaunch.examples.comm_test"


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(6, tmp_path_factory.mktemp("six")) as made:
        yield made


class Doctor:
    """One `doctor --comm --json` on the login host."""

    def __init__(self, made: Lab, hosts: tuple[Node, ...], *words: str) -> None:
        self.lab, self.hosts = made, hosts
        names = ",".join(host.name for host in hosts)
        argv = made.login.command(ddplaunch("doctor", "1", "--hosts", names, "--comm", "--json", *words), made.work)
        self.process = subprocess.Popen(
            argv, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def answer(self) -> dict[str, Any]:
        out, err = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 1, out + err
        data: dict[str, Any] = json.loads(out)
        return data

    def testing(self) -> None:
        """Wait until every host runs its ranks."""
        until(lambda: all(self.lab.processes(host, PROGRAM) for host in self.hosts), "all test", DEADLINE_S)

    def kill(self) -> None:
        """kill -9 of the doctor."""
        os.kill(started_by(self.process), signal.SIGKILL)
        self.process.communicate(timeout=90)


def by_code(data: dict[str, Any]) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    for finding in data["findings"]:
        found.setdefault(finding["code"], []).append(finding["where"])
    return found


def test_the_cut_off_and_the_slow_host_are_each_named(six: Lab) -> None:
    first, _, cut_off, _, slow, _ = six.hosts
    unroute(six, cut_off, besides=first)  # where the ranks meet, without which nothing would start
    limit(slow, "10mbit")
    data = Doctor(six, six.hosts, "--comm-timeout", "12").answer()
    found = by_code(data)
    assert found["comm-cut-off"] == [[cut_off.name]], data["comm"]
    assert found["comm-slow-host"] == [[slow.name]], data["comm"]
    assert "comm-untested" not in found
    groups = data["comm"]["groups"]
    assert [group["problem"] is None for group in groups if group["test"] == "all"] == [False]
    rates = [group["bandwidth"] or 0.0 for group in groups if slow.name in group["hosts"] and group["test"] == "pair"]
    assert 0 < max(rates) < 3e6  # 10 Mbit/s are 1.25 MB/s
    six.nothing_left(RUN)


def test_nothing_is_left_when_the_doctor_is_killed_or_a_cable_is_pulled(six: Lab) -> None:
    abandoned, parted = six.hosts[:2], (six.hosts[3], six.hosts[5])
    for host in (abandoned[1], parted[1]):
        limit(host, "1mbit")  # so that it takes long enough to be interrupted
    killed, doctor = (Doctor(six, hosts, "--comm-timeout", "120") for hosts in (abandoned, parted))
    killed.testing()
    doctor.testing()
    killed.kill()
    six.cut(parted[1])
    six.nothing_left(RUN, hosts=abandoned)
    (finding,) = (each for each in doctor.answer()["findings"] if each["code"].startswith("comm-"))
    assert finding["code"] == "comm-untested"
    assert f"{parted[1].name} was lost: nothing was heard of it for 30 s" in finding["what"]
    six.nothing_left(RUN, hosts=parted, deadline_s=60)
