"""A run on two hosts is listed, shown and stopped from the machine that launched it, its launcher alive or not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.hosts.local.stop_run import ask_hosts
from ddplaunch.records import launchers
from tests.hosts.launching import clean_environment, ddplaunch
from tests.ssh.lab import Lab, lab
from tests.ssh.launched import WAIT, Launched

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(2, tmp_path_factory.mktemp("two")) as made:
        made.write("wait.py", WAIT)
        yield made


def launch(made: Lab, run_id: str) -> Launched:
    """Launch and return when both ranks run."""
    run = Launched(made, run_id)
    run.all_ready()
    return run


def say(made: Lab, *words: str, status: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = made.login.run(ddplaunch(*words), cwd or made.work, clean_environment())
    assert done.returncode == status, done.stdout + done.stderr
    return done


def listed(made: Lab, run_id: str, cwd: Path | None = None) -> dict[str, Any]:
    runs = json.loads(say(made, "ps", "--json", cwd=cwd).stdout)["runs"]
    (found,) = [run for run in runs if run["run_id"] == run_id]
    return dict(found)


def test_from_ps_to_stop(two: Lab) -> None:
    run = launch(two, "looked-after")
    running = listed(two, "looked-after", cwd=Path("/"))
    assert running["state"] == "running" and running["hosts"] == ["alpha0", "alpha1"]
    assert (running["nnodes"], running["nproc_per_node"], running["world_size"]) == (2, 1, 2)
    (pid,) = running["launcher_pids"]
    stacks, top = say(two, "stacks").stderr, say(two, "top", "looked-after").stderr
    logs = say(two, "logs", "looked-after").stderr
    assert "runs on alpha0 and alpha1; ask there:" in logs and "-m ddplaunch logs looked-after\n" in logs
    assert "rank 1 waits" in two.hosts[1].run(ddplaunch("logs", "looked-after"), Path("/"), clean_environment()).stdout
    assert "ssh alpha1 " in stacks and "-m ddplaunch stacks looked-after\n" in stacks
    assert "ssh -t alpha0 " in top and "-m ddplaunch top looked-after\n" in top

    # somebody else has the pid by now: the note is as it was, but that process does not hold it open
    note = two.work / ".ddplaunch/runs/forged/launcher.json"
    note.parent.mkdir(parents=True)
    data = json.loads((note.parents[1] / "looked-after/launcher.json").read_text())
    note.write_text(json.dumps({**data, "run_id": "forged"}))
    (note.parent / "run.json").write_bytes((note.parents[1] / "looked-after/run.json").read_bytes())
    assert listed(two, "forged")["state"] == "ended"
    asked = say(two, "stop", "forged").stderr
    assert f"its launcher (pid {pid}) is gone; asking alpha0 and alpha1" in asked
    assert asked.count("nothing of it runs there") == 2
    assert run.process.poll() is None

    said = say(two, "stop", "looked-after", cwd=Path("/")).stderr
    assert f"SIGTERM to its launcher (pid {pid}), which ends it on alpha0 and alpha1" in said
    assert "\n  alpha0: ended rank 0 (pid " in said and "\n  alpha1: ended rank 1 (pid " in said
    assert run.ended() == 128 + signal.SIGTERM
    two.nothing_left("looked-after")
    ended = listed(two, "looked-after")
    assert ended["state"] == "terminated" and ended["hosts"] == ["alpha0", "alpha1"]
    printed = say(two, "logs", "looked-after").stdout
    assert "rank 0 waits" in printed and "rank 1 waits" in printed
    assert "nothing of it runs on this host" in say(two, "stop", "looked-after").stderr


def test_hosts_whose_launcher_is_gone(two: Lab) -> None:
    """Each host is asked by ssh. Its service is held still, or it would end its part by itself."""
    run_id = "left-alone"
    run = launch(two, run_id)
    services = [pid for host in two.hosts for pid in outer(two, host.pid)]
    (launcher,) = listed(two, run_id)["launcher_pids"]
    for pid in services:
        os.kill(pid, signal.SIGSTOP)
    try:
        two.login.run(["kill", "-KILL", str(launcher)], Path("/"), clean_environment())
        run.ended()
        assert listed(two, run_id)["state"] == "ended"
        said = json.loads(say(two, "stop", run_id, "--json", "--grace", "10").stdout)
    finally:
        for pid in services:
            os.kill(pid, signal.SIGCONT)
    assert said["stopped"] is True and said["other_hosts"] == []
    ranks = {(entry["host"], entry["rank"]) for entry in said["ended"] if str(entry["role"]).startswith("rank")}
    assert ranks and ranks <= {("alpha0", 0), ("alpha1", 1)}  # a torchrun may see the other one go, and end by itself
    two.nothing_left(run_id)


def outer(made: Lab, inside: int) -> list[int]:
    """Return the pids, as this test sees them, of the services in the PID namespace of ``inside``."""
    space = Path(f"/proc/{inside}/ns/pid").readlink()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "ns/pid").readlink() == space and b"ddplaunch.hosts.remote" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def test_a_host_that_cannot_be_asked_is_named(tmp_path: Path) -> None:
    launched = launchers.Launched(
        "r", tmp_path, "here", "", 1, 1, (launchers.Place(0, "no-such-host.invalid", "python3"),)
    )
    (answer,) = ask_hosts(launched, 0.0)
    assert answer.problem is not None and "no-such-host.invalid" in answer.problem.what and answer.ended == ()
