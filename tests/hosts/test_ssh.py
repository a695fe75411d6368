"""Launches over real sshds on hosts in network namespaces: they train together, and whatever dies, all of it ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.launching import clean_environment, ddplaunch
from tests.ssh.lab import Lab, lab
from tests.ssh.launched import TRAIN, WAIT, Launched

pytestmark = [pytest.mark.root, pytest.mark.slow]

HOSTILE = [
    "two words",
    "it's",
    'a "quote"',
    "line\nbreak",
    "$HOME",
    "`id`",
    "*",
    "",
    "ünïcode",
    "--r=16",
    "\\",
    "a;b|c&",
]
SECRET = "s3cret $HOME 'quoted'\nsecond line"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts and the one to launch from, for all tests of this file that leave them whole."""
    with lab(2, tmp_path_factory.mktemp("two")) as made:
        made.write("train.py", TRAIN)
        made.write("wait.py", WAIT)
        yield made


def on(made: Lab, host: int, *argv: str) -> None:
    done = made.hosts[host].run(list(argv), Path("/"), clean_environment())
    assert done.returncode == 0, done.stderr


def test_hosts_train_together(two: Lab) -> None:
    run = Launched(
        two,
        "together",
        "2x2",
        "--env",
        f"MY_TOKEN={SECRET}",
        script=("train.py", *HOSTILE),
        WANDB_API_KEY=SECRET,
        NCCL_NVLS_ENABLE="0",
        HOST_ONLY="stays here",
    )
    assert run.ended() == 0, run.said
    saw = [json.loads((two.own(two.hosts[rank // 2]) / f"saw-{rank}.json").read_text()) for rank in range(4)]
    assert [each["host"] for each in saw] == ["alpha0", "alpha0", "alpha1", "alpha1"]
    for each in saw:
        assert (each["sum"], each["world"], each["argv"]) == (10.0, 4, HOSTILE)
        assert each["WANDB_API_KEY"] == each["MY_TOKEN"] == SECRET
        assert (each["NCCL_NVLS_ENABLE"], each["HOST_ONLY"]) == ("0", None)
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


def test_killed_rank_is_named_with_its_host(two: Lab) -> None:
    run = Launched(two, "killed", "2x1", "--grace", "2")
    run.ready(0)
    on(two, 1, "kill", "-9", str(run.ready(1)))
    assert run.ended() == 137, run.said
    assert (run.outcome["diagnosis"]["rank"], run.outcome["diagnosis"]["host"]) == (1, "alpha1")
    two.nothing_left("killed")


@pytest.mark.parametrize("victim", ["torch.distributed.run", "ddplaunch.cli.hosts.serve"])
def test_whatever_is_killed_on_a_host_ends_the_job_everywhere(two: Lab, victim: str) -> None:
    name = victim.rpartition(".")[2]
    run = Launched(two, name, "2x1", "--grace", "2")
    run.all_ready()
    wanted = "pt_elastic" if name == "run" and two.processes(two.hosts[1], "pt_elastic") else victim
    (pid,) = [each for each in two.processes(two.hosts[1], wanted) if is_named(two, each, wanted)]
    on(two, 1, "kill", "-9", str(pid))
    assert run.ended() != 0
    assert run.outcome["diagnosis"]["host"] == "alpha1", run.said
    two.nothing_left(name)


def is_named(made: Lab, pid: int, word: str) -> bool:
    """Whether the command line itself, not the environment, has ``word``."""
    words = made.hosts[1].run(["cat", f"/proc/{pid}/cmdline"], Path("/"), clean_environment()).stdout
    return word in words


def test_an_interrupted_launcher_ends_all_and_no_secret_was_on_a_command_line(two: Lab) -> None:
    """Long before the grace is over."""
    run = Launched(two, "interrupted", "2x1", "--env", "MY_TOKEN=sesame-open", "--grace", "90", MY_TOKEN="sesame-open")
    run.all_ready()
    for host in two.hosts:
        seen = host.run(["ps", "-eo", "args"], Path("/"), {"PATH": "/usr/bin:/bin"}).stdout
        assert "wait.py" in seen and "sesame-open" not in seen
    os.kill(run.launcher, signal.SIGINT)
    assert run.ended(60) == 128 + signal.SIGINT, run.said
    assert run.outcome["state"] == "terminated"
    two.nothing_left("interrupted")


def refused(
    made: Lab, *words: str, script: tuple[str, ...] = ("wait.py",), hosts: str | None = None
) -> tuple[int, str]:
    argv = ddplaunch("run", "--device", "cpu", "--hosts", hosts or made.names, *words, "--", *script)
    done = made.login.run(argv, made.work, clean_environment())
    return done.returncode, " ".join(done.stderr.split())


def test_hosts_that_cannot_be_used_are_refused_by_name(two: Lab) -> None:
    status, said = refused(two, "3x1", hosts=f"{two.names},nowhere.invalid")
    assert status == 4 and "error[host-name-unresolvable]" in said and "--> nowhere.invalid" in said
    status, said = refused(two, "2x1", "--python", "/nowhere/python")
    assert status == 4 and "error[host-without-python]: there is no interpreter" in said and "alpha0, alpha1" in said
    status, said = refused(two, "2x1", hosts=f"alpha0,{two.hosts[0].address}")
    assert status == 4 and "error[same-host-twice]" in said
    status, said = refused(two, "2x1", "--master-port", "22")
    assert status == 4 and "error[port-taken]: port 22 cannot be used on alpha0: Address already in use" in said
    assert "nothing was launched" in said


def test_scripts_that_differ_or_lack_are_refused(two: Lab) -> None:
    (two.own(two.hosts[0]) / "odd.py").write_text("print(1)\n")
    (two.work / "odd.py").write_text("print(1)\n")
    status, said = refused(two, "2x1", script=("odd.py",))
    assert status == 4 and "error[host-script-missing]" in said and "on alpha1" in said
    (two.own(two.hosts[1]) / "odd.py").write_text("print(2)\n")
    status, said = refused(two, "2x1", script=("odd.py",))
    assert status == 4 and "error[hosts-differ-script]" in said


def test_changed_host_key_is_refused(two: Lab) -> None:
    known = two.folder / "known_hosts"
    before = known.read_text()
    first, second = before.splitlines()
    try:
        known.write_text(f"{first}\nalpha1,{two.hosts[1].address} {first.partition(' ')[2]}\n")
        status, said = refused(two, "2x1")
        assert status == 4 and "error[host-key-changed]" in said and "--> alpha1" in said
        known.write_text(f"{first}\n")
        status, said = refused(two, "2x1")
        assert status == 4 and "error[host-key-unknown]" in said
    finally:
        known.write_text(f"{first}\n{second}\n")
