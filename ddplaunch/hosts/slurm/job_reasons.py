"""Explains Slurm's words for a job: why it ended and what it waits for.

Slurm sends SIGTERM whatever ends a job, but its controller knows the cause: the time limit, a job of higher priority, a
requeue, a lost node, a person. Its answers while a job ends were observed with 22.05. Reasons to wait:
https://slurm.schedmd.com/job_reason_codes.html, https://slurm.schedmd.com/resource_limits.html
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from ddplaunch.explain.diagnosis import Diagnosis, Evidence
from ddplaunch.hosts.slurm.programs import JobState, cancel, epoch_s, job_state
from ddplaunch.planning.inside.slurm import array_task
from ddplaunch.values.finding import RefusedError, error
from ddplaunch.values.frozen import dataclass

_DEADLINE_S = 3.0  # after SIGTERM a job has only KillWait left, 30 s by default
_EARLY_S = 90.0  # Slurm may send the signal of `--signal` up to 60 s early


@dataclass(frozen=True)
class JobEnding:
    """One way for a job to end: the ``code`` of its diagnosis, a clause to follow "job 12", the mechanism, the fix.

    ``fix`` may contain ``{job}``.
    """

    code: str
    what: str
    why: str
    fix: str


#: By Slurm's word for the state; REQUEUED is a flag in Slurm.
ENDS: Mapping[str, JobEnding] = {
    "TIMEOUT": JobEnding(
        "time-limit",
        "reached its time limit",
        "Slurm ends a job at its time limit; errors that the program prints then are not the cause",
        "`--time` for more, or `--requeue --grace 120` if the script saves on SIGTERM and resumes",
    ),
    "OUT_OF_MEMORY": JobEnding(
        "host-out-of-memory",
        "used more host memory than it had",
        "the kernel kills processes that exceed the job's memory",
        "`--mem` for more, or fewer DataLoader workers",
    ),
    "NODE_FAIL": JobEnding(
        "scheduler-error",
        "lost a node",
        "the node stopped answering Slurm",
        "`--requeue` lets Slurm start the job again by itself; `sinfo -R` shows why nodes are down",
    ),
    "PREEMPTED": JobEnding(
        "terminated",
        "was preempted",
        "a job of higher priority took its nodes",
        "`--requeue` lets Slurm start it again by itself",
    ),
    "REQUEUED": JobEnding(
        "terminated",
        "was requeued",
        "Slurm requeues a job after preemption or a lost node, or by `scontrol requeue`; it starts again on free nodes",
        "nothing, if the script resumes from its checkpoint; `squeue -j {job}` shows when it starts",
    ),
    "CANCELLED": JobEnding(
        "terminated",
        "was cancelled",
        "somebody ran scancel, or a job that it depends on failed",
        "`sacct -j {job} -o JobID,State,ExitCode` says by whom",
    ),
    "BOOT_FAIL": JobEnding(
        "scheduler-error", "got a node that did not boot", "Slurm boots nodes for some jobs", "submit it again"
    ),
    "DEADLINE": JobEnding(
        "scheduler-error", "missed its deadline", "it was submitted with one", "submit it again without `--deadline`"
    ),
}


_REASONS = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL", "OutOfMemory": "OUT_OF_MEMORY"}  # set before the state


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
    restarts = environ.get("SLURM_RESTART_COUNT", "0")
    restarts_before = int(restarts) if restarts.isdigit() else 0
    return None if state is None else diagnosis(job, state, restarts_before, grace_s, now_s, how)


def diagnosis(
    job: str,
    state: JobState,
    restarts: int = 0,
    grace_s: float = 0.0,
    now_s: float | None = None,
    how: str = "",
) -> Diagnosis | None:
    """Return what Slurm's answer means; ``restarts`` is the job's count from when this run of it began.

    None where, as far as Slurm says, it did not end the job. ``now_s`` is None for a run that ended a while ago.
    """
    end = ENDS.get(_kind(state, restarts))
    evidence = f"JobState={state.state} Reason={state.reason or 'None'}"
    if end is not None:
        return _diagnosed(end, f"job {job} {end.what}", job, evidence)
    end_s = epoch_s(state.end)
    if state.state != "RUNNING" or end_s is None or now_s is None or not 0 <= end_s - now_s <= grace_s + _EARLY_S:
        return None
    what = f"{how}, {end_s - now_s:.0f} s before the time limit of job {job}"
    return _diagnosed(ENDS["TIMEOUT"], what, job, f"{evidence} EndTime={state.end}")


def _kind(state: JobState, restarts: int) -> str:
    if state.reason in _REASONS:
        return _REASONS[state.reason]
    if state.preempted and state.state != "FAILED":
        return "PREEMPTED"
    if state.restarts > restarts:
        return "REQUEUED"
    return "CANCELLED" if state.state == "COMPLETING" else state.state


def _diagnosed(end: JobEnding, what: str, job: str, said: str) -> Diagnosis:
    evidence = (Evidence(f"scontrol show job {job}", 0, said),)
    return Diagnosis(end.code, "observed", what, end.why, (end.fix.format(job=job),), evidence=evidence)


_NEVER: Mapping[str, str] = {
    "PartitionNodeLimit": "the partition has fewer nodes",
    "PartitionTimeLimit": "the time exceeds the partition's limit",
    "BadConstraints": "no node meets the constraint",
    "AccountNotAllowed": "the account may not use the partition",
    "QOSNotAllowed": "the QOS may not be used here",
    "InvalidAccount": "the account does not exist",
    "InvalidQOS": "the QOS does not exist",
}
_OF_ONE_JOB = re.compile(r"(Assoc|QOS)Max([A-Za-z]+?)Per(Job|Node)(?:Limit)?\Z")
_THINGS = {
    "Node": "nodes",
    "Cpu": "CPUs",
    "GRES": "GPUs",
    "Mem": "memory",
    "Memory": "memory",
    "WallDuration": "time",
    "CPUMinutes": "CPU minutes",
    "GRESMinutes": "GPU minutes",
    "BillingMinutes": "billed minutes",
}
_WAITS: tuple[tuple[str, str], ...] = (
    (r"Resources|Nodes?NotAvail", "waits until enough is free"),
    (r"Priority", "other jobs come first"),
    (r"PartitionConfig", "no node of the partition has what it asks for, unless Slurm has not looked yet"),
    (r"Dependency", "waits for another job"),
    (r"BeginTime", "may not start yet; a job that was requeued waits two minutes"),
    (r"JobHeldUser", "held; `scontrol release JOB` releases it"),
    (r"JobHeldAdmin", "held by an administrator"),
    (r"launch_failed_requeued_held|JobLaunchFailure", "could not be started on its node, and is held"),
    (r"ReqNodeNotAvail|NodeDown", "nodes that it needs are down, drained or reserved; `sinfo -R` says why"),
    (r"Reservation", "waits for its reservation"),
    (r"Partition(?:Down|Inactive)", "the partition starts no jobs now"),
    (r"Licenses", "waits for a license"),
    (
        r"(?:Assoc|QOS)Grp\w*Minutes\w*",
        "the account's hours are used up; it starts when more are granted or old ones expire",
    ),
    (r"(?:Assoc|QOS)(?:Grp|Max)\w*", "a limit of the account or QOS is reached; it starts when other jobs end"),
)


def never(reason: str) -> str | None:
    """Return why a pending job can never start, None where waiting may help."""
    match = _OF_ONE_JOB.match(reason)
    if match is None:
        return _NEVER.get(reason)
    owner = "account" if match[1] == "Assoc" else "QOS"
    resource = _THINGS.get(match[2], match[2])
    return f"the {owner}'s limit of {resource} for one {match[3].lower()} is lower"


def waits_for(reason: str) -> str:
    """Return what a pending job waits for, "" for an unknown reason."""
    return next((words for pattern, words in _WAITS if re.match(rf"(?:{pattern})\b", reason)), "")


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
    why = never(state.reason) if state.state == "PENDING" else None
    if why is None:
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
