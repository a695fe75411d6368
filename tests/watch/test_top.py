"""``ddplaunch top`` on live processes and on a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from ddplaunch.machine.files import boot_id
from ddplaunch.machine.processes.process_table import read_process
from tests.cli.cli_calls import Call, spawn
from tests.machine.fake_nvml import FakeNvml
from tests.records.fake_runs import DEADLINE_S, FakeRun, StartRun, wait_for
from tests.records.fake_runs import record as write_record


def live(start_run: StartRun, folder: Path, **settings: str) -> tuple[FakeRun, Path]:
    """Start a run of two ranks, with a record as a real one leaves it."""
    place = write_record(folder / ".ddplaunch", "to-be-renamed")
    run = start_run("top", cwd=folder, **settings)
    place = place.rename(place.parent / run.run_id)
    processes = [read_process(pid) for pid in run.rank_pids]
    ranks = [
        {"rank": i, "local_rank": i, "pid": p.pid, "start_time": p.start_ticks} for i, p in enumerate(processes) if p
    ]
    (place / "node-0" / "attempt-0").mkdir(parents=True)
    table = {"schema": 1, "run_id": run.run_id, "host": os.uname().nodename, "boot_id": boot_id(), "attempt": 0}
    (place / "node-0" / "processes.json").write_text(json.dumps({**table, "ranks": ranks}))
    return run, place


def test_one_sample_as_json_and_as_a_table(start_run: StartRun, call: Call, folder: Path) -> None:
    run, place = live(start_run, folder)
    (place / "node-0" / "attempt-0" / "rank-1.out").write_text("step 12\n")
    said = call("top", run.run_id, "--json", "--count", "1", "--interval", "0.1")
    value = json.loads(said.out)
    assert said.status == 0 and (value["schema"], value["run_id"], value["findings"]) == (2, run.run_id, [])
    assert [(rank["rank"], rank["pid"], rank.get("step")) for rank in value["ranks"]] == [
        (0, run.rank_pids[0], None),
        (1, run.rank_pids[1], 12),
    ]
    said = call("top", "--count", "2", "--interval", "0.1")
    assert said.out.count("\n  RANK ") == 2 and run.run_id in said.out and "\x1b" not in said.out
    assert re.search(r"^     1    12 ", said.out, re.MULTILINE)


@pytest.mark.slow
def test_gpus_through_the_real_pynvml(start_run: StartRun, folder: Path, fake_nvml: FakeNvml) -> None:
    run, _ = live(start_run, folder)
    first, second = run.rank_pids
    state = [f"0 process {first} 30000", f"0 process {second} 400", f"1 process {second} 30500", "1 throttle 0x40"]
    state += ["* utilization 97", "1 power 350 700", "1 clock 1200 1980", "2 every 15"]
    environment = fake_nvml.environment(3, state)
    said = spawn(["top", run.run_id, "--json", "--count", "1"], folder, environment)
    value = json.loads(said.stdout)
    assert [rank["gpu"] for rank in value["ranks"]] == [0, 1]
    hot = value["gpus"][1]
    assert (hot["power_w"], hot["clock_mhz"], hot["slowdowns"]) == (350.0, 1200, ["hardware thermal slowdown"])
    assert value["gpus"][0]["ranks"] == [0, 1] and value["gpus"][2]["fault"] == "GPU is lost"
    broken = spawn(["top", run.run_id, "--json", "--count", "1"], folder, fake_nvml.environment(1, ["system init 18"]))
    assert json.loads(broken.stdout)["no_gpus"] == "NVML does not start: Driver/library version mismatch"


# A terminal


class Terminal:
    """A process on a pseudo-terminal of 80 by 24."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(Path(__file__).parents[2])}
            os.execve(sys.executable, [sys.executable, "-m", "ddplaunch", *words], environment)
        self.resize(24, 80)
        self.modes = termios.tcgetattr(self.master)
        self.output = b""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, wanted: bytes, since: int = 0) -> None:
        end = time.monotonic() + DEADLINE_S
        while wanted not in self.output[since:]:
            assert time.monotonic() < end, self.output
            if select.select([self.master], [], [], 0.1)[0]:
                self.output += os.read(self.master, 1 << 16)

    def end(self) -> int:
        """Read to the end; return the exit status, and hold that the terminal is as it was."""
        while True:
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:  # EIO: nobody has it open any more
                break
            if not data:
                break
            self.output += data
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert self.output.rindex(b"\x1b[?1049l") > self.output.rindex(b"\x1b[?1049h")
        assert self.output.rindex(b"\x1b[?25h") > self.output.rindex(b"\x1b[?25l")
        os.close(self.master)
        return status


@pytest.fixture
def terminal(start_run: StartRun, folder: Path) -> Iterator[Terminal]:
    run, _ = live(start_run, folder)
    terminal = Terminal(["top", run.run_id, "--interval", "0.2"], folder)
    terminal.until(b"q quit")
    yield terminal
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(terminal.pid, signal.SIGKILL)
        os.waitpid(terminal.pid, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "status"), [("\x03", 0), ("xq", 0), ("TERM", 143), ("HUP", 129)])
def test_it_follows_the_window_and_leaves_the_terminal_as_it_was(terminal: Terminal, way: str, status: int) -> None:
    assert not termios.tcgetattr(terminal.master)[3] & termios.ECHO
    terminal.resize(30, 132)
    os.write(terminal.master, b"\x1a")  # Ctrl-Z does nothing
    for drawn in (b"\x1b[H", b"q quits"):
        terminal.until(drawn, len(terminal.output))
    if way.isupper():
        os.kill(terminal.pid, getattr(signal, f"SIG{way}"))
    else:
        os.write(terminal.master, way.encode())
    terminal.until(b"\x1b[?1049l")
    assert wait_for(lambda: _restored(terminal))
    assert terminal.end() == status


def _restored(terminal: Terminal) -> bool:
    try:
        return bool(termios.tcgetattr(terminal.master) == terminal.modes)
    except termios.error:  # it has gone already
        return True


@pytest.mark.slow
def test_the_last_table_stays_when_the_run_ends(start_run: StartRun, folder: Path) -> None:
    run, place = live(start_run, folder)
    terminal = Terminal(["top", run.run_id, "--interval", "0.2"], folder)
    terminal.until(b"q quits")
    counted = Terminal(["top", run.run_id, "--count", "1"], folder)
    assert counted.end() == 0
    assert "running" in (left := counted.output.rpartition(b"\x1b[?1049l")[2].decode()) and "RANK" in left
    shutil.rmtree(place)  # the record goes first, the view stays
    terminal.until(b"RANK", len(terminal.output))
    run.end()
    assert terminal.end() == 0
    left = terminal.output.rpartition(b"\x1b[?1049l")[2].decode()
    assert "at the end" in left and "RANK" in left and f"{run.run_id} has ended" in left
