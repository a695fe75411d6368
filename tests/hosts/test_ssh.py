"""Launches over real sshds on hosts in network namespaces: all ranks start, and whatever dies, all of it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.launching import clean_environment, ddplaunch
from tests.ssh.lab import Lab, lab
from tests.ssh.launched import SEES, WAIT, Launched, dry_run

pytestmark = [pytest.mark.root, pytest.mark.slow]

HOSTILE = ["two words", "it's", 'a "quote"', "line\nbreak", "$HOME `id` *", "", "ünïcode", "--r=16", "\\", "a;b|c"]
MODEL = "import torch\nWIDTH = {width}\n"
SECRET = "s3cret $HOME 'quoted'\nsecond line"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts and the one to launch from, for all tests of this file that leave them whole."""
    with lab(2, tmp_path_factory.mktemp("two")) as made:
        made.write("train.py", SEES)
        made.write("wait.py", WAIT)
        yield made


def test_all_ranks_start_with_what_was_given_and_what_they_write_is_brought(two: Lab) -> None:
    passed = {"WANDB_API_KEY": SECRET, "NCCL_NVLS_ENABLE": "0", "HOST_ONLY": "stays here"}
    typed = ("2x2", "--env", f"MY_TOKEN={SECRET}")
    run = Launched(two, "together", *typed, script=("train.py", *HOSTILE), **passed)
    assert run.ended() == 0, run.said
    saw = [json.loads((two.own(two.hosts[rank // 2]) / f"saw-{rank}.json").read_text()) for rank in range(4)]
    assert [each["host"] for each in saw] == ["alpha0", "alpha0", "alpha1", "alpha1"]
    for each in saw:
        assert (each["WORLD_SIZE"], each["argv"]) == ("4", HOSTILE)
        assert each["WANDB_API_KEY"] == each["MY_TOKEN"] == SECRET
        assert each["NCCL_NVLS_ENABLE"] == "0" and "HOST_ONLY" not in each
        assert (each["MASTER_ADDR"], each["GLOO_SOCKET_IFNAME"]) == (two.hosts[0].address, "fabric7")
        assert each["cwd"] == str(two.work)
    assert run.out.read_bytes() == b"rank 0 out\n"
    assert "done" in run.said.splitlines()[-1]
    for rank in range(4):
        file = run.record / f"node-{rank // 2}" / "attempt-0" / f"rank-{rank}.out"
        assert file.read_text() == f"rank {rank} out\n"
    assert [each["rank"] for each in run.outcome["attempts"][0]["ranks"]] == [0, 1, 2, 3]
    assert run.outcome["state"] == "succeeded"
    assert (run.record / "run.json").exists() and (run.record / "node-1" / "run.json").exists()
    assert SECRET.splitlines()[0] not in (run.record / "run.json").read_text()
    two.nothing_left("together")


@pytest.mark.parametrize("victim", ["torch.distributed.run", "ddplaunch.cli.hosts.serve"])
def test_whatever_is_killed_on_a_host_ends_the_job_everywhere(two: Lab, victim: str) -> None:
    name = victim.rpartition(".")[2]
    run = Launched(two, name, "2x1", "--env", "MY_TOKEN=sesame-open", "--grace", "2", MY_TOKEN="sesame-open")
    run.all_ready()
    for host in two.hosts:
        seen = host.run(["ps", "-eo", "args"], Path("/"), {"PATH": "/usr/bin:/bin"}).stdout
        assert "wait.py" in seen and "sesame-open" not in seen, "no secret is on a command line"
    named = [two.processes(two.hosts[1], word, files=["cmdline"]) for word in ("pt_elastic", victim)]
    (pid,) = named[0] if name == "run" and named[0] else named[1]
    assert two.hosts[1].run(["kill", "-9", str(pid)], Path("/"), clean_environment()).returncode == 0
    assert run.ended() != 0
    assert run.outcome["diagnosis"]["host"] == "alpha1", run.said
    two.nothing_left(name)


def test_hosts_that_cannot_be_used_are_refused_by_name(two: Lab) -> None:
    words = ("--hosts", f"{two.names},nowhere.invalid", "--python", "/nowhere/python")
    said = dry_run(two, *words, size="3x1", status=4)
    assert "error[host-name-unresolvable]" in said and "--> nowhere.invalid" in said
    assert "error[host-without-python]: there is no interpreter" in said and "alpha0, alpha1" in said
    known = two.folder / "known_hosts"
    before = known.read_text()
    first = before.splitlines()[0].partition(" ")[2]
    try:
        known.write_text(f"alpha1,{two.hosts[1].address} {first}\n")
        said = dry_run(two, status=4)
        assert "error[host-key-changed]" in said and "--> alpha1" in said and "error[host-key-unknown]" in said
    finally:
        known.write_text(before)


def test_other_code_than_the_other_host_or_the_launcher_has_is_named(two: Lab) -> None:
    first, second = map(two.own, two.hosts)
    for folder in (two.work, first, second):
        (folder / "net").mkdir()
        (folder / "net" / "model.py").write_text(MODEL.format(width=8))
    two.write("odd.py", "from net.model import WIDTH\n")
    (second / "net" / "model.py").write_text(MODEL.format(width=9))
    found = dry_run(two, script="odd.py", status=4)
    assert "error[hosts-differ-sources]: what the script imports differs: `net/model.py` on alpha1" in found
    (second / "net" / "model.py").write_text(MODEL.format(width=8))
    (two.work / "net" / "model.py").write_text(MODEL.format(width=11))
    found = dry_run(two, script="odd.py", status=0)
    assert "warning[hosts-differ-from-here]: the hosts do not have this directory's `net/model.py`" in found


def test_a_plan_of_several_hosts(two: Lab) -> None:
    words = ddplaunch("plan", "2", "--device", "cpu", "--batch-size", "4", "--hosts", two.names)
    done = two.login.run([*words, "--json", "--", "train.py"], two.work, clean_environment())
    hosts = json.loads(done.stdout)["hosts"]
    assert [each["host"] for each in hosts] == ["alpha0", "alpha1"], done.stderr
    assert [each["topology"]["nproc_per_node"]["value"] for each in hosts] == [2, 2]
    assert {each["topology"]["world_size"] for each in hosts} == {4}
    done = two.login.run([*words, "--", "train.py"], two.work, clean_environment())
    assert done.returncode == 0 and "4 processes, 2 nodes of 2, this is node 1" in " ".join(done.stdout.split())
    assert done.stdout.startswith("alpha0\n") and "\nalpha1\n" in done.stdout
    assert done.stdout.count("torch.distributed.run") == done.stdout.count("--logs-specs") == 2, done.stdout
