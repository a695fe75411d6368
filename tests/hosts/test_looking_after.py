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

from tests.hosts.launching import clean_environment, ddplaunch
from tests.ssh.lab import Lab, lab
from tests.ssh.launched import WAIT, Launched

pytestmark = [pytest.mark.root, pytest.mark.slow]
#: Counts steps.
STEPS = """
import os, time
from pathlib import Path
rank, step = os.environ["RANK"], 0
Path(f"ready-{rank}").write_text(str(os.getpid()))
while True:
    step += 1
    if step % 10 == 0:
        print(f"rank {rank} step {step}", flush=True)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(2, tmp_path_factory.mktemp("two")) as made:
        made.write("wait.py", WAIT)
        made.write("steps.py", STEPS)
        yield made


def say(made: Lab, *words: str, status: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = made.login.run(ddplaunch(*words), cwd or made.work, clean_environment())
    assert done.returncode == status, done.stdout + done.stderr
    return done


def listed(made: Lab, run_id: str, cwd: Path | None = None) -> dict[str, Any]:
    runs = json.loads(say(made, "ps", "--json", cwd=cwd).stdout)["runs"]
    (found,) = [run for run in runs if run["run_id"] == run_id]
    return dict(found)


def test_from_ps_to_stop(two: Lab) -> None:
    """All hosts are asked from where it was launched."""
    run = Launched(two, "asked", "--stacks", "--show", "all", script=("steps.py",))
    run.until(lambda: run.out.read_text().count("step 30\n") == 2, "thirty steps")
    running = listed(two, "asked", cwd=Path("/"))
    assert running["state"] == "running" and running["hosts"] == ["alpha0", "alpha1"]
    assert (running["nnodes"], running["nproc_per_node"], running["world_size"]) == (2, 1, 2)
    (pid,) = running["launcher_pids"]
    assert "rank 1 step" in two.hosts[1].run(ddplaunch("logs", "asked"), Path("/"), clean_environment()).stdout
    last = say(two, "logs", "--lines", "1").stdout.splitlines()  # each host's as they come
    assert sorted(line.split()[0] for line in last) == ["[alpha0:0]", "[alpha1:1]"]
    assert "rank 1 step 20" in say(two, "logs", "asked", "--rank", "1").stdout.splitlines()
    run.until(lambda: "ranks 0, 1  steps.py:" in say(two, "stacks").stdout, "both ranks are in one place")
    (first, second) = (json.loads(line) for line in say(two, "top", "--count", "2", "--json").stdout.splitlines())
    assert [rank["rank"] for rank in first["ranks"]] == [0, 1] and second["at_s"] > first["at_s"]
    assert second["ranks"][1]["step"] >= 20
    assert say(two, "explain", "asked").stdout == "nothing failed in run asked so far: it is still running\n"
    assert "is described in" in say(two, "report", "asked", "--output", "asked.html").stderr
    page = (two.work / "asked.html").read_text()
    assert "rank 0 step 10" in page and "rank 1 step 10" in page
    assert not [path for path in run.record.iterdir() if path.name.startswith("node-1")]  # its launcher brings it

    said = say(two, "stop", "asked", cwd=Path("/")).stderr
    assert f"its launcher (pid {pid}) gets SIGTERM, to end the run on alpha0 and alpha1" in " ".join(said.split())
    assert "\n  alpha0: nothing of it is left\n  alpha1: nothing of it is left\n" in said
    assert run.ended() == 128 + signal.SIGTERM
    two.nothing_left("asked")
    ended = listed(two, "asked")
    assert ended["state"] == "terminated" and ended["hosts"] == ["alpha0", "alpha1"]
    printed = say(two, "logs", "asked").stdout.splitlines()
    assert "[alpha0:0] rank 0 step 10" in printed and printed.count("[alpha1:1] rank 1 step 10") == 1
    assert "nothing of it runs on this host" in say(two, "stop", "asked").stderr


#: Rank 1 fails when it is told to, without a word to others.
FAILS = """
import os, time
from pathlib import Path
Path(f"ready-{os.environ['RANK']}").write_text(str(os.getpid()))
while not Path("fail").exists():
    time.sleep(0.1)
raise KeyError("label")
"""


def test_a_record_that_could_not_be_brought_at_the_end_is_brought_by_explain(two: Lab) -> None:
    two.write("fails.py", FAILS)
    run = Launched(two, "late", script=("fails.py",))
    run.all_ready()
    with two.configured("Host alpha1\n  Port 9"):
        (two.own(two.hosts[1]) / "fail").touch()
        assert run.ended() == 1, run.said
        assert "alpha1: its record was not brought; `ddplaunch explain` tries again" in run.flat
        assert "the launch on alpha1 ended with status 1" in say(two, "explain", "late", status=1).stdout
    assert "output of late, asking alpha1 for the rest" in say(two, "logs", "late").stderr
    found = say(two, "explain", "late", status=1).stdout
    assert "KeyError: 'label' at fails.py:7" in found and "rank 1 on alpha1" in found, found
    with two.configured("Host alpha1\n  Port 9"):
        assert say(two, "explain", "late", status=1).stdout == found


def test_a_launcher_that_was_killed_is_the_reason_and_its_hosts_still_have_the_logs(two: Lab) -> None:
    """Before that, one host cannot be asked, which does not hide the other."""
    run = Launched(two, "widowed", "--stacks", "--show", "all", script=("steps.py",))
    run.until(lambda: run.out.read_text().count("step 10\n") == 2, "ten steps")
    with two.configured("Host alpha1\n  Port 9"):
        said = say(two, "logs", "widowed")
        assert "rank 0 step" in said.stdout and "alpha1" in said.stderr and "refused" in said.stderr
        stacks = say(two, "stacks", "widowed")
        assert "widowed: 1 rank on alpha0, in one place" in stacks.stdout and "alpha1" in stacks.stderr
    os.kill(run.launcher, signal.SIGKILL)
    run.ended()
    two.nothing_left("widowed")
    asked = say(two, "stop", "widowed").stderr
    assert " is gone; asking alpha0 and alpha1" in asked
    assert asked.count("nothing of it is left") == 2
    found = say(two, "explain", "widowed", status=1).stdout
    assert found.startswith("error[launcher-lost]: the launcher on alpha2 died, and alpha0 and alpha1 ended")
    there = two.hosts[0].run(ddplaunch("explain", "widowed"), two.work, clean_environment()).stdout
    assert "this host ended its part of the run, because its launcher was lost" in " ".join(there.split()), there
    printed = say(two, "logs", "widowed").stdout
    assert "rank 0 step 10" in printed and "rank 1 step 10" in printed
    assert (run.record / "node-1").is_dir()  # brought, since nobody else will
    assert say(two, "explain", "widowed", status=1).stdout == found
