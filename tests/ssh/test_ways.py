"""Ways to hosts that are not plain: own names of no use, IPv6 alone, jump hosts, questions that nobody answers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.guarded import until
from tests.hosts.launching import clean_environment, ddplaunch
from tests.hosts.namespaces import INTERFACE, in_network
from tests.ssh.lab import Lab, lab, start_sshd
from tests.ssh.launched import TRAIN, Launched, dry_run

pytestmark = [pytest.mark.root, pytest.mark.slow]


#: Rank 1 fails in the first attempt, while rank 0 is at work. Files tell the attempts apart: where another node failed,
#: torchrun does not count its restart, and TORCHELASTIC_RESTART_COUNT stays 0.
AGAIN = """
import os, pathlib, time
tried = pathlib.Path("tried-" + os.environ["RANK"])
if not tried.exists():
    tried.touch()
    time.sleep(1 if os.environ["RANK"] == "1" else 60)
    raise RuntimeError("bad batch")
"""
#: Saves when it is told to end, which takes a while and needs its worker, as a DataLoader does. The signal would kill
#: the worker.
SAVES = """
import multiprocessing, os, pathlib, signal, sys, time
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
worker.start()
def save(number, frame):
    time.sleep(1)
    if not worker.is_alive():
        sys.exit("the worker was killed")
    pathlib.Path("saved-" + os.environ["RANK"]).touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("rank", os.environ["RANK"], "waits", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts whose own names mean 127.0.1.1 to themselves, as Debian's installer writes it."""
    with lab(2, tmp_path_factory.mktemp("ways"), own_name="loopback") as made:
        made.write("train.py", TRAIN)
        yield made


def trained(made: Lab, run: Launched) -> list[str]:
    """Wait for the end; return each rank's master address and interface."""
    assert run.ended() == 0, run.said
    saw = [json.loads((made.own(host) / f"saw-{rank}.json").read_text()) for rank, host in enumerate(made.hosts)]
    assert [each["sum"] for each in saw] == [3.0, 3.0]
    return [f"{each['MASTER_ADDR']} {each['GLOO_SOCKET_IFNAME']}" for each in saw]


def test_a_name_that_means_loopback_to_rank_0_and_a_directory_of_the_run_that_hosts_share(debian: Lab) -> None:
    """They record in it, and bring nothing. Before that, one has IPv6 alone, and gets what is printed as the fix."""
    second = debian.hosts[1]
    in_network(second.pid, "ip", "-4", "address", "flush", "dev", INTERFACE)
    mixed = Launched(debian, "mixed", "2x1", "--hosts", f"alpha0,[{second.address6}]", script=("train.py",))
    assert mixed.ended() == 1, mixed.said
    (fix,) = re.findall("`sudo (ip address add ADDRESS/24 dev INTERFACE)`", mixed.flat)
    in_network(second.pid, *fix.replace("ADDRESS", second.address).replace("INTERFACE", INTERFACE).split())
    shared = debian.folder / "shared"
    words = ("2x1", "--master-addr", "alpha0", "--run-dir", str(shared))
    run = Launched(debian, "loopback", *words, script=("train.py",))
    assert trained(debian, run) == [f"{debian.hosts[0].address} {INTERFACE}"] * 2
    record = shared / "runs" / "loopback"
    assert json.loads((record / "outcome.json").read_text())["state"] == "succeeded"
    assert [len(list(record.glob(f"node-{node}/attempt-0/rank-{node}.out"))) for node in (0, 1)] == [1, 1]
    assert not any((debian.own(host) / ".ddplaunch" / "runs" / "loopback").exists() for host in debian.hosts)


def test_the_reason_of_a_restart_on_another_host_is_kept(debian: Lab) -> None:
    debian.write("again.py", AGAIN)
    run = Launched(debian, "again", "2x1", "--max-restarts", "1", script=("again.py",))
    assert run.ended() == 0, run.said
    assert "attempt 1 of 2 failed: error[script-exception] RuntimeError: bad batch" in run.flat.replace("[alpha1] ", "")
    assert "ended by another node" not in run.flat
    before = run.outcome["attempts"][0]["diagnosis"]
    assert (before["code"], before["rank"], before["host"]) == ("script-exception", 1, "alpha1")


def test_a_host_that_takes_no_record_is_named_before_and_its_last_words_come_all_the_same(debian: Lab) -> None:
    debian.write("bad.py", "import os\nif os.environ['RANK'] == '1':\n    raise RuntimeError('bad batch')\n")
    host = debian.hosts[1]
    assert (
        host.run(["mount", "-o", "remount,bind,ro", str(debian.work)], Path("/"), clean_environment()).returncode == 0
    )
    try:
        said = dry_run(debian, status=4)
        assert "error[record-not-writable]: the record of the run cannot be written: .ddplaunch --> alpha1" in said
        run = Launched(debian, "unkept", "2x1", "--ignore", "record-not-writable", script=("bad.py",))
        assert run.ended() == 1, run.said
        assert "[alpha1] error[script-exception]: RuntimeError: bad batch at bad.py:3" in run.said
        assert "incomplete: alpha1: its record was not brought" in run.flat
        found = run.outcome["diagnosis"]
        assert (found["code"], found["rank"], found["host"]) == ("script-exception", 1, host.name), run.said
        assert not found["evidence"], "the rank and its host stand above; no file shows it"
    finally:
        host.run(["mount", "-o", "remount,bind,rw", str(debian.work)], Path("/"), clean_environment())


def test_a_detached_run_is_followed_and_stopped_on_a_host(debian: Lab) -> None:
    debian.write("saves.py", SAVES)
    words = ("--device", "cpu", "--hosts", debian.names, "--run-id", "detached", "--detach", "--", "saves.py")
    done = debian.login.run(ddplaunch("run", "2x1", *words), debian.work, clean_environment())
    assert (done.returncode, done.stdout) == (0, "detached\n"), done.stderr
    follow = debian.login.command(ddplaunch("logs", "detached", "--follow"), debian.work)
    followed = subprocess.Popen(follow, env=clean_environment(), stdout=subprocess.PIPE, text=True)
    assert followed.stdout is not None
    shown = {followed.stdout.readline().rpartition("] ")[2] for _ in range(2)}
    assert shown == {"rank 0 waits\n", "rank 1 waits\n"}
    done = debian.hosts[1].run(ddplaunch("stop", "detached"), debian.work, clean_environment())
    assert "SIGTERM" in done.stderr, done.stderr
    debian.nothing_left("detached", 60)
    assert [(debian.own(host) / f"saved-{rank}").exists() for rank, host in enumerate(debian.hosts)] == [True] * 2
    followed.communicate(timeout=60)
    assert followed.returncode == 0
    console = debian.work / ".ddplaunch" / "runs" / "detached" / "console.log"
    until(lambda: "stopped by root with" in console.read_text(), "the launcher has said how it ended")
    explained = debian.login.run(ddplaunch("explain", "detached"), debian.work, clean_environment())
    assert ": stopped by root with `ddplaunch stop`" in " ".join(explained.stdout.split())


#: What an environment for training may be without.
_NOT_THERE = ("ddplaunch", "__editable__", "typer", "rich", "psutil", "pynvml", "nvidia_ml", "yaml", "pyyaml", "tree_s")


def test_hosts_without_ddplaunch_get_it_by_what_is_typed(debian: Lab) -> None:
    """Their environment has torch and no pip, and these hosts reach no index."""
    there = debian.folder / "there"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", there], check=True, timeout=60)
    (site,) = there.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.lower().startswith(_NOT_THERE) and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    words = ("--python", str(there / "bin/python"))
    said = dry_run(debian, *words, status=4, COLUMNS="9999")
    assert said.count("error[host-without-ddplaunch]") == 1, said
    typed = said.partition("fix: `")[2].partition("`, or name")[0]
    assert typed.startswith("for host in alpha0 alpha1; do "), said
    done = debian.login.run(["sh", "-c", typed], Path("/"), clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# on alpha1, in" in dry_run(debian, *words, "--ignore", "hosts-differ-packages", status=0)


def test_jump_hosts_and_questions(debian: Lab) -> None:
    first, second = debian.hosts
    asked = debian.folder / "asked"
    window = debian.folder / "window"
    window.write_text(f"#!/bin/sh\ntouch {asked}\nsleep 60\n")
    window.chmod(0o755)
    config = (
        f"Host behind\n  HostName {second.address}\n  ProxyJump alpha0\nHost same\n  HostName {second.address}\nHost "
        f"locked\n  HostName {second.address}\n  ProxyJump gate\n"
        "Host gate\n  HostName alpha0\n  PubkeyAuthentication no\n"
    )
    env = {"DISPLAY": ":0", "SSH_ASKPASS": str(window)}
    with debian.configured(config):
        assert "# on behind, in" in dry_run(debian, "--hosts", "alpha0,behind", status=0)
        said = dry_run(debian, "--hosts", "behind,same", status=4)
        assert "error[same-host-twice]: behind and same are the same machine" in said
        said = dry_run(debian, "--hosts", "alpha0,locked", "--join-timeout", "30", status=4, **env)
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


def test_all_come_through_a_jump_host_that_drops_connections(debian: Lab) -> None:
    folder = debian.folder / "sshd-alpha0"
    text = (folder / "sshd_config").read_text()
    for old, new in (
        ("Port 22\n", "Port 2222\n"),
        ("MaxStartups 200", "MaxStartups 2:100:2"),
        ("sshd.pid", "second.pid"),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "second_config").write_text(f"{text}LogLevel VERBOSE\n")
    log = start_sshd(debian, debian.hosts[0], "second")
    words = ddplaunch("doctor", "--hosts", ",".join(f"behind{number}" for number in range(8)))
    with debian.configured(JUMP):
        done = debian.login.run(words, debian.work, clean_environment(COLUMNS="200"))
    assert "8 of 8 hosts answered" in done.stdout, done.stdout + done.stderr
    assert "host-connections-dropped" not in done.stdout
    assert "drop connection" in log.read_text(), "nothing was dropped, so nothing was tried again"


def test_a_host_that_is_cut_off_is_named_and_the_others_are_shown(debian: Lab) -> None:
    debian.cut(debian.hosts[1])
    words = ddplaunch("doctor", "--hosts", "alpha0,alpha1", "--join-timeout", "60s")
    done = debian.login.run(words, debian.work, clean_environment(COLUMNS="200"))
    debian.plug_in(debian.hosts[1])
    assert done.returncode == 1
    assert "error[host-unreachable]: alpha1 " in done.stdout
    assert "1 of 2 hosts answered" in done.stdout and "\n  alpha0" in done.stdout


def test_start_up_files_and_keys_of_no_use(debian: Lab) -> None:
    """What is printed as a fix is typed."""
    start_up = debian.folder / "bashrc"
    start_up.write_text("exit 0\n")
    host = debian.hosts[1]
    mounted = host.run(["mount", "--bind", str(start_up), str(Path.home() / ".bashrc")], Path("/"), clean_environment())
    assert mounted.returncode == 0, mounted.stderr
    said = dry_run(debian, status=4)
    assert "error[host-session-failed]: alpha1 ended the session before ddplaunch began: status 0" in said
    start_up.write_text("[[ $- == *i* ]] || return\nexit 0\n")
    dry_run(debian, status=0)
    start_up.write_text("export PATH=/nowhere PYTHONHOME=/nowhere\n")
    dry_run(debian, status=0)
    (debian.folder / "id").chmod(0o644)
    said = dry_run(debian, status=4, COLUMNS="9999")
    assert "error[host-login-denied]: alpha0 and alpha1 refused this user: ssh ignores the key" in said
    subprocess.run(said.partition("fix: `")[2].partition("`")[0], shell=True, check=True)
    dry_run(debian, status=0)


def test_hosts_with_ipv6_alone(debian: Lab) -> None:
    """The last of this file: their IPv4 addresses are gone after it."""
    for host in debian.hosts:
        in_network(host.pid, "ip", "-4", "address", "flush", "dev", INTERFACE)
    first, second = (host.address6 for host in debian.hosts)
    hosts = f"[{first}]:1,root@{second}"
    run = Launched(debian, "ipv6", "2x1", "--hosts", hosts, "--master-addr", f"[{first}]", script=("train.py",))
    assert trained(debian, run) == [f"{first} {INTERFACE}"] * 2
    assert f"rank 0 at [{first}]:" in run.flat
