"""What NCCL prints, and what is only its echo."""

from __future__ import annotations

#: Each of them has a root among the signatures of the family.
CODES = (
    "nccl-version-mismatch",
    "nccl-unavailable",
    "nccl-net-plugin",
    "infiniband-error",
)

#: A line, and the code that it alone is given within the family.
LINES: tuple[tuple[str, str | None], ...] = (
    ("ImportError: libtorch_cuda.so: undefined symbol: ncclAlltoAll", "nccl-version-mismatch"),
    ("ImportError: libfoo.so: undefined symbol: _ZN2at4_ops5zeros4callE", None),
    ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "nccl-unavailable"),
    ("NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129", "infiniband-error"),
    ("NCCL WARN NET/IB : Got completion with error 5, opcode 1, len 0, vendor err 249", "infiniband-echo"),
    ("NCCL WARN Failed to open libibverbs.so[.1]", None),
    ("NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.", None),
    ("NCCL INFO NET/IB : No device found.", None),
    ("NCCL WARN NET/IB : mlx5_0:1 Got async error event: port active", None),
    ("[Rank 0] Found key in store: NCCLABORTEDCOMM:1a, from rank: 1. This means that", "peer-lost"),
    ("[W] Environment variable NCCL_BLOCKING_WAIT is deprecated; use TORCH_NCCL_BLOCKING_WAIT instead", None),
    (
        "DDP expects same model across all ranks, but Rank 1 has 9 params, while rank 0 has inconsistent 0 params.",
        "peer-lost",
    ),
)
