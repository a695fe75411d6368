"""Runs Slurm's own programs: submits a job, asks for its state, cancels it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddplaunch.values.codec import toml_beside
from ddplaunch.values.finding import Finding, RefusedError, error
from ddplaunch.values.frozen import dataclass

_SUBMIT_DEADLINE_S = 90.0
_ASK_DEADLINE_S = 20.0


def words() -> dict[str, Any]:
    """Return the tables of `words.toml`: what Slurm's words mean."""
    return toml_beside(__file__, "words.toml")


@dataclass(frozen=True)
class JobState:
    """A job as Slurm describes it. ``state`` is Slurm's word: PENDING, RUNNING, COMPLETED, FAILED, TIMEOUT …

    ``end`` is when the job ended or must end, in Slurm's format and the cluster's time zone. ``requeues``: it
    may start again. ``status`` is its exit status.
    """

    state: str
    reason: str = ""
    log: str | None = None
    nodes: str = ""
    restarts: int = 0
    preempted: bool = False
    end: str = ""
    requeues: bool = False
    status: str = ""


def submit(text: str, cwd: Path, environ: Mapping[str, str]) -> str:
    """Submit a batch script with sbatch and return the job's id; the job starts in ``cwd`` with ``environ``.

    Raises RefusedError where sbatch is missing, refuses the job, or does not answer.
    """
    if shutil.which("sbatch", path=environ.get("PATH")) is None:
        raise RefusedError(
            error(
                "sbatch-missing",
                "there is no `sbatch` on PATH",
                why="jobs are handed to Slurm by its own program",
                fix="run this on a login node of the cluster; `--dry-run` prints the batch script anywhere",
            )
        )
    try:
        completed = subprocess.run(
            ["sbatch", "--parsable"],
            input=os.fsencode(text),
            cwd=cwd,
            env=dict(environ),
            capture_output=True,
            timeout=_SUBMIT_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exception:
        raise RefusedError(
            error(
                "slurm-unanswered",
                f"`sbatch` did not answer within {_SUBMIT_DEADLINE_S:.0f} s",
                why="Slurm's controller is down, or has too much to do",
                fix="`squeue --me` shows whether the job arrived; `scontrol ping` says whether the controller answers",
            )
        ) from exception
    except OSError as exception:
        raise RefusedError(_failed([f"sbatch cannot be run: {exception.strerror}"])) from exception
    out, errors = _text(completed.stdout), _text(completed.stderr)
    match = re.match(r"([0-9]+)(?:;|$)", out.strip())  # ";CLUSTER" follows on federated clusters
    if completed.returncode or match is None:
        raise RefusedError(_failed([line for line in [*errors.splitlines(), *out.splitlines()] if line.strip()]))
    return match[1]


def job_state(job: str, environ: Mapping[str, str], deadline_s: float = _ASK_DEADLINE_S) -> JobState | None:
    """Return a job's state from scontrol, or from sacct once the controller has forgotten it; None if neither answers.

    ``job`` is a number, or ``ARRAY_TASK``; ``deadline_s`` is for each of the two programs.
    """
    shown = _ask(["scontrol", "show", "job", job], environ, deadline_s)
    if shown is not None and "JobState=" in shown:
        return parse_job(shown)
    listed = _ask(["sacct", "-X", "-n", "-P", "-j", job, "-o", "State,NodeList"], environ, deadline_s)
    fields = (listed or "").strip().splitlines()[-1:]
    return parse_sacct(fields[0]) if fields and fields[0].count("|") == 1 else None


def parse_job(text: str) -> JobState:
    """Return the state from the lines of ``scontrol show job``; a path with spaces fills the rest of its line."""

    def word(name: str, nothing: str = "") -> str:
        match = re.search(rf"^(?:.* )?{name}=(\S+)", text, re.MULTILINE)
        return match[1] if match and match[1] != nothing else ""

    log = re.search(r"^ *StdOut=(.+)$", text, re.MULTILINE)
    return JobState(
        state=word("JobState") or "UNKNOWN",
        reason=word("Reason", "None"),
        log=log[1] if log else None,
        nodes=word("NodeList", "(null)"),
        restarts=number_in(word("Restarts")),
        preempted=word("PreemptTime", "None") != "",
        end=word("EndTime"),
        requeues=word("Requeue") == "1",
        status=word("ExitCode").partition(":")[0],
    )


def parse_sacct(line: str) -> JobState:
    """Return the state from ``State|NodeList``, without the user in ``CANCELLED by 1000``."""
    state, nodes = line.split("|", 1)
    return JobState(state.split(" ")[0] or "UNKNOWN", nodes=nodes)


def number_in(text: str) -> int:
    """Return the number that Slurm wrote, 0 for anything else."""
    return int(text) if text.isdigit() else 0


def cancel(job: str, environ: Mapping[str, str]) -> bool:
    """Cancel one job; return whether scancel accepted that."""
    return _ask(["scancel", job], environ) is not None


def end_step(step_of: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Send SIGTERM to the tasks of a job step, named by the variables in ``step_of``; return whether scancel exists.

    A signal to srun itself would kill the step at once: https://slurm.schedmd.com/srun.html#SECTION_SIGNALS. scancel of
    22.05 reports "Invalid job id specified" although the signal has arrived, so its status is ignored.
    """
    job, step = step_of.get("SLURM_JOB_ID", ""), step_of.get("SLURM_STEP_ID", "")
    if not (job.isdigit() and step.isdigit()):
        return False
    _ask(["scancel", "--signal=TERM", f"{job}.{step}"], environ)
    return shutil.which("scancel", path=environ.get("PATH")) is not None


def epoch_s(text: str) -> float | None:
    """Return seconds since the epoch for a time printed by Slurm's programs, None for N/A: a job without a limit."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def _ask(words: Sequence[str], environ: Mapping[str, str], deadline_s: float = _ASK_DEADLINE_S) -> str | None:
    """Return stdout, or None where the program is missing, fails or does not answer in time."""
    try:
        completed = subprocess.run(
            list(words),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _text(completed.stdout) if completed.returncode == 0 else None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _failed(lines: Sequence[str]) -> Finding:
    """Return the finding for a failed sbatch: its last line is the verdict, the one before it often the detail."""
    messages = [re.sub(r"^sbatch: (?:(?:error|fatal): )?", "", line).strip() for line in lines]
    spoken = [line for line in messages if not line.startswith('Try "sbatch')] or ["it printed no message"]
    verdict = spoken[-1].removeprefix("Batch job submission failed: ")
    everything = " ".join(spoken).lower()
    fix = next(
        (fix for word, fix in words()["refused"].items() if word in everything),
        "`--dry-run` prints the batch script to try by hand",
    )
    return error(
        "sbatch-failed",
        f"sbatch refused the job: {verdict}",
        why="; ".join(spoken[:-1]) or "Slurm checks a job against its partitions, accounts and nodes",
        fix=fix,
    )
