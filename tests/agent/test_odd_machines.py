"""Runs where the machine is odd: a clock that jumps, a pid that comes again, a /proc that hides, 10,000 open files."""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agent.guarded import ROOT, until
from tests.agent.plugin_runs import DEADLINE_S, RUN_ID, of_folder, within
from tests.conftest import skip
from tests.hosts.launching import clean_environment, ddplaunch

pytestmark = pytest.mark.slow

CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long long *ahead;
__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("CLOCK_AHEAD"), O_RDONLY);
    void *found = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) ahead = found;
    close(file);
}
int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = syscall(SYS_clock_gettime, clock, time);
    if (!failed && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += *ahead;
    return failed;
}
"""
BEATS = """
import os, sys, time
from pathlib import Path
while not Path("go").exists():
    Path("up-" + os.environ["RANK"]).write_text(str(time.time()))
    sum(range(100_000))
    time.sleep(0.02)
sys.exit(7)
"""


def test_a_clock_that_jumps_is_no_hang_and_no_time_limit_and_loses_nothing_of_the_end(tmp_path: Path) -> None:
    """Of torchrun, guard and ranks, in both directions; the shim stands for libfaketime, which is seldom there."""
    compiler = shutil.which("cc")
    if compiler is None:
        skip("no C compiler")
        return
    (tmp_path / "clock.c").write_text(CLOCK)
    shim, ahead = tmp_path / "clock.so", tmp_path / "ahead"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", shim, tmp_path / "clock.c"], check=True)
    ahead.write_bytes(struct.pack("q", 0))
    (tmp_path / "train.py").write_text(BEATS)
    words = ddplaunch("run", "2", "--device", "cpu", "--run-id", RUN_ID, "--hang-timeout", "30", "--timeout", "600")
    environment = clean_environment(LD_PRELOAD=str(shim), CLOCK_AHEAD=str(ahead))
    words += ["--", "train.py"]
    launch = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    seen = tmp_path / "up-1"
    until(seen.exists, "ranks run")
    for jump_s in (400 * 86400, 7200, -400 * 86400):
        with ahead.open("r+b") as file:
            file.write(struct.pack("q", jump_s))
        until(lambda jump_s=jump_s: abs(told(seen) - time.time() - jump_s) < 60, "ranks see it")  # type: ignore[misc]
        time.sleep(3)
        assert launch.poll() is None
    (tmp_path / "go").touch()
    _, err = launch.communicate(timeout=DEADLINE_S)
    assert launch.returncode == 7 and "hang" not in err, err
    assert "failed (exit status 7) after " in err and "after -" not in err
    outcome = json.loads((tmp_path / ".ddplaunch/runs" / RUN_ID / "outcome.json").read_text())
    (first, _) = outcome["attempts"][0]["ranks"]
    assert 0.0 < first["ended_s"] - first["started_s"] <= outcome["ended_s"] - outcome["started_s"] < 300.0
    listed = subprocess.run(ddplaunch("ps", "--json"), cwd=tmp_path, env=environment, capture_output=True, text=True)
    (run,) = [each for each in json.loads(listed.stdout)["runs"] if each["run_id"] == RUN_ID]
    assert (run["state"], run["exit_status"]) == ("failed", 7)
    within(lambda: not of_folder(tmp_path))


def told(file: Path) -> float:
    text = file.read_text()
    return float(text) if text else 0.0


MANY = """
from pathlib import Path
while not Path("go").exists(): print("more", flush=True)
"""


def test_ten_thousand_open_files_are_no_matter(tmp_path: Path) -> None:
    """They are inherited, so that every descriptor of the run has a number that select(2) does not take."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < 20_000:
        skip(f"{most} open files are allowed")
    (tmp_path / "train.py").write_text(MANY)
    opens = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (20000, int(sys.argv[1])))\n"
        "for _ in range(10000): os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)\n"
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    words = ddplaunch("run", "1", "--device", "cpu", "--", "train.py")
    launch = subprocess.Popen(
        [sys.executable, "-c", opens, str(most), *words],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launch.stdout and launch.stdout.read(50).startswith("more\nmore\n")
    assert len(list(Path(f"/proc/{launch.pid}/fd").iterdir())) > 10_000
    launch.stdout.close()
    (tmp_path / "go").touch()
    assert launch.stderr and "not recorded" not in launch.stderr.read() and launch.wait(DEADLINE_S) == 0
    within(lambda: not of_folder(tmp_path))


REUSED = """
import signal, subprocess, sys, time
from ddplaunch.agent.guard.loop import Loop
from ddplaunch.agent.guard.sweep import Owner, Sweeps, left_by
from ddplaunch.machine.processes.process_table import is_ending, own_processes, read_stat
from ddplaunch.machine.processes.stop_processes import remaining, send_signal
first = subprocess.Popen(["sleep", "100"], start_new_session=True)
seen = read_stat(first.pid)
owners = {first.pid: Owner(first.pid, seen)}
assert [one.pid for one in left_by(owners, workers_only=False)] == [first.pid]
time.sleep(0.05)
first.kill()
first.wait()
open("/proc/sys/kernel/ns_last_pid", "w").write(str(first.pid - 1))
other = subprocess.Popen(["sleep", "100"], start_new_session=True)
assert other.pid == first.pid, "the kernel gives the number again"
assert is_ending(seen) and not remaining([seen]) and left_by(owners, workers_only=False) == []
assert send_signal(seen, signal.SIGKILL) == "other"
sweeps = Sweeps(Loop().at)
sweeps.begin(lambda: left_by(owners, workers_only=False), None)
assert not sweeps.ended and other.poll() is None
print("held", other.pid)
"""

HIDDEN = """
import os, signal, subprocess, time
from ddplaunch.agent.guard.loop import Loop
from ddplaunch.agent.guard.sweep import Owner, Sweeps, left_by
from ddplaunch.machine.processes.process_table import own_processes, process_table, read_command, read_stat
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.machine.processes.orphans import orphans_in
from ddplaunch.hosts.local.end_orphans import adopts_orphans
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"], check=True)
root = os.getpid()
if os.fork():
    assert os.wait()[1] == 0
    raise SystemExit
os.setgroups([]); os.setgid(65534); os.setuid(65534)
assert read_stat(root) is None and read_command(root) == (), "what others run is hidden"
rank = subprocess.Popen(["/bin/sh", "-c", "sleep 100 & sleep 100"], start_new_session=True, cwd="/")
while (seen := read_stat(rank.pid)) is None: time.sleep(0.01)  # hidden until its program is loaded
owners = {rank.pid: Owner(rank.pid, seen)}
while len(left_by(owners, workers_only=False)) < 3: time.sleep(0.01)
table = process_table()
assert {one.uid for one in table.values()} == {65534} and runs_in(table) == () == orphans_in(table, adopts_orphans)
sweeps = Sweeps(Loop().at)
sweeps.begin(lambda: left_by(owners, workers_only=False), lambda _: 1.0)
while sweeps.running:
    sweeps.tick()
    rank.poll()
    time.sleep(0.01)
assert len(sweeps.ended) == 3 and rank.returncode == -signal.SIGTERM
print("held")
"""


@pytest.mark.root
@pytest.mark.parametrize(
    ("program", "apart"),
    [(REUSED, ["--pid", "--fork", "--mount-proc"]), (HIDDEN, ["--mount"])],
    ids=["reused", "hidden"],
)
def test_a_pid_that_comes_again_and_processes_that_are_hidden(program: str, apart: list[str]) -> None:
    words = ["unshare", *apart, sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0 and "held" in done.stdout, done.stderr
