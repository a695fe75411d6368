"""What the console shows of a real run: rank 0 as it is, others with a prefix, and the training whatever happens."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.plugin_runs import DEADLINE_S, RUN_ID, SCRIPT, Run, of_folder, on_terminal, within
from tests.hosts.launching import clean_environment, ddplaunch

pytestmark = pytest.mark.slow


def test_stdout_byte_for_byte_in_a_pipe(tmp_path: Path) -> None:
    run = Run(tmp_path, "bytes_")
    out, err = run.process.communicate(timeout=DEADLINE_S)
    assert run.process.returncode == 0
    expected = b"\xff\x00tty=0\r\n" + bytes(range(256)) * 8192 + b"unfinished"
    assert out == expected == run.file("rank-0.out") == run.file("rank-1.out")
    assert b"rank 0\xfe\n" in err and b"rank 1\xfe" not in err and run.file("rank-1.err") == b"rank 1\xfe\n"
    last = err.rstrip().rpartition(b"\n")[2]
    assert last.startswith(b"ddplaunch: done after ") and last.endswith(f"record in .ddplaunch/runs/{RUN_ID}".encode())
    assert run.outcome["state"] == "succeeded" and run.outcome["diagnosis"] is None


def test_order_of_stdout_and_stderr_in_one_pipe(tmp_path: Path) -> None:
    run = Run(tmp_path, "order", stderr=subprocess.STDOUT)
    assert run.end() == 0
    numbers = [int(line) for line in run.out.splitlines() if line.isdecimal()]
    assert numbers == list(range(500))
    assert not (run.record / "node-0" / "attempt-0" / "rank-0.err").exists()


#: Makes its standard input the terminal of its session, and the launch the job in its foreground.
CONTROLLED = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def shown_on_terminal(folder: Path, mode: str, sizes: Callable[[], tuple[int, int]], *awaited: bytes) -> bytes:
    """Return all that a launch showed on its terminal, of ``sizes()``; ranks look once all ``awaited`` was shown."""
    (folder / "train.py").write_text(SCRIPT)
    words = ddplaunch("run", "2", "--device", "cpu", "--run-id", RUN_ID, "--", "train.py", mode)

    def react(shown: bytes, terminal: int) -> None:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *sizes(), 0, 0))
        if all(each in shown for each in awaited):
            (folder / "looked").touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CI", raising=False)  # there, nobody waits for a first output
        patch.setenv("TERM", "xterm")
        status, shown = on_terminal([sys.executable, "-c", CONTROLLED, *words], folder, react)
    assert status == 0, shown
    return shown


def test_terminal(tmp_path: Path) -> None:
    resized = tmp_path / "running-0-0"
    shown = shown_on_terminal(tmp_path, "terminal", lambda: (44, 90) if resized.exists() else (33, 101), b"\x1b[K")
    before, rank_0, after = shown.partition(b"True True (101, 33)\x1b[1mbold\x1b[0m\rover\r\n")
    assert rank_0 and b"now [(90, 44)" in after, shown
    assert re.search(rb"\r\x1b\[Kddplaunch: \d+ s: (torchrun imports torch|no output yet)\r", before), "it passes"
    assert before.endswith(b"\r\x1b[J") and b"\x1b[K" not in after, "the first output replaces it"


def test_a_ranks_terminal_has_its_size_before_the_guard_gives_it_one(tmp_path: Path) -> None:
    code = "import os; from ddplaunch.agent.plugin.outlets import open_outlets; (one,) = open_outlets(['terminal'])"
    words = [sys.executable, "-c", f"{code}; print(os.get_terminal_size(one.write))"]

    def react(_: bytes, terminal: int) -> None:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))

    shown = on_terminal(words, tmp_path, react)[1]
    assert b"columns=101, lines=33" in shown


def test_between_its_lines_a_training_says_how_far_it_is(tmp_path: Path) -> None:
    line = b"\r\x1b[Jddplaunch: step 1/9, loss 0.5\r"
    shown = shown_on_terminal(tmp_path, "steps", lambda: (24, 80), line)
    begun, erased, rest = shown.partition(b"step 1/9 loss 0.5\r\n")[2].rpartition(b"\r\x1b[Jstep 2/9 loss 0.25\r\n")
    assert erased and set(begun.split(line)) == {b""}, "shown, again each second, and erased"
    assert rest.startswith(b"unfinished, ended\r\n"), "nothing comes into an unfinished line"
    record = tmp_path / ".ddplaunch" / "runs" / RUN_ID / "node-0" / "attempt-0"
    assert (record / "rank-0.out").read_bytes() == b"step 1/9 loss 0.5\nstep 2/9 loss 0.25\nunfinished, ended\n"


def test_ranks_outlive_guards_and_train_on_without_any(tmp_path: Path) -> None:
    run = Run(tmp_path, "released", stdout=subprocess.DEVNULL)
    run.wait_for("running-0-0", "running-1-0")
    killed: list[int | None] = [None]
    for number in range(4):
        within(lambda: run.guard() not in killed, run)
        killed.append(run.guard())
        if number == 2:  # the second that came in place of another records what the ranks print
            size = len(run.file("rank-0.out"))
            within(lambda size=size: len(run.file("rank-0.out")) > size, run)  # type: ignore[misc]
        assert killed[-1] is not None
        os.kill(killed[-1], signal.SIGKILL)
    within(lambda: run.guard() is None, run)
    time.sleep(0.5)  # no fifth one comes
    assert run.guard() is None
    (tmp_path / "go").touch()
    assert run.end() == 0
    assert run.file("rank-0.out").startswith(b"before\nxxxx")
    assert "ranks write to the console: the process that records it died several times" in run.err


def test_without_capture_it_is_torchruns_own_way(tmp_path: Path) -> None:
    run = Run(tmp_path, "missing", "--no-capture")
    assert run.end() == 1
    assert "ChildFailedError" in run.err and "ddplaunch: failed" not in run.err
    assert [each.name for each in run.record.iterdir() if not each.name.startswith(".lock")] == ["run.json"]


def test_plugin_that_cannot_work_leaves_plain_torchrun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--logs-specs=ddplaunch"]
    environ = clean_environment(DDPLAUNCH_AGENT="no json")
    done = subprocess.run(
        [*command, "train.py", "order"], cwd=tmp_path, env=environ, capture_output=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0
    assert b"ddplaunch: output is not recorded" in done.stderr and done.stdout.count(b"\n") == 500
    within(lambda: not of_folder(tmp_path))
