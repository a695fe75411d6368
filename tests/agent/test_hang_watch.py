"""Ranks that stand still: measured from outside, named, reported once or ended; and ones that only take long."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.agent.guard.hang_watch import Look, Usage, idle, shares
from ddplaunch.agent.rank_site import taking_part
from ddplaunch.values.finding import ExitStatus
from tests.agent.guarded import Guarded, until
from tests.agent.plugin_runs import Run, of_folder
from tests.hosts.launching import ANYWHERE

# What moves


def test_a_rank_stands_still_below_a_twentieth_of_a_core() -> None:
    def used(second: float, shown: float = 0.0) -> Usage:
        cpu_s = {0: 0.06 * second + shown, 1: 0.04 * second + shown, 2: shown}
        return Usage(second, cpu_s, {0: 0, 1: 0, 2: int(second * (1 << 20))})

    looks = [Look(used(at, at), (), used(at + 1, at + 5)) for at in (0.0, 5.0, 10.0)]  # each costs all 5 s of CPU
    between = shares(looks)
    assert idle(between) == {1}  # 0 computes, 2 reads a file
    assert between == pytest.approx({0: 0.06, 1: 0.04, 2: 1.0})
    assert shares(looks[:1]) == {}


# A guard and ranks without torch; the library that they wait in only looks like torch's

WAITS = "import distributed_c10d, time\ntime.sleep(0.3)\ndistributed_c10d.all_reduce()\n"
SLEEPS = "import time\ntime.sleep(120)\n"
STOPS = "import os\nos.kill(os.getpid(), 19)\n"
BROADCASTS = WAITS.replace("all_reduce", "broadcast")
THREAD = """
import queue, threading
def load():
    raise ValueError("shard 7 is broken")
threading.Thread(target=load, name="loader").start()
queue.Queue().get()
"""
ENDED_THREAD = "a thread of rank 1 was ended by ValueError: shard 7 is broken: "
PRINTS = "import time\nfor each in range(600):\n    print(each, flush=True)\n    time.sleep(0.1)\n"


@contextmanager
def guarded(
    folder: Path, programs: Sequence[str], *, hang_timeout_s: float = 1.0, **settings: Any
) -> Iterator[tuple[Guarded, Path]]:
    """A guard that watches, and its console's stderr."""
    library = folder / "site-packages" / "torch" / "distributed"
    library.mkdir(parents=True)
    waits = "\ndef {}():\n    threading.Event().wait()\n".format
    (library / "distributed_c10d.py").write_text(f"import threading{waits('all_reduce')}{waits('broadcast')}")
    said = folder / "said"
    with (
        said.open("wb") as err,
        Guarded(folder, subprocess.DEVNULL, err, hang_timeout_s=hang_timeout_s, observe=False, **settings) as one,
    ):
        one.environment.update(taking_part({"PYTHONPATH": str(library)}, DDPLAUNCH_STACKS="1"))
        one.attempt(programs)
        yield one, said


HERE = "print('here', flush=True)\n"  # a busy machine takes seconds to start it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suspect", "code", "words"),
    [
        (HERE + SLEEPS, "collective-timeout", ["rank 1 is at <string>:", "rank 1 sleeps"]),
        (BROADCASTS, "collective-mismatch", ["ranks 0, 2 have waited in all_reduce", "rank 1 has waited in broadcast"]),
        (THREAD, "collective-timeout", ["rank 1 is in get at <string>:6", ENDED_THREAD]),
        (
            HERE + STOPS,
            "collective-timeout",
            ["rank 1 is stopped by a signal, and ranks 0, 2 have waited", "`kill -CONT "],
        ),
    ],
    ids=["sleeps", "another order", "a thread", "stopped"],
)
def test_the_rank_that_does_not_come_is_named_once(tmp_path: Path, suspect: str, code: str, words: list[str]) -> None:
    with guarded(tmp_path, [WAITS, suspect, WAITS], hang_timeout_s=2.0) as (one, said):
        until(lambda: "  fix: " in said.read_text(), "the hang is reported")
        if suspect.endswith(SLEEPS):
            time.sleep(2.5)  # another time-out
        text = " ".join(said.read_text().split())
        assert text.count(f"warning[{code}]: ") == 1 and all(each in text for each in words), text
        assert code == "collective-mismatch" or "ranks 0, 2 have waited in all_reduce at <string>:3" in text, text
        (stacks,) = (one.directory / "node-0").glob("stacks-*.txt")
        assert stacks.name in text and "in all_reduce" in stacks.read_text()
        assert all(process.poll() is None for process in one.ranks.values())
        assert [each.code for each in one.end("signal", signal=2)[1].attempts[0].hung] == [code]


