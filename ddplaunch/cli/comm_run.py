"""Launches ``ddplaunch.examples.comm_test`` for `doctor --comm`: a ``ddplaunch run`` as a child of this process."""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import ddplaunch
from ddplaunch.cli.child_run import end_run, start_run, told_so_far
from ddplaunch.cli.parsing.typed_words import launch_words
from ddplaunch.cli.streams import StartReport
from ddplaunch.comm.results import Comm, comm_results
from ddplaunch.planning.options import Said
from ddplaunch.records.directory import new_run_id
from ddplaunch.records.outcome import RunOutcome, read_outcome
from ddplaunch.values.finding import Finding, Severity, error

_SCRIPT = str(Path(ddplaunch.__file__).parent / "examples" / "comm_test.py")
#: On other hosts, where it lies somewhere else. `python -m` would import from the working directory first.
_MODULE = (("--env", "PYTHONSAFEPATH=1"), ("-m", "ddplaunch.examples.comm_test"))
#: The flags of a launch that say where and how ranks run; what concerns a training is left out.
_SHARED = frozenset(
    {
        *("gpus", "device", "nnodes", "placement", "memory", "node_rank", "master_addr", "master_port"),
        *("socket_ifname", "nccl_debug", "nccl_ib", "env", "env_file", "torchrun_arg", "ignore", "checks", "run_dir"),
    }
)
_START_S = 180.0  # until the ranks have imported torch and met, over all hosts
_MARGIN_S = 30.0  # beyond the time-out of a group, until its result is here
_GRACE_S = 30.0  # torchrun's


def comm_words(
    said: Said, profile: str | None, nproc: str | None, hosts: Sequence[str], timeout_s: float | None
) -> list[str]:
    """Return the words after ``ddplaunch`` that launch the test. ``hosts`` are those that name other machines."""
    words = ["run", *([] if nproc is None else [nproc]), "--run-id", f"comm-{new_run_id()}", "--no-observe"]
    words += [] if profile is None else ["--profile", profile]
    words += launch_words({name: value for name, value in said.items() if name in _SHARED})
    limit = [] if timeout_s is None else ["--timeout", f"{timeout_s:g}"]
    before, script = _MODULE if hosts else ((), (_SCRIPT,))
    return [*words, *hosts, *before, "--", *script, *limit]


def run_comm_test(words: Sequence[str], timeout_s: float) -> Comm:
    """Run the test to its end and return what it measured; ``timeout_s`` is for each of its groups.

    A run that is silent for longer is ended. If this process is killed, the kernel has the run end.
    """
    with tempfile.TemporaryDirectory(prefix="ddplaunch-", ignore_cleanup_errors=True) as folder:
        told = Path(folder) / "told.jsonl"
        with start_run(words, told, subprocess.PIPE) as process:
            try:
                output = _output(process, timeout_s)
            finally:
                silent = process.poll() is None
                report = told_so_far(told)
                end_run(process, report.directory, _GRACE_S)
    comm = comm_results(output.decode("utf-8", "replace").splitlines())
    if process.returncode == 0 and comm.ended:
        return comm
    failure = _failure(report, process.returncode)
    if silent and not comm.ended:
        failure = replace(failure, what=f"nothing came of it for {timeout_s + _MARGIN_S:g} s; it was ended")
    return replace(comm, failure=failure)


def _output(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """Return what the run writes to stdout, until it ends or is silent for too long."""
    assert process.stdout is not None
    output, limit_s = b"", _START_S + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(limit_s):
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_S)
                break
            output, limit_s = output + data, timeout_s + _MARGIN_S
    return output


def _failure(report: StartReport, status: int) -> Finding:
    """Return why the run failed: the error that refused it, or the diagnosis of its record."""
    refusing = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    if report.run_id is None and refusing:
        return refusing[0]
    outcome = None if report.directory is None else read_outcome(report.directory)
    diagnosis = outcome.diagnosis if isinstance(outcome, RunOutcome) else None
    fix = "`ddplaunch run 2 --device cpu -- -m ddplaunch.examples.comm_test` shows what it prints"
    if report.run_id is not None:
        fix = f"`ddplaunch explain {report.run_id}`"
    if diagnosis is not None:
        return error(diagnosis.code, diagnosis.what, why=diagnosis.why, fix=fix)
    return error("", f"its run ended with status {status}", why="a training on these ranks might end alike", fix=fix)
