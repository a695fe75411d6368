"""Explains Slurm's words for a job: why it ended and what it waits for.

Slurm sends SIGTERM whatever ends a job, but its controller knows the cause: the time limit, a job of higher priority, a
requeue, a lost node, a person. Its answers while a job ends were observed with 22.05.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from ddplaunch.explain.diagnosis import Diagnosis, Evidence
from ddplaunch.hosts.slurm.programs import JobState, cancel, epoch_s, job_state, number_in, words
from ddplaunch.planning.inside.slurm import array_task, expand_hosts
from ddplaunch.values.finding import RefusedError, error

_DEADLINE_S = 3.0  # after SIGTERM a job has only KillWait left, 30 s by default
_EARLY_S = 90.0  # Slurm may send the signal of `--signal` up to 60 s early


def why_ended(
    environ: Mapping[str, str], grace_s: float, now_s: float, how: str = "Slurm's signal ended the run"
) -> Diagnosis | None:
    """Return why Slurm ends the job of this process; None outside a job, or where Slurm does not say.

    ``grace_s`` is how long before the time limit the ranks are signalled, ``how`` a clause for a run that ended then.
    Takes a few seconds at most.
    """
    job = environ.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        return None
    job = array_task(environ) or job
    state = job_state(job, environ, _DEADLINE_S)
    restarts_before = number_in(environ.get("SLURM_RESTART_COUNT", ""))
    if state is None:
        return None
    remaining = expand_hosts(state.nodes) or ()
    gone = [node for node in expand_hosts(environ.get("SLURM_JOB_NODELIST", "")) or () if node not in remaining]
    lost = f"its node {gone[0]}" if len(gone) == 1 else "a node"  # others vanish from the list when they are through
    return diagnosis(job, state, restarts_before, grace_s, now_s, how, lost)


def diagnosis(
    job: str,
    state: JobState,
    restarts: int = 0,
    grace_s: float = 0.0,
    now_s: float | None = None,
    how: str = "",
    lost: str = "a node",
) -> Diagnosis | None:
    """Return what Slurm's answer means; ``restarts`` is the job's count from when this run of it began.

    None where, as far as Slurm says, it did not end the job. ``now_s`` is None for a run that ended a while ago.
    """
    end = words()["ends"].get(_kind(state, restarts))
    evidence = f"JobState={state.state} Reason={state.reason or 'None'}"
    if end is not None and (now_s is None or end["code"] != "unknown"):
        what = end["what"].format(lost=lost, status=state.status)
        return _diagnosed(end, f"job {job} {what}", job, evidence, state.requeues and grace_s)
    end_s = epoch_s(state.end)
    if state.state != "RUNNING" or end_s is None or now_s is None or not 0 <= end_s - now_s <= grace_s + _EARLY_S:
        return None
    what = f"{how}, {end_s - now_s:.0f} s before the time limit of job {job}"
    return _diagnosed(words()["ends"]["TIMEOUT"], what, job, f"{evidence} EndTime={state.end}", state.requeues)


def _kind(state: JobState, restarts: int) -> str:
    if state.reason in words()["states"]:
        return str(words()["states"][state.reason])
    if state.preempted and state.state != "FAILED":
        return "PREEMPTED"
    if state.restarts > restarts:
        return "REQUEUED"
    return "CANCELLED" if state.state == "COMPLETING" else state.state


def _diagnosed(end: Mapping[str, str], what: str, job: str, said: str, again: float) -> Diagnosis:
    evidence = (Evidence(f"scontrol show job {job}", 0, said),)
    fix = end.get("again", end["fix"]) if again else end["fix"]
    return Diagnosis(end["code"], "observed", what, end["why"], (fix.format(job=job),), evidence=evidence)


def waits_for(reason: str, table: str = "waits") -> str:
    """Return what a pending job waits for, or by the table "never" why it can never start; "" for other reasons."""
    return next((meaning for pattern, meaning in words()[table].items() if re.match(rf"(?:{pattern})\b", reason)), "")


_POLL_S = 0.25
_UNDECIDED = ("", "PartitionConfig", "Priority")  # reasons shown before the scheduler has looked at the job


def first_state(job: str, environ: Mapping[str, str], patience_s: float = 3.0) -> JobState | None:
    """Return the state of a job just submitted, once Slurm has looked at it or ``patience_s`` has passed.

    Cancels the job and raises RefusedError where it can never start.
    """
    deadline = time.monotonic() + patience_s
    while True:
        state = job_state(job, environ)
        if state is not None:
            _refuse_hopeless(job, state, environ)
        undecided = state is not None and state.state == "PENDING" and state.reason in _UNDECIDED
        if not undecided or time.monotonic() > deadline:
            return state
        time.sleep(_POLL_S)


def _refuse_hopeless(job: str, state: JobState, environ: Mapping[str, str]) -> None:
    """Cancel the job and raise RefusedError where it can never start."""
    why = waits_for(state.reason, "never")
    if state.state != "PENDING" or not why:
        return
    cancelled = cancel(job, environ)
    raise RefusedError(
        error(
            "slurm-job-cannot-start",
            f"job {job} can never start: {state.reason}",
            why=f"{why}; Slurm would let it wait forever",
            fix="ask for less, or use another partition: `sinfo -o '%P %D %l %G'` shows nodes, time limits and GPUs; "
            + ("the job was cancelled" if cancelled else f"`scancel {job}` cancels it"),
        )
    )
