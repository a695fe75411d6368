"""Hosts that go without a word, and a launcher that sleeps: the rest of the run ends, and the right one is named."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests.ssh.lab import Lab, lab
from tests.ssh.launched import SEES, WAIT, Launched

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(3, tmp_path_factory.mktemp("losses")) as made:
        made.write("sees.py", SEES)
        made.write("wait.py", WAIT)
        yield made


def test_a_launcher_that_sleeps(three: Lab) -> None:
    left = three.hosts[0]
    run = Launched(three, "asleep", "1", "--hosts", left.name, "--grace", "90", "--host-timeout", "10")
    run.ready(0, left)
    launcher = run.launcher
    os.kill(launcher, signal.SIGSTOP)
    try:
        three.nothing_left("asleep", 120, (left,))
    finally:
        for pid in (launcher, run.process.pid):  # nsenter stops itself with its child
            os.kill(pid, signal.SIGCONT)
    assert run.ended(60) == 1, run.said
    assert run.outcome["diagnosis"]["code"] == "host-lost", run.said
    assert f"{left.name} was lost: ddplaunch there heard nothing of the launcher for 10 s" in run.flat


#: Counts steps, ten times a second, until it may end.
GOES_ON = """
import os, time
from pathlib import Path
step = 0
while not Path("over").exists():
    step += 1
    print("rank", os.environ["RANK"], "step", step, flush=True)
    time.sleep(0.1)
"""
CUT_S = 18.0  # ssh asks for a sign of life every 15 s


def test_a_network_that_is_cut_for_a_while_ends_nothing(three: Lab) -> None:
    three.write("goes_on.py", GOES_ON)
    run = Launched(three, "cut", "2x1", "--hosts", "alpha0,alpha1", "--show", "all", script=("goes_on.py",))
    run.until(lambda: "rank 1 step 3\n" in run.out.read_text(), "training")
    three.cut(three.hosts[1])
    time.sleep(CUT_S)
    assert run.process.poll() is None, run.said
    three.plug_in(three.hosts[1])
    steps_before = run.out.read_text().count("rank 1 step")
    run.until(lambda: run.out.read_text().count("rank 1 step") > steps_before + 4, "training goes on")
    three.write("over", "")
    assert run.ended(120) == 0, run.said
    assert run.outcome["state"] == "succeeded" and not run.outcome["notes"]
    three.nothing_left("cut", 30)
    for rank in (0, 1):
        recorded = (run.record / f"node-{rank}" / "attempt-0" / f"rank-{rank}.out").read_text()
        for printed in (recorded, run.out.read_text()):
            steps = [int(number) for number in re.findall(rf"^(?:\[.*\] )?rank {rank} step (\d+)$", printed, re.M)]
            assert len(steps) > 4 and steps == list(range(1, len(steps) + 1)), "in order, nothing twice"


def test_what_goes_without_a_word(three: Lab) -> None:
    """The first host loses its power, another its cable at once. The last of this file, whose hosts are gone after it.

    With restarts, the torchruns of the others wait for the store of the first host, deaf to signals, and are killed
    when their grace is over.
    """
    dead, cut_off, left = three.hosts
    run = Launched(three, "losses", "3x1", "--max-restarts", "1", "--host-timeout", "15")
    run.all_ready()
    three.power_off(dead)
    three.cut(cut_off)
    assert run.ended(120) == 1, run.said
    diagnosis = run.outcome["diagnosis"]
    assert diagnosis["code"] == "host-lost" and diagnosis["host"] in (cut_off.name, dead.name)
    assert f"{diagnosis['host']} was lost: nothing was heard of it for 15 s" in run.flat
    assert {note.partition(":")[0] for note in run.outcome["notes"]} == {cut_off.name, dead.name}
    three.nothing_left("losses", 90, (left, cut_off))
    assert f"start again without it: `--exclude {diagnosis['host']}`" in run.flat
    again = Launched(three, "again", "3x1", "--exclude", f"{dead.name},{cut_off.name}", script=("sees.py",))
    assert again.ended() == 0, again.said
