"""Launches on hosts that are not plain: own names of no use, IPv6 alone, no room for a record, no launcher in sight."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.agent.guarded import until
from tests.hosts.launching import clean_environment, ddplaunch
from tests.hosts.namespaces import INTERFACE, in_network
from tests.ssh.lab import Lab, lab
from tests.ssh.launched import SEES, TRAIN, Launched, dry_run

pytestmark = [pytest.mark.root, pytest.mark.slow]


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

#: Trains until the test has seen enough; rank 1 is late.
LATE = """
import os, pathlib, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
enough = torch.zeros(1)
while not enough:
    loss = model(torch.ones(2, 4)).sum()
    time.sleep(0.05 + 0.15 * dist.get_rank())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    enough[0] = pathlib.Path("enough").exists()
    dist.all_reduce(enough)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts whose own names mean 127.0.1.1 to themselves, as Debian's installer writes it."""
    with lab(2, tmp_path_factory.mktemp("ways"), own_name="loopback") as made:
        made.write("sees.py", SEES)
        made.write("train.py", TRAIN)
        yield made


def seen(made: Lab, run: Launched) -> list[dict[str, Any]]:
    """Wait for the end; return what each rank saw."""
    assert run.ended() == 0, run.said
    return [json.loads((made.own(host) / f"saw-{rank}.json").read_text()) for rank, host in enumerate(made.hosts)]


def met_at(saw: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each rank's master address and interface."""
    return [f"{each['MASTER_ADDR']} {each['GLOO_SOCKET_IFNAME']}" for each in saw]


def test_a_name_that_means_loopback_to_rank_0_and_a_directory_of_the_run_that_hosts_share(debian: Lab) -> None:
    """They record in it, and bring nothing."""
    shared = debian.folder / "shared"
    words = ("2x1", "--master-addr", "alpha0", "--run-dir", str(shared))
    run = Launched(debian, "loopback", *words, script=("sees.py",))
    assert met_at(seen(debian, run)) == [f"{debian.hosts[0].address} {INTERFACE}"] * 2
    record = shared / "runs" / "loopback"
    assert json.loads((record / "outcome.json").read_text())["state"] == "succeeded"
    assert [len(list(record.glob(f"node-{node}/attempt-0/rank-{node}.out"))) for node in (0, 1)] == [1, 1]
    assert not any((debian.own(host) / ".ddplaunch" / "runs" / "loopback").exists() for host in debian.hosts)


def test_a_host_for_which_all_wait_is_named_while_it_trains(debian: Lab) -> None:
    debian.write("late.py", LATE)
    run = Launched(debian, "late", "2x1", "--phases", script=("late.py",))
    run.until(lambda: "ddplaunch: the others waited for host alpha1: " in run.flat, "the late host is named")
    assert "; `--exclude alpha1` leaves it out" in run.flat
    for host in debian.hosts:
        (debian.own(host) / "enough").touch()
    assert run.ended() == 0, run.said
    assert "warning[host-late]: the others waited for host alpha1: " in run.flat, "at the end, as a finding"


def test_a_host_that_takes_no_record_is_named_before_and_its_last_words_come_all_the_same(debian: Lab) -> None:
    debian.write("bad.py", "import os, time\nif os.environ['RANK'] == '0':\n    time.sleep(120)\n1 / 0\n")
    host = debian.hosts[1]
    assert (
        host.run(["mount", "-o", "remount,bind,ro", str(debian.work)], Path("/"), clean_environment()).returncode == 0
    )
    try:
        said = dry_run(debian, status=4)
        assert "error[record-not-writable]: the record of the run cannot be written: .ddplaunch --> alpha1" in said
        run = Launched(debian, "unkept", "2x1", "--ignore", "record-not-writable", script=("bad.py",))
        assert run.ended() == 1, run.said
        assert "[alpha1] error[script-exception]: ZeroDivisionError: division by zero at bad.py:4" in run.said
        assert "incomplete: alpha1: its record was not brought; `ddplaunch explain` tries again" in run.flat
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


def test_hosts_with_ipv6_alone(debian: Lab) -> None:
    """The last of this file: their IPv4 addresses are gone after it."""
    for host in debian.hosts:
        in_network(host.pid, "ip", "-4", "address", "flush", "dev", INTERFACE)
    first, second = (host.address6 for host in debian.hosts)
    hosts = f"[{first}]:1,root@{second}"
    run = Launched(debian, "ipv6", "2x1", "--hosts", hosts, "--master-addr", f"[{first}]", script=("train.py",))
    saw = seen(debian, run)
    assert met_at(saw) == [f"{first} {INTERFACE}"] * 2 and [each["sum"] for each in saw] == [3.0, 3.0]
    assert f"rank 0 at [{first}]:" in run.flat
