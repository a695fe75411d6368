"""Ways to hosts that are not plain: jump hosts, questions that nobody answers, start-up files, no ddplaunch there."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.launching import clean_environment, ddplaunch
from tests.ssh.lab import Lab, lab, start_sshd
from tests.ssh.launched import dry_run

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(2, tmp_path_factory.mktemp("logins")) as made:
        made.write("train.py", "import torch.distributed\ntorch.distributed.init_process_group()\n")
        yield made


#: What an environment for training may be without.
_NOT_THERE = ("ddplaunch", "__editable__", "typer", "rich", "psutil", "pynvml", "nvidia_ml", "yaml", "pyyaml", "tree_s")


def test_hosts_without_ddplaunch_get_it_by_what_is_typed(two: Lab) -> None:
    """Their environment has torch and no pip, and these hosts reach no index."""
    there = two.folder / "there"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", there], check=True, timeout=60)
    (site,) = there.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.lower().startswith(_NOT_THERE) and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    words = ("--python", str(there / "bin/python"))
    said = dry_run(two, *words, status=4, COLUMNS="9999")
    assert said.count("error[host-without-ddplaunch]") == 1, said
    typed = said.partition("fix: `")[2].partition("`, or name")[0]
    assert typed.startswith("for host in alpha0 alpha1; do "), said
    done = two.login.run(["sh", "-c", typed], Path("/"), clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# on alpha1, in" in dry_run(two, *words, "--ignore", "hosts-differ-packages", status=0)


def test_jump_hosts_and_questions(two: Lab) -> None:
    first, second = two.hosts
    asked = two.folder / "asked"
    window = two.folder / "window"
    window.write_text(f"#!/bin/sh\ntouch {asked}\nsleep 60\n")
    window.chmod(0o755)
    config = (
        f"Host behind\n  HostName {second.address}\n  ProxyJump alpha0\n"
        f"Host locked\n  HostName {second.address}\n  ProxyJump gate\n"
        "Host gate\n  HostName alpha0\n  PubkeyAuthentication no\n"
    )
    env = {"DISPLAY": ":0", "SSH_ASKPASS": str(window)}
    with two.configured(config):
        assert "# on behind, in" in dry_run(two, "--hosts", "alpha0,behind", status=0)
        said = dry_run(two, "--hosts", "alpha0,locked", "--join-timeout", "30", status=4, **env)
    assert "error[host-login-denied]: locked refused this user" in said
    assert f"root@{first.name}: Permission denied" in said
    assert not asked.exists()


#: The jump host refuses every connection while two are logging in.
JUMP = """Host jump
  HostName alpha0
  HostKeyAlias alpha0
  Port 2222
Host behind*
  HostName alpha1
  HostKeyAlias alpha1
  ProxyJump jump
"""


def test_all_come_through_a_jump_host_that_drops_connections(two: Lab) -> None:
    folder = two.folder / "sshd-alpha0"
    text = (folder / "sshd_config").read_text()
    for old, new in (
        ("Port 22\n", "Port 2222\n"),
        ("MaxStartups 200", "MaxStartups 2:100:2"),
        ("sshd.pid", "second.pid"),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "second_config").write_text(f"{text}LogLevel VERBOSE\n")
    log = start_sshd(two, two.hosts[0], "second")
    words = ddplaunch("doctor", "--hosts", ",".join(f"behind{number}" for number in range(8)))
    with two.configured(JUMP):
        done = two.login.run(words, two.work, clean_environment(COLUMNS="200"))
    assert "8 of 8 hosts answered" in done.stdout, done.stdout + done.stderr
    assert "host-connections-dropped" not in done.stdout
    assert "drop connection" in log.read_text(), "nothing was dropped, so nothing was tried again"


def test_start_up_files_and_keys_of_no_use(two: Lab) -> None:
    """What is printed as a fix is typed."""
    start_up = two.folder / "bashrc"
    start_up.write_text("exit 0\n")
    host = two.hosts[1]
    mounted = host.run(["mount", "--bind", str(start_up), str(Path.home() / ".bashrc")], Path("/"), clean_environment())
    assert mounted.returncode == 0, mounted.stderr
    said = dry_run(two, status=4)
    assert "error[host-session-failed]: alpha1 ended the session before ddplaunch began: status 0" in said
    start_up.write_text("export PATH=/nowhere PYTHONHOME=/nowhere\n[[ $- == *i* ]] || return\nexit 0\n")
    (two.folder / "id").chmod(0o644)
    said = dry_run(two, status=4, COLUMNS="9999")
    assert "error[host-login-denied]: alpha0 and alpha1 refused this user: ssh ignores the key" in said
    subprocess.run(said.partition("fix: `")[2].partition("`")[0], shell=True, check=True)
    dry_run(two, status=0)
    (two.work / "here.py").write_text("print()\n")
    said = dry_run(two, script="here.py", status=4, COLUMNS="9999")
    assert "error[host-script-missing]: alpha0 and alpha1: there is no `here.py` in " in said
    typed = said.partition("error[host-script-missing]")[2].partition("(without git `")[2].partition("`)")[0]
    assert typed.startswith("for host in alpha0 alpha1; do find . "), said
    start_up.write_text("")  # there is no tar on its PATH
    done = two.login.run(["sh", "-c", typed], two.work, clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    dry_run(two, script="here.py", status=0)
