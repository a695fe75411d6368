"""What processes that end print, and what it is mistaken for."""

from __future__ import annotations

#: Each of them has a root among the signatures of the family.
CODES = (
    "killed",
    "segmentation-fault",
    "aborted",
    "terminated",
)

#: A line, and the code that it alone is given within the family.
LINES: tuple[tuple[str, str | None], ...] = (
    ("W0209 api.py:704] Received 15 death signal, shutting down workers", "terminated"),
    ("W0209 api.py:897] Sending process 9133 closing signal SIGTERM", "stopped-by-launcher"),
    ("W0209 api.py:897] Sending process 9133 closing signal SIGINT", "terminated"),
    ("Segmentation fault (core dumped)", "segmentation-fault"),
    ("srun: error: n1: task 3: Segmentation fault", "segmentation-fault"),
    ("srun: error: n1: tasks 0-2: Terminated", "step-ended"),
    ("[ERROR] [launch.py:325:sigkill_handler] ['python', 'a.py'] exits with return code = -9", "killed"),
    ("[ERROR] [launch.py:325:sigkill_handler] ['python', 'a.py'] exits with return code = 1", "launcher-summary"),
    ("terminate called without an active exception", "aborted"),
    ("terminate called after throwing an instance of 'std::runtime_error'", None),
    ("FAILED: 0, PASSED: 412", None),
    ('sample: "the process was killed by signal 9" -> label: incident', None),
)
