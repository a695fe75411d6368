"""What GPU failures print, and what they are mistaken for."""

from __future__ import annotations

import pytest

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.gpu import SIGNATURES
from tests.explain.signature_rules import caught, idle, matched, missed, slow, unfilled

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


@pytest.mark.parametrize("signature", SIGNATURES, ids=[f"{each.code}-{at}" for at, each in enumerate(SIGNATURES)])
def test_keeps_its_word(signature: Signature) -> None:
    assert signature.examples
    assert signature.near_misses
    assert missed(signature) == []
    assert caught(signature) == []
    assert idle(signature) == []
    assert unfilled(signature) == []
    assert slow(signature, seconds=1.0) == []
    assert signature.role != "root" or signature.fixes


@pytest.mark.parametrize("code", CODES)
def test_code_has_a_root(code: str) -> None:
    assert any(each.code == code and each.role == "root" for each in SIGNATURES)


def _best(line: str) -> str | None:
    """The code that a line alone is given within this family."""
    found = [each for each in SIGNATURES if matched(each, line) is not None]
    return max(found, key=lambda each: each.priority).code if found else None


@pytest.mark.parametrize(
    ("line", "code"),
    [
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
    ],
)
def test_neighbours_are_told_apart(line: str, code: str | None) -> None:
    assert _best(line) == code


def test_memory_is_measured() -> None:
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.42 GiB. GPU 1 has a total capacity of "
        "39.38 GiB "
        "of which 411.56 MiB is free. Including non-PyTorch memory, this process has 38.51 GiB memory in use."
    )
    (signature,) = [each for each in SIGNATURES if each.priority == 65 and matched(each, line)]
    match = matched(signature, line)
    assert match is not None
    assert signature.what.format(**match.groupdict()) == "GPU 1 is full: 9.42 GiB wanted, 411.56 MiB of 39.38 GiB free"
