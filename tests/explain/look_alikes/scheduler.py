"""What schedulers print, and what it is mistaken for."""

from __future__ import annotations

#: Each of them has a root among the signatures of the family.
CODES = (
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
    ("srun: error: n: task 0: Exited with exit code 1", None),
    ("#SBATCH --time=24:00:00", None),
)
