"""What collectives that never complete print, and what only follows from them."""

from __future__ import annotations

#: Each of them has a root among the signatures of the family.
CODES = (
    "collective-timeout",
    "collective-mismatch",
)

#: A line, and the code that it alone is given within the family.
LINES: tuple[tuple[str, str | None], ...] = (
    (
        "Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=9) ran for 10 "
        "milliseconds",
        "collective-timeout",
    ),
    (
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 9ms for send operation to complete",
        "collective-timeout",
    ),
    ("Timed out after 31 seconds waiting for clients. 1/2 clients joined.", None),
    ("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.5]:3981", "peer-lost"),
    (
        "NCCL WARN NET/IB : req 0/1 tag 0 peer 10.1.2.3<5> collective mismatch error, local size 8 remote size 4",
        "collective-mismatch",
    ),
    ("[c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99)", None),
    ("W0913 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process", None),
)
