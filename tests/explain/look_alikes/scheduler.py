"""What schedulers print, and what it is mistaken for."""

from __future__ import annotations

#: Each of them has a root among the signatures of the family.
CODES = (
    "host-out-of-memory",
    "time-limit",
    "scheduler-error",
    "terminated",
)

#: A line, and the code that it alone is given within the family.
LINES: tuple[tuple[str, str | None], ...] = (
    ("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-21T10:16:20 DUE TO TIME LIMIT ***", "time-limit"),
    (
        "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-21T10:16:20 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***",
        "scheduler-error",
    ),
    ("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-21T10:16:20 DUE TO PREEMPTION ***", "terminated"),
    ("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-21T10:16:20 ***", "terminated"),
    ("4411|train|gpu|OUT_OF_MEMORY|0:125", "host-out-of-memory"),
    ("State: OUT_OF_MEMORY (exit code 0)", "host-out-of-memory"),
    ("4411_3        train        gpu        lab         32  NODE_FAIL      1:0", "scheduler-error"),
    ("   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)", "time-limit"),
    ("State: CANCELLED by 1000", "terminated"),
    ("4411.batch      batch                   lab         32  COMPLETED      0:0", None),
    ("epoch 3 step 12 TIMEOUT of the data loader", None),
    ("srun: error: n: task 0: Exited with exit code 1", None),
    ("#SBATCH --time=24:00:00", None),
)
