"""Signatures of how Slurm lists a job that has ended, in sacct, scontrol and seff; refuses what its daemons log."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

_PRIORITY = 30  # a table may list other jobs too, so whatever else speaks counts for more


def _state(code: str, word: str, cut: str, what: str, why: str, fixes: tuple[str, ...]) -> Signature:
    """Return the signature of one state; ``cut`` is as much of it as sacct has room for."""
    literal = cut.rstrip("+")
    return Signature(
        code=code,
        role="root",
        literals=(literal,),
        patterns=(
            rf"(?:JobState=|State: |\|){word}(?=[\s|,(]|$)",
            rf"^\s*\d+(?:[._]\S+)?\s(?:.*\s)?(?:{word}|{cut.replace('+', '[+]')})(?=\s|$)",
        ),
        what=what,
        why=why,
        fixes=fixes,
        examples=(
            f"4411|train|{word.replace('[0-9]+', '1000')}|0:15",
            f"4411          train        gpu        lab         32 {cut}      0:15",
        ),
        near_misses=(f'if state in ("{word}", "COMPLETED"):', f"INFO: {word} is not handled"),
        priority=_PRIORITY,
        source="https://slurm.schedmd.com/job_state_codes.html",
    )


STATES: tuple[Signature, ...] = (
    _state(
        "host-out-of-memory",
        "OUT_OF_MEMORY",
        "OUT_OF_ME+",
        "Slurm lists the job as OUT_OF_MEMORY",
        "the kernel kills what goes over the host memory that the job asked for",
        ("`--mem` for more (`sacct -j JOBID -o MaxRSS,ReqMem` shows both)", "fewer DataLoader workers"),
    ),
    _state(
        "time-limit",
        "TIMEOUT",
        "TIMEOUT",
        "Slurm lists the job as TIMEOUT: it reached its time limit",
        "Slurm ends a job when its time is over; what the program did then is not the cause",
        ("`--time` for more", "`ddplaunch submit --requeue --grace 120`, if the script saves on SIGTERM and resumes"),
    ),
    _state(
        "scheduler-error",
        "NODE_FAIL",
        "NODE_FAIL",
        "Slurm lists the job as NODE_FAIL: it lost a node",
        "the node stopped answering Slurm; the program had no part in it",
        ("`--requeue` lets Slurm start the job again by itself", "`sinfo -R` shows why nodes are away"),
    ),
    _state(
        "terminated",
        "PREEMPTED",
        "PREEMPTED",
        "Slurm lists the job as PREEMPTED",
        "a job of higher priority took its nodes",
        ("`--requeue` lets Slurm start it again by itself", "save a checkpoint on SIGTERM and resume from it"),
    ),
    _state(
        "terminated",
        "CANCELLED by [0-9]+",
        "CANCELLED+",
        "Slurm lists the job as CANCELLED",
        "somebody ran scancel, or a job that it depends on failed",
        ("`sacct -P -j JOBID -o JobID,State` says by whom: `CANCELLED by UID`",),
    ),
)
