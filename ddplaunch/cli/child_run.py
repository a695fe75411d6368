"""A ``ddplaunch run`` as a child of this process: `scale`, `fit` and `doctor --comm` start one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ddplaunch.cli.streams import StartReport, asked, read_told
from ddplaunch.hosts.local.stop_run import stop_run
from ddplaunch.hosts.slurm.programs import end_step
from ddplaunch.records.json_files import read_object
from ddplaunch.records.run_states import live_run
from ddplaunch.values.variable_names import own_command

_LONGER_S = 15.0  # torchrun itself kills the ranks after the grace


def start_run(
    words: Sequence[str],
    report_path: Path,
    stdout: int = subprocess.DEVNULL,
    *,
    inside: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start ``ddplaunch WORDS``, wrapped in the command ``inside`` if given; findings and launch go to ``report_path``.

    Ctrl-C does not reach the run. If this process is killed, the kernel ends the run.
    """
    return subprocess.Popen(
        [*inside, *own_command(sys.executable, "ddplaunch", *words)],
        env={**os.environ, **asked(report_path)},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def told_so_far(report_path: Path) -> StartReport:
    """Return what a run has reported; an empty report where it did not begin."""
    return read_told(report_path) if report_path.exists() else StartReport()


def end_run(child: subprocess.Popen[bytes], record: Path | None, grace_s: float) -> None:
    """End a run if it has not ended, and whatever is left of it; a second Ctrl-C does so at once.

    When this returns, the run's outcome is in ``record``. Without a record only the child itself is ended.
    """
    try:
        if child.poll() is None:
            if record is None or not end_step(_step_of_slurm(record), os.environ):
                child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(grace_s + _LONGER_S)
    except KeyboardInterrupt:
        grace_s = 0.0
    if record is not None and (still_live := live_run(record, child.pid)) is not None:
        stop_run(still_live, grace_s)  # also waits for the guard, which writes the outcome
    if child.poll() is None:
        child.kill()
        child.wait()


def _step_of_slurm(record: Path) -> dict[str, str]:
    """Return the variables of the Slurm step that the launcher started; empty where it runs in no other step."""
    with suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
        variables = read_object(record / "run.json")["environment"]
        if variables.get("SLURM_STEP_ID") != os.environ.get("SLURM_STEP_ID"):
            return {str(name): str(value) for name, value in variables.items()}
    return {}
