"""The `ddplaunch` command as users start it, without the variables of a launcher, and the service of a host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddplaunch.checks.known_variables import GENERAL_PREFIXES, PREFIXES

#: What an outer launcher, a user or an image may have left; the launches of the tests decide it anew.
_LEFT = ("PET_", "DDPLAUNCH_", "SLURM_", "PYTEST_", *PREFIXES, *GENERAL_PREFIXES)
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
#: Options of a launch of which no warning is expected, also where there is one CPU.
ANYWHERE = ("--device", "cpu", "--ignore", "cpus-short")


def ddplaunch(*words: str | bytes) -> list[str]:
    """Return the command line of this interpreter's ddplaunch."""
    return [sys.executable, "-m", "ddplaunch", *map(os.fsdecode, words)]


def clean_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without traces of a launch, with ``more``."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_LEFT) and name not in _NAMES}
    return {**kept, **more}


def run_to_end(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], deadline_s: float
) -> tuple[int | None, str]:
    """Run ``words`` in ``folder``; return the exit status and what stdout and stderr said.

    After ``deadline_s`` its process group is killed, and the status is None.
    """
    with subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="backslashreplace",
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=deadline_s)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]


def run_and_read(
    words: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, given: str = "", **more: Any
) -> subprocess.CompletedProcess[str]:
    """Return how ``words`` ended in ``folder``, with what they printed; ``given`` is what they can read."""
    limits: dict[str, Any] = {"timeout": 300, "check": False, **more}
    return subprocess.run(words, cwd=folder, env=environment, input=given, capture_output=True, text=True, **limits)


FINISH_S = 150
#: What ssh starts on a host.
SERVICE = [sys.executable, "-m", "ddplaunch.cli.hosts.serve"]


def stand_in(folder: Path, program: str) -> str:
    """Return the path of an interpreter that runs this shell program, whatever it is told to run."""
    path = write_script(folder / "python", ["#!/bin/sh", program])
    path.chmod(0o755)
    return str(path)


def write_script(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("\n".join([*lines, ""]))
    return path


def finish(running: Sequence[subprocess.Popen[str]], status: int) -> list[str]:
    """Wait until all have ended with ``status``; return what they said. Those that do not end are killed.

    The deadline grows with the load of the machine.
    """
    patience_s = FINISH_S * max(1.0, os.getloadavg()[0] / (2 * (os.cpu_count() or 1)))
    end = time.monotonic() + patience_s
    said = []
    for process in running:
        try:
            said.append(process.communicate(timeout=max(1.0, end - time.monotonic()))[0])
        except subprocess.TimeoutExpired:
            process.kill()
            said.append(f"not done after {patience_s:.0f} s: {process.communicate()[0]}")
    assert [process.returncode for process in running] == [status] * len(running), "\n---\n".join(said)
    return said
