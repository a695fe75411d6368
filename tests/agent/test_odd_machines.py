"""A run on a machine whose clock jumps."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

from tests.agent.guarded import until
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
