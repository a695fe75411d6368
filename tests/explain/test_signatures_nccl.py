"""What NCCL prints, and what is only its echo."""

from __future__ import annotations

import pytest

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.nccl import SIGNATURES
from tests.explain.signature_rules import caught, idle, matched, missed, slow, unfilled

CODES = (
    "nccl-version-mismatch",
    "nccl-unavailable",
    "nccl-net-plugin",
    "infiniband-error",
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
    ],
)
def test_neighbours_are_told_apart(line: str, code: str | None) -> None:
    assert _best(line) == code


def test_echoes_never_outweigh_a_root() -> None:
    roots = [each.priority for each in SIGNATURES if each.role == "root"]
    assert all(each.priority < min(roots) for each in SIGNATURES if each.role == "cascade")
