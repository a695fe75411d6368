"""A rank that saves when it is told to end has saved, whoever tells it, and also where it has DataLoader workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.agent.plugin_runs import DEADLINE_S, of_folder, within
from tests.hosts.launching import clean_environment, ddplaunch

pytestmark = pytest.mark.slow

#: Finishes its step after the signal, which needs further batches, and then saves, which takes a while. Rank 1 fails
#: in the first attempt once both run, if it is told to.
TRAIN = """
import os, pathlib, signal, sys, time
rank, attempt = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
workers, fails = int(sys.argv[1]), sys.argv[2:] == ["fails"]
if attempt == 1:
    sys.exit(0)
import torch
from torch.utils.data import DataLoader, Dataset

class Endless(Dataset):
    def __len__(self):
        return 10**9
    def __getitem__(self, index):
        return index

here = pathlib.Path.cwd()
told_at = None

def ask(number, frame):
    global told_at
    told_at = told_at or time.monotonic()

signal.signal(signal.SIGTERM, ask)
signal.signal(signal.SIGINT, ask)
for step, batch in enumerate(DataLoader(Endless(), batch_size=2, num_workers=workers)):
    if step == 2:
        (here / f"up-{rank}-{attempt}").write_text(str(os.getpid()))
    time.sleep(0.02)
    if fails and rank == "1" and (here / "up-0-0").exists() and (here / "up-1-0").exists():
        os._exit(5)
    if told_at and time.monotonic() > told_at + 1:
        torch.save({"step": step}, here / f"saved-{rank}-{attempt}.pt")
        os._exit(0)
"""


def by_stop(launch: subprocess.Popen[bytes], folder: Path) -> None:
    subprocess.run(ddplaunch("stop"), cwd=folder, env=clean_environment(), capture_output=True, check=True)


def by_ctrl_c(launch: subprocess.Popen[bytes], folder: Path) -> None:
    os.killpg(launch.pid, signal.SIGINT)


def by_the_launchers_death(launch: subprocess.Popen[bytes], folder: Path) -> None:
    launch.kill()


def to_every_process(launch: subprocess.Popen[bytes], folder: Path) -> None:
    """As a batch system does, workers included."""
    for pid in of_folder(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def launched(folder: Path, *options: str, words: tuple[str, ...]) -> subprocess.Popen[bytes]:
    (folder / "train.py").write_text(TRAIN)
    command = ddplaunch("run", "2", "--device", "cpu", *options, "--", *words)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=folder, env=clean_environment(), start_new_session=True, **pipes)  # type: ignore[call-overload,no-any-return]


def both_are_up(folder: Path) -> bool:
    return all((folder / f"up-{rank}-0").exists() for rank in range(2))


def assert_saved(launch: subprocess.Popen[bytes], folder: Path, *names: str) -> str:
    """Wait for the end, and return what was said."""
    output, _ = launch.communicate(timeout=DEADLINE_S)
    within(lambda: not of_folder(folder))  # the guard outlives a launcher that was killed
    assert sorted(path.name for path in folder.glob("saved-*")) == sorted(names), output.decode()
    assert "DataLoader worker" not in output.decode()
    return output.decode()


#: Each sender with a start: cold and warm ranks keep their workers by other code.
WAYS = [(by_stop, "warm"), (by_ctrl_c, "warm"), (by_the_launchers_death, "warm"), (to_every_process, "cold")]


@pytest.mark.parametrize(("send", "start"), WAYS, ids=lambda one: getattr(one, "__name__", str(one)))
def test_ranks_have_saved(send: Callable[[subprocess.Popen[bytes], Path], None], start: str, tmp_path: Path) -> None:
    launch = launched(tmp_path, "--start", start, words=("train.py", "2"))
    within(lambda: both_are_up(tmp_path))
    send(launch, tmp_path)
    said = assert_saved(launch, tmp_path, "saved-0-0.pt", "saved-1-0.pt")
    if send is by_ctrl_c:
        waited, ended = [line for line in said.splitlines() if line.startswith(("ddplaunch:", "error"))][-2:]
        assert waited == "ddplaunch: waiting up to 30 s for 2 ranks to save; Ctrl-C again kills them"
        assert ended.startswith("ddplaunch: interrupted (exit status 130) after ") and launch.returncode == 130
        assert len(said.partition(ended)[2].split()) == 1, "nothing but the record is named behind it"


def test_ranks_have_saved_when_the_time_is_up_and_it_is_said_where_they_were(tmp_path: Path) -> None:
    for limit_s in (12, 60, 180, 540):  # on a busy machine ranks take long to begin
        folder = tmp_path / str(limit_s)
        folder.mkdir()
        launch = launched(folder, "--timeout", f"{limit_s}s", "--run-id", f"up-{limit_s}", words=("train.py", "2"))
        launch.wait(limit_s + DEADLINE_S)
        if both_are_up(folder):
            break
    assert_saved(launch, folder, "saved-0-0.pt", "saved-1-0.pt")
    outcome = json.loads((folder / f".ddplaunch/runs/up-{limit_s}/outcome.json").read_text())
    assert launch.returncode == outcome["exit_status"] == 124
    assert (outcome["diagnosis"]["code"], outcome["state"]) == ("time-limit", "terminated")
    assert "train.py:" in json.dumps(outcome["diagnosis"])


def test_a_rank_has_saved_before_all_start_again(tmp_path: Path) -> None:
    launch = launched(tmp_path, "--max-restarts", "1", words=("train.py", "2", "fails"))
    assert_saved(launch, tmp_path, "saved-0-0.pt")
    assert launch.returncode == 0, "the second attempt ended well"


def test_what_a_shell_script_starts_has_saved_also_when_sigterm_comes_twice(tmp_path: Path) -> None:
    """The shell is the rank here, and ends at once; Slurm sends the signal twice."""
    (tmp_path / "rank.sh").write_text('"$1" train.py 2\n:\n')
    launch = launched(tmp_path, "--run-id", "twice", words=("bash", "rank.sh", sys.executable))
    within(lambda: both_are_up(tmp_path))
    launch.terminate()
    time.sleep(0.3)
    launch.terminate()
    said = assert_saved(launch, tmp_path, "saved-0-0.pt", "saved-1-0.pt")
    outcome = json.loads((tmp_path / ".ddplaunch/runs/twice/outcome.json").read_text())
    assert launch.returncode == 143 and outcome["state"] == outcome["diagnosis"]["code"] == "terminated"
    assert "SIGTERM" in said and "Traceback" not in said