@pytest.mark.slow
def test_a_rank_that_prints_may_be_waited_for(tmp_path: Path) -> None:
    """One that computes is waited for in ``test_what_makes_progress_lives``."""
    with guarded(tmp_path, [WAITS, PRINTS]) as (one, said):
        time.sleep(3)  # three time-outs; nothing is to happen in them
        assert said.read_text() == ""
        assert not list((one.directory / "node-0").glob("stacks-*.txt"))


# Real runs

SCRIPT = r"""
import os, sys, time, traceback
import torch, torch.distributed as dist
from torch.utils.data import DataLoader

mode = sys.argv[1]
COMPUTES = "import time\nfor each in range(30): sum(range(1_000_000)), time.sleep(0.1)"  # for 4 s at least
dist.init_process_group("gloo")
rank = dist.get_rank()

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if mode == "loader" and rank == 1 and index == 3:
            stuck()
        return index

def stuck():
    time.sleep(600)

def reduce():
    dist.all_reduce(torch.ones(4))

reduce()
if mode == "loader":
    for _ in DataLoader(Samples(), num_workers=2):
        reduce()
elif mode == "slow":
    for _ in range(5):  # a second for each, almost no CPU, and nothing but the all-reduce shows that ranks get on
        time.sleep(1)
        reduce()
    class Slow(torch.utils.data.Dataset):  # and here nothing but steps and batches
        def __len__(self):
            return 5
        def __getitem__(self, index):
            time.sleep(1)
            return torch.ones(2)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(Slow()):
        model(batch).sum().backward()
        optimizer.step()
    if rank == 0:  # now the other waits for this one
        until = time.monotonic() + 4.5
        while time.monotonic() < until:
            sum(range(1_000_000))
            time.sleep(0.1)
            with open(f"kernel-{time.monotonic_ns()}.cpp", "w") as kernel:
                kernel.write("int main() {}")
        import subprocess
        subprocess.run([sys.executable, "-c", COMPUTES], check=True)
elif mode == "timeout":
    from datetime import timedelta
    impatient = dist.new_group(timeout=timedelta(seconds=2))
    if rank == 1:
        stuck()
    try:
        dist.all_reduce(torch.ones(4), group=impatient)
    except RuntimeError:
        traceback.print_exc()
        time.sleep(5)  # before torchrun ends the other rank, whose stack is taken meanwhile, on a busy machine too
        os._exit(1)
dist.barrier()
os._exit(0)  # gloo's threads now and then abort an interpreter that ends
"""


class Ended(Run):
    """One run of SCRIPT that has ended."""

    def __init__(self, folder: Path, mode: str, *options: str) -> None:
        super().__init__(folder, mode, *ANYWHERE, *options, script=SCRIPT)
        self.status = self.end()
        self.diagnosis: dict[str, Any] = self.outcome["diagnosis"] or {}


STOPPING = ("--hang-timeout", "3s", "--on-hang", "stop", "--grace", "2")


@pytest.mark.slow
def test_a_data_loader_whose_worker_hangs(tmp_path: Path) -> None:
    run = Ended(tmp_path, "loader", *STOPPING)
    assert run.status == run.outcome["exit_status"] == ExitStatus.TIMED_OUT, run.err
    assert (run.outcome["state"], run.diagnosis["code"]) == ("failed", "collective-timeout")
    assert run.diagnosis["rank"] == run.outcome["first_failed_rank"] == 1 and "stopped (exit status 124)" in run.err
    assert "rank 1 is in DataLoader.__next__ at train.py" in run.diagnosis["what"]
    assert "in stuck" in run.diagnosis["why"]  # where the worker is
    (stacks,) = (run.record / "node-0").glob("stacks-*.txt")
    assert "DataLoader worker of rank 1" in stacks.read_text()
    until(lambda: not of_folder(tmp_path), "nothing is left")


@pytest.mark.slow
def test_what_makes_progress_lives(tmp_path: Path) -> None:
    """By collectives, by steps and batches, or by files, with less CPU than a twentieth of a core and in silence.

    So does a program that a rank has started and that computes. What one rank computes while the others wait for it may
    take any time.
    """
    run = Ended(tmp_path, "slow", *STOPPING)
    warned = set(re.findall(r"warning\[([\w-]+)\]", run.err)) - {"gradients-not-averaged"}  # as steps alone show it
    assert (run.status, run.outcome["state"], warned) == (0, "succeeded", set()), run.err


@pytest.mark.slow
def test_a_collective_that_timed_out_names_the_missing_rank_and_its_line(tmp_path: Path) -> None:
    run = Ended(tmp_path, "timeout", "--stacks", "--grace", "2")
    assert (run.status, run.diagnosis["code"], run.diagnosis["rank"]) == (1, "collective-timeout", 1), run.err
    assert "all_reduce" in run.diagnosis["what"], run.err
    assert "rank 1 was at train.py:" in run.diagnosis["why"] and "in stuck; rank 1 sleeps" in run.diagnosis["why"]
    assert any(each["text"].startswith("rank 1: train.py:") for each in run.diagnosis["evidence"])
