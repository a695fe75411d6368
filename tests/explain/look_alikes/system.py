"""What is printed where the operating system refuses, and what it is mistaken for."""

from __future__ import annotations

#: Each of them has a root among the signatures of the family.
CODES = (
    "host-out-of-memory",
    "shm-too-small",
    "too-many-open-files",
    "process-limit",
    "disk-full",
    "permission-denied",
)

#: A line, and the code that it alone is given within the family.
LINES: tuple[tuple[str, str | None], ...] = (
    ("Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB", "host-out-of-memory"),
    (
        "numpy.core._exceptions.MemoryError: Unable to allocate 3.1 GiB for an array with shape (9,)",
        "host-out-of-memory",
    ),
    ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible", "shm-too-small"),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/a'", "shm-too-small"),
    ("OSError: [Errno 28] No space left on device: '/tmp/a'", "disk-full"),
    (
        "RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode: Too many open files (24)",
        "too-many-open-files",
    ),
    (
        "RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode: Permission denied (13)",
        "permission-denied",
    ),
    ("RuntimeError: can't start new thread", "process-limit"),
    ("bash: fork: Cannot allocate memory", "host-out-of-memory"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", None),
    ("NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", None),
    ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ", None),
    ("PermissionError: [Errno 13] Permission denied: '/data/x'", "permission-denied"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x'", None),
)
