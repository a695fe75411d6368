"""Why Slurm ended a job, in words, and asked of it by a run that is being ended; refuses to judge the program.

Slurm sends SIGTERM whatever the reason is; its controller knows which: the time limit, another job's priority, a
requeue, a lost node, a person. What it answers while a job ends was seen with 22.05.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddplaunch.explain.diagnosis import Diagnosis, Evidence
from ddplaunch.hosts.slurm.programs import JobState, epoch_s, job_state
from ddplaunch.launch.inside.slurm import array_task
from ddplaunch.values.frozen import dataclass

_DEADLINE_S = 3.0  # what a job has left then is KillWait, 30 s by default
_EARLY_S = 90.0  # `--signal` may come 60 s earlier than it says


@dataclass(frozen=True)
class End:
    """One way for a job to end: the ``code`` of its diagnosis, a clause after "job 12", the mechanism, what to do.

    ``fix`` may hold ``{job}``.
    """

    code: str
    what: str
    why: str
    fix: str


#: By Slurm's word for the state; REQUEUED is what it calls a flag.
ENDS: Mapping[str, End] = {
    "TIMEOUT": End(
        "time-limit",
        "reached its time limit",
        "Slurm ends a job when its time is over; what the program did then is not the cause",
        "`--time` for more, or `--requeue --grace 120` if the script saves on SIGTERM and resumes",
    ),
    "OUT_OF_MEMORY": End(
        "host-out-of-memory",
        "used more host memory than it had",
        "the kernel kills what goes over the job's memory",
        "`--mem` for more, or fewer DataLoader workers",
    ),
    "NODE_FAIL": End(
        "scheduler-error",
        "lost a node",
        "the node stopped answering Slurm",
        "`--requeue` lets Slurm start the job again by itself; `sinfo -R` shows why nodes are away",
    ),
    "PREEMPTED": End(
        "terminated",
        "was preempted",
        "a job of higher priority took its nodes",
        "`--requeue` lets Slurm start it again by itself",
    ),
    "REQUEUED": End(
        "terminated",
        "was taken back and queued again",
        "Slurm does that for preemption and lost nodes, and for `scontrol requeue`; it starts over when there is room",
        "nothing, if the script resumes from its checkpoint; `squeue -j {job}` shows when it starts",
    ),
    "CANCELLED": End(
        "terminated",
        "was cancelled",
        "somebody ran scancel, or a job that it depends on failed",
        "`sacct -j {job} -o JobID,State,ExitCode` says by whom",
    ),
    "BOOT_FAIL": End(
        "scheduler-error", "found a node that did not boot", "Slurm boots nodes for some jobs", "submit it again"
    ),
    "DEADLINE": End(
        "scheduler-error", "missed its deadline", "it was submitted with one", "submit it again without `--deadline`"
    ),
}


_REASONS = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL", "OutOfMemory": "OUT_OF_MEMORY"}  # known before the state


def why_ended(environ: Mapping[str, str], grace_s: float, now_s: float) -> Diagnosis | None:
    """Return why Slurm ends the job that this process is in; None outside of one, or where Slurm does not say.

    ``grace_s`` is how long before the time limit ranks were to be told. Takes a few seconds at most.
    """
    job = environ.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        return None
    job = array_task(environ) or job
    state = job_state(job, environ, _DEADLINE_S)
    restarts = environ.get("SLURM_RESTART_COUNT", "0")
    return None if state is None else diagnosis(job, state, int(restarts) if restarts.isdigit() else 0, grace_s, now_s)


def diagnosis(
    job: str, state: JobState, restarts: int = 0, grace_s: float = 0.0, now_s: float | None = None
) -> Diagnosis | None:
    """Return what Slurm's answer means; ``restarts`` were the job's when this run of it began.

    None where Slurm had no part in the end, as far as it says. ``now_s`` None: the run has been over for a while.
    """
    end = ENDS.get(_kind(state, restarts))
    said = f"JobState={state.state} Reason={state.reason or 'None'}"
    if end is not None:
        return _diagnosed(end, f"job {job} {end.what}", job, said)
    end_s = epoch_s(state.end)
    if state.state != "RUNNING" or end_s is None or now_s is None or not 0 <= end_s - now_s <= grace_s + _EARLY_S:
        return None
    what = f"Slurm's signal {end_s - now_s:.0f} s before the time limit of job {job} ended the run"
    return _diagnosed(ENDS["TIMEOUT"], what, job, f"{said} EndTime={state.end}")


def _kind(state: JobState, restarts: int) -> str:
    if state.reason in _REASONS:
        return _REASONS[state.reason]
    if state.preempted and state.state != "FAILED":
        return "PREEMPTED"
    if state.restarts > restarts:
        return "REQUEUED"
    return "CANCELLED" if state.state == "COMPLETING" else state.state


def _diagnosed(end: End, what: str, job: str, said: str) -> Diagnosis:
    evidence = (Evidence(f"scontrol show job {job}", 0, said),)
    return Diagnosis(end.code, "observed", what, end.why, (end.fix.format(job=job),), evidence=evidence)
