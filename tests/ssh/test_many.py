"""Many hosts at once over real sshds: a jump host that drops connections, and a host that is cut off."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.launching import clean_environment, ddplaunch
from tests.ssh.lab import Lab, lab, start_sshd

pytestmark = [pytest.mark.root, pytest.mark.slow]

BEHIND = [f"behind{number}" for number in range(8)]
#: The jump host refuses every connection while two are logging in.
THROTTLED = "MaxStartups 2:100:2"
CONFIG = """Host jump
  HostName alpha0
  HostKeyAlias alpha0
  Port 2222
Host behind*
  HostName alpha1
  HostKeyAlias alpha1
  ProxyJump jump
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts: a jump host that is easily overwhelmed, and the one behind it."""
    with lab(2, tmp_path_factory.mktemp("many")) as found:
        config = found.folder / "ssh_config"
        config.write_text(CONFIG + config.read_text())
        yield found


@pytest.fixture(scope="module")
def log(made: Lab) -> Path:
    """Start a second sshd on the jump host; return its log."""
    folder = made.folder / "sshd-alpha0"
    text = (folder / "sshd_config").read_text()
    for old, new in (("Port 22\n", "Port 2222\n"), ("MaxStartups 200", THROTTLED), ("sshd.pid", "second.pid")):
        assert old in text
        text = text.replace(old, new)
    (folder / "second_config").write_text(f"{text}LogLevel VERBOSE\n")
    return start_sshd(made, made.hosts[0], "second")


def doctor(made: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    return made.login.run(ddplaunch("doctor", *words), made.work, clean_environment(COLUMNS="200"))


def test_all_come_through_a_jump_host_that_drops_connections(made: Lab, log: Path) -> None:
    done = doctor(made, "--hosts", ",".join(BEHIND))
    assert "8 of 8 hosts answered" in done.stdout, done.stdout + done.stderr
    assert "host-connections-dropped" not in done.stdout
    dropped = [line for line in log.read_text().splitlines() if "drop connection" in line]
    assert dropped, "nothing was dropped, so nothing was tried again"


def test_a_host_that_is_cut_off_is_named_and_the_others_are_shown(made: Lab) -> None:
    made.cut(made.hosts[1])
    done = doctor(made, "--hosts", "alpha0,alpha1", "--join-timeout", "20s")
    assert done.returncode == 1
    assert "error[host-unreachable]: alpha1 " in done.stdout
    assert "1 of 2 hosts answered" in done.stdout and "\n  alpha0" in done.stdout
