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
from tests.ssh.weather import limit, lose, unroute

pytestmark = [pytest.mark.root, pytest.mark.slow]

DEADLINE_S = 240
RUN = "comm-"  # what its run ids begin with
PROGRAM = "ddplaunch.agent.comm_host"


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(6, tmp_path_factory.mktemp("six")) as made:
        yield made


class Doctor:
    """One `doctor --comm --json` on the login host."""

    def __init__(self, made: Lab, hosts: tuple[Node, ...], *words: str) -> None:
        self.lab, self.hosts = made, hosts
        names = ",".join(host.name for host in hosts)
        argv = made.login.command(ddplaunch("doctor", "--hosts", names, "--comm", "--json", *words), made.work)
        self.process = subprocess.Popen(
            argv, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def answer(self) -> dict[str, Any]:
        out, err = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 1, out + err
        data: dict[str, Any] = json.loads(out)
        return data

    def testing(self) -> None:
        """Wait until every host runs its part."""
        until(lambda: all(self.lab.processes(host, PROGRAM) for host in self.hosts), "all test", DEADLINE_S)

    def kill(self) -> None:
        """kill -9 of the launcher."""
        os.kill(started_by(self.process), signal.SIGKILL)
        self.process.communicate(timeout=90)


def by_code(data: dict[str, Any]) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    for finding in data["findings"]:
        found.setdefault(finding["code"], []).append(finding["where"])
    return found


def test_the_cut_off_the_lossy_and_the_slow_host_are_each_named(six: Lab) -> None:
    cut_off, lossy, slow = six.hosts[2:5]
    unroute(six, cut_off)
    lose(six, lossy, 0.2)
    limit(slow, "10mbit")
    for _ in range(4):  # losses are random: at times too many for the lossy host to get anything through in 12 s
        data = Doctor(six, six.hosts, "--comm-timeout", "12").answer()
        found = by_code(data)
        if found.get("comm-packet-loss") and len(found["comm-cut-off"]) == 1:
            break
    assert found["comm-cut-off"] == [[cut_off.name]]
    assert found["comm-packet-loss"] == [[lossy.name]]
    assert found["comm-slow-host"] == [[slow.name]]
    steps = data["comm"]["steps"]
    assert all(step["seconds"] < data["comm"]["deadline_s"] + 60 for step in steps)
    rates = [step.get("bandwidth_bytes_per_s", 0) for step in steps if slow.name in step["hosts"] and step["round"]]
    assert 0 < max(rates) < 3e6  # 10 Mbit/s are 1.25 MB/s
    six.nothing_left(RUN)


def test_nothing_is_left_when_the_launcher_is_killed_or_a_cable_is_pulled(six: Lab) -> None:
    abandoned, parted = six.hosts[:2], six.hosts[4:]
    killed, doctor = Doctor(six, abandoned), Doctor(six, parted)
    killed.testing()
    doctor.testing()
    killed.kill()
    six.cut(parted[1])
    six.nothing_left(RUN, hosts=abandoned)
    found = by_code(doctor.answer())
    assert found["comm-untested"] == [[parted[1].name]]
    assert "comm-cut-off" not in found
    six.nothing_left(RUN, hosts=parted, deadline_s=60)
