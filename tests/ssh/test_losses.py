"""Hosts that go without a word, and a launcher that sleeps: the rest of the run ends, and the right one is named."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.hosts.launching import clean_environment, ddplaunch
from tests.ssh.lab import lab
from tests.ssh.launched import WAIT, Launched

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_what_goes_without_a_word(tmp_path: Path) -> None:
    """The first host loses its power, another its cable at once.

    With restarts, the torchruns of the others wait for the store of the first host, deaf to signals, and are killed
    when their grace is over.
    """
    with lab(3, tmp_path) as made:
        made.write("wait.py", WAIT)
        dead, cut_off, left = made.hosts
        run = Launched(made, "losses", "3x1", "--max-restarts", "1", "--grace", "5", "--host-timeout", "30")
        run.all_ready()
        made.power_off(dead)
        made.cut(cut_off)
        assert run.ended(120) == 1, run.said
        diagnosis = run.outcome["diagnosis"]
        assert diagnosis["code"] == "host-lost" and diagnosis["host"] in (cut_off.name, dead.name)
        assert f"{diagnosis['host']} was lost: nothing was heard of it for 30 s" in run.flat
        assert {note.partition(":")[0] for note in run.outcome["notes"]} == {cut_off.name, dead.name}
        made.nothing_left("losses", 90, (left, cut_off))


def test_a_launcher_that_sleeps(tmp_path: Path) -> None:
    with lab(1, tmp_path) as made:
        made.write("wait.py", WAIT)
        (left,) = made.hosts
        run = Launched(made, "asleep", "1", "--hosts", left.name, "--grace", "90", "--host-timeout", "20")
        run.ready(0, left)
        launcher = run.launcher
        os.kill(launcher, signal.SIGSTOP)
        try:
            made.nothing_left("asleep", 120, (left,))
        finally:
            for pid in (launcher, run.process.pid):  # nsenter stops itself with its child
                os.kill(pid, signal.SIGCONT)
        assert run.ended(60) == 1, run.said
        assert run.outcome["diagnosis"]["code"] == "host-lost", run.said
        assert f"{left.name} was lost: ddplaunch there heard nothing of the launcher for 20 s" in run.flat


#: Counts steps and sums with the other ranks ten times a second until it may end.
GOES_ON = """
import os, time
from pathlib import Path
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
Path(f"ready-{dist.get_rank()}").write_text(str(os.getpid()))
over, step = torch.zeros(1), 0
while not over:
    step += 1
    print("rank", dist.get_rank(), "step", step, flush=True)
    time.sleep(0.1)
    over.fill_(Path("over").exists())
    dist.all_reduce(over)
dist.destroy_process_group()
"""
CUT_S = 25.0


def test_a_network_that_is_cut_for_a_while_ends_nothing(tmp_path: Path) -> None:
    with lab(2, tmp_path) as made:
        made.write("goes_on.py", GOES_ON)
        run = Launched(made, "cut", "2x1", "--show", "all", script=("goes_on.py",))
        run.until(lambda: "rank 1 step 3\n" in run.out.read_text(), "training")
        made.cut(made.hosts[1])
        time.sleep(CUT_S)
        assert run.process.poll() is None, run.said
        made.plug_in(made.hosts[1])
        steps_before = run.out.read_text().count("step")
        run.until(lambda: run.out.read_text().count("step") > steps_before + 4, "training goes on")
        made.write("over", "")
        assert run.ended(120) == 0, run.said
        assert run.outcome["state"] == "succeeded" and not run.outcome["notes"]
        made.nothing_left("cut", 30)
        for rank in (0, 1):
            recorded = (run.record / f"node-{rank}" / "attempt-0" / f"rank-{rank}.out").read_text()
            for printed in (recorded, run.out.read_text()):
                steps = [int(number) for number in re.findall(rf"^(?:\[.*\] )?rank {rank} step (\d+)$", printed, re.M)]
                assert len(steps) > 4 and steps == list(range(1, len(steps) + 1)), "in order, nothing twice"


#: Rank 1 fills the disk of its record, or finds it full, and then fails or ends well.
FILLS = """
import os, sys, time
what, end = sys.argv[1:]
if os.environ["RANK"] == "0":
    time.sleep(1 if end == "well" else 120)
    sys.exit()
if what == "filled":
    time.sleep(2)  # as a training, which does not fail before its record is begun
    with open(".ddplaunch/model.pt", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)
print("the pet is not known", file=sys.stderr, flush=True)
if end == "fails":
    {}["bird"]
"""


def test_whatever_the_disk_of_a_host_takes_the_launcher_has_the_diagnosis(tmp_path: Path) -> None:
    cases = (("filled", "fails", "disk-full"), ("full", "well", None))
    with lab(2, tmp_path) as made:
        made.write("fills.py", FILLS)
        host = made.hosts[1]
        (made.own(host) / ".ddplaunch").mkdir()
        for what, end, code in cases:
            ready = "mount -t tmpfs -o size=16m none .ddplaunch"
            if what == "full":
                ready += "; head -c 20000000 /dev/zero > .ddplaunch/old; true"
            there = host.run(["sh", "-c", ready], made.work, clean_environment())
            assert there.returncode == 0, there.stderr
            run_id = f"{what}-{end}"
            run = Launched(made, run_id, "2x1", "--no-checks", script=("fills.py", what, end))
            assert run.ended() == (1 if code else 0), run.said
            made.nothing_left(run_id, 30)
            if what != "filled":  # its record was begun, and held room for the last words
                assert f"{host.name}: its record was not brought" in run.flat
            found = run.outcome["diagnosis"]
            if code is None:
                assert found is None
            else:
                assert (found["code"], found["rank"], found["host"]) == (code, 1, host.name), run.said
                done = made.login.run(ddplaunch("explain", run_id), made.work, clean_environment())
                assert f"error[{code}]: " in done.stdout
