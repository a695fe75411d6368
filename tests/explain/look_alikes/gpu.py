"""What GPU failures print, and what they are mistaken for."""

from __future__ import annotations

#: Each of them has a root among the signatures of the family.
CODES = (
    "cuda-out-of-memory",
    "cuda-unavailable",
    "driver-too-old",
    "cuda-arch-mismatch",
    "fabric-manager-down",
    "invalid-device-ordinal",
    "duplicate-gpu",
    "gpu-fault",
    "device-side-assert",
    "cudnn-error",
    "gpu-p2p-broken",
)

#: A line, and the code that it alone is given within the family.
LINES: tuple[tuple[str, str | None], ...] = (
    ("RuntimeError: CUDA error: out of memory", "cuda-out-of-memory"),
    ("RuntimeError: cuda runtime error (2) : out of memory at /pytorch/THCStorage.cu:58", "cuda-out-of-memory"),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuda-out-of-memory",
    ),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasSgemm(handle)`", "cudnn-error"),
    ("NCCL WARN Cuda failure 'invalid device function'", "cuda-arch-mismatch"),
    ("NCCL WARN Cuda failure 802 'system not yet initialized'", "fabric-manager-down"),
    ("NCCL WARN Cuda failure 'peer access is not supported between these two devices'", "gpu-p2p-broken"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "gpu-fault"),
    ("RuntimeError: CUDA error: device-side assert triggered", "device-side-assert"),
    ("NVRM: Xid (PCI:0000:41:00): 48, pid=1, DBE (double bit error)", "gpu-fault"),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:75] DefaultCPUAllocator: can't allocate memory", None),
    ("Out of memory: Killed process 812 (python) total-vm:1kB", None),
    ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", "gpu-fault"),
    ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment", "cuda-unavailable"),
    ("RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", None),
    ("For debugging consider passing CUDA_LAUNCH_BLOCKING=1", None),
    ("Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.", None),
    ("    except torch.cuda.OutOfMemoryError:", None),
    ("gpu1:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>", None),
)
