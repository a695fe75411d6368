"""A clock that is set back while a run goes on: its outcome is found all the same, and took as long as it did."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.hosts.launching import clean_environment, ddplaunch

#: For every program that loads it, the clock is an hour back as soon as the file exists that SET_BACK names.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *at) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, at);
    const char *name = getenv("SET_BACK");
    if (id == CLOCK_REALTIME && name && access(name, F_OK) == 0)
        at->tv_sec -= 3600;
    return failed;
}
"""
TRAIN = """
import pathlib, sys, time
before = time.time()
time.sleep(1)
pathlib.Path("back").touch()
print("set back" if time.time() < before else "not set back", flush=True)
sys.exit(7)
"""


@pytest.mark.slow
def test_a_clock_that_is_set_back_during_a_run_loses_nothing_of_its_end(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc, clang) to build a clock")
    (tmp_path / "clock.c").write_text(CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "clock.so", "clock.c", "-ldl"], cwd=tmp_path, check=True)
    (tmp_path / "train.py").write_text(TRAIN)
    clock = {"LD_PRELOAD": str(tmp_path / "clock.so"), "SET_BACK": str(tmp_path / "back")}

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        environment = clean_environment(NO_COLOR="1", **clock)
        return subprocess.run(
            ddplaunch(*words), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    ran = typed("run", "1", "--device", "cpu", "--no-checks", "--run-id", "back", "--", "train.py")
    assert (ran.returncode, ran.stdout) == (7, "set back\n"), ran.stderr
    assert "failed (exit status 7) after " in ran.stderr and "after -" not in ran.stderr
    outcome = json.loads((tmp_path / ".ddplaunch/runs/back/outcome.json").read_text())
    assert 1.0 <= outcome["ended_s"] - outcome["started_s"] < 300.0
    (rank,) = outcome["attempts"][0]["ranks"]
    assert 0.0 < rank["ended_s"] - rank["started_s"] < 300.0
    (run,) = [each for each in json.loads(typed("ps", "--json").stdout)["runs"] if each["run_id"] == "back"]
    assert (run["state"], run["exit_status"]) == ("failed", 7)
