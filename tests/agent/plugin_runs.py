"""Starts `ddplaunch run` on a script that needs no torch, and reads what is left of it."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.machine.processes.process_table import is_ending, pids, read_stat
from tests.agent.guarded import SLOWNESS
from tests.hosts.launching import clean_environment, ddplaunch

DEADLINE_S = 120 * SLOWNESS
#: Launches of other tests, which run at the same time in other processes, are not to be taken for this one.
RUN_ID = f"r{os.getpid()}"

#: What a rank does is its first argument. It marks that it runs by a file, so that tests need no sleep.
SCRIPT = r"""
import multiprocessing, os, signal, sys, time
from pathlib import Path

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def say(text, stream=sys.stdout):
    stream.write(text + "\n")
    stream.flush()

def wait():
    Path(f"running-{rank}-{attempt}").write_text(str(os.getpid()))
    time.sleep(1000)

def exception():
    if rank == 1:
        raise ValueError("the cause")
    wait()

def workers():
    for _ in range(2):
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)).start()
    wait()

def second():
    say(f"rank {rank}, attempt {attempt}")
    if attempt == 0 and rank == 0:
        wait()
    while attempt == 0 and not Path("running-0-0").exists():
        time.sleep(0.01)
    if attempt == 0:
        raise RuntimeError("only once")

def missing():
    import not_to_be_found

def missing_soon():
    Path(f"running-{rank}-{attempt}").write_text(str(os.getpid()))
    while not Path("go").exists():
        time.sleep(0.02)
    missing()

def bytes_():
    out, err = sys.stdout.buffer, sys.stderr.buffer
    out.write(b"\xff\x00tty=%d\r\n" % os.isatty(1) + bytes(range(256)) * 8192 + b"unfinished")
    err.write(b"rank %d\xfe\n" % rank)

def order():
    for number in range(500):
        os.write(1 + number % 2, b"%d\n" % number)

def terminal():
    if rank:
        return
    while not Path("looked").exists():
        time.sleep(0.02)
    say(f"{os.isatty(1)} {os.isatty(2)} {tuple(os.get_terminal_size())}\x1b[1mbold\x1b[0m\rover")
    resized = []
    signal.signal(signal.SIGWINCH, lambda *_: resized.append(tuple(os.get_terminal_size())))
    Path("running-0-0").write_text("")
    until = time.monotonic() + 30
    while not resized and time.monotonic() < until:
        time.sleep(0.05)
    say(f"now {resized}", sys.stderr)

def steps():
    if rank:
        return
    say("step 1/9 loss 0.5")
    while not Path("looked").exists():
        time.sleep(0.02)
    sys.stdout.write("step 2/9 loss 0.25\nunfinished")
    sys.stdout.flush()
    time.sleep(2.5)  # longer than a line takes to come
    say(", ended")

def released():
    say("before")
    Path(f"running-{rank}-{attempt}").write_text(str(os.getpid()))
    while not Path("go").exists():
        say("x" * 4000)
        time.sleep(0.02)
    say("after")

globals()[sys.argv[1]]()
"""


class Run:
    """One launch in ``folder``, which may still go on."""

    def __init__(self, folder: Path, mode: str, *options: str, script: str = SCRIPT, **changes: Any) -> None:
        self.folder = folder
        (folder / "train.py").write_text(script)
        words = ddplaunch("run", "2", "--device", "cpu", "--run-id", RUN_ID, *options, "--", "train.py", mode)
        environment = clean_environment(**{**{"NO_COLOR": "1", "COLUMNS": "200"}, **changes.pop("env", {})})
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        self.process = subprocess.Popen(words, cwd=folder, env=environment, **{**streams, **changes})
        self.record = folder / ".ddplaunch" / "runs" / RUN_ID
        self.out = self.err = ""

    def wait_for(self, *names: str) -> None:
        """Wait until the files ``names`` exist in the folder."""
        within(lambda: all((self.folder / name).exists() for name in names), self)

    def end(self) -> int:
        """Wait for the end, keep what was printed, and return the exit status."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        self.out, self.err = (text.decode("utf-8", "backslashreplace") if text else "" for text in (out, err))
        for path in self.record.glob("node-*/launcher.err"):  # another one would have gone on without a word
            assert b"the guard failed" not in path.read_bytes(), path.read_text()
        return self.process.returncode

    @property
    def outcome(self) -> dict[str, Any]:
        """What `outcome.json` says."""
        value: dict[str, Any] = json.loads((self.record / "outcome.json").read_text())
        return value

    def file(self, name: str, attempt: int = 0) -> bytes:
        """A rank's file in the record."""
        return (self.record / "node-0" / f"attempt-{attempt}" / name).read_bytes()

    def guard(self) -> int | None:
        """The guard's pid, None while there is none."""
        for pid in children(self.process.pid):
            with suppress(OSError):  # it ended meanwhile
                if Path(f"/proc/{pid}/comm").read_text() == "ddplaunch-guard\n":
                    return pid
        return None

    def announced(self) -> int:
        """Wait until the guard knows the ranks, as its table of processes shows; return its pid."""
        within(lambda: self.guard() is not None and (self.record / "node-0" / "processes.json").exists(), self)
        guard = self.guard()
        assert guard is not None
        return guard


def on_terminal(
    words: Sequence[str], folder: Path, react: Callable[[bytes, int], None] = lambda shown, terminal: None
) -> tuple[int, bytes]:
    """Run ``words`` in ``folder`` on a terminal of its own; return the exit status and all that it showed.

    ``react`` is told before the start, and then several times a second, what was shown so far, and may write to the
    descriptor.
    """
    master, slave = pty.openpty()
    react(b"", master)  # a terminal has its size before a program starts there
    ends = {"stdin": slave, "stdout": slave, "stderr": slave}
    env = clean_environment(NO_COLOR="1")
    launch = subprocess.Popen(words, cwd=folder, env=env, start_new_session=True, **ends)  # type: ignore[call-overload]
    os.close(slave)
    shown = b""
    until = time.monotonic() + DEADLINE_S
    try:
        while time.monotonic() < until:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    shown += os.read(master, 1 << 16)
                except OSError:
                    break
            react(shown, master)
        else:
            pytest.fail(f"it has not ended on the terminal within {DEADLINE_S} s: {shown.decode(errors='replace')}")
        return launch.wait(DEADLINE_S), shown
    finally:
        launch.kill()
        launch.wait()
        os.close(master)


def within(true: Callable[[], bool], run: Run | None = None, deadline_s: float = DEADLINE_S) -> None:
    """Wait until ``true()``; fail when the run ends before, or at the deadline."""
    until = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < until, "waited in vain"
        assert run is None or run.process.poll() is None, run.process.communicate() if run else ""
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """The children of a process whose parent it still is."""
    return [one.pid for one in map(read_stat, pids()) if one is not None and one.parent == pid and one.alive]


def of_folder(folder: Path) -> list[int]:
    """The pids of every process whose working directory is ``folder``: ranks, their workers, torchrun and guard.

    One that is about to end does not count: its pipes may be closed a moment before it is gone.
    """
    found = []
    for one in map(read_stat, pids()):
        with suppress(OSError):
            if one is not None and not is_ending(one) and Path(f"/proc/{one.pid}/cwd").readlink() == folder:
                found.append(one.pid)
    return found
