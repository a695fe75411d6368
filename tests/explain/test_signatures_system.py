"""What what the operating system refuses prints, and what it is mistaken for."""

from __future__ import annotations

import pytest

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.system import SIGNATURES
from tests.explain.signature_rules import caught, idle, matched, missed, unfilled

CODES = (
    "host-out-of-memory",
    "shm-too-small",
    "too-many-open-files",
    "process-limit",
    "disk-full",
    "permission-denied",
)


@pytest.mark.parametrize("signature", SIGNATURES, ids=[f"{each.code}-{at}" for at, each in enumerate(SIGNATURES)])
def test_keeps_its_word(signature: Signature) -> None:
    assert signature.examples
    assert signature.near_misses
    assert missed(signature) == []
    assert caught(signature) == []
    assert idle(signature) == []
    assert unfilled(signature) == []
    assert bool(signature.fixes) == (signature.role != "cascade")


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
        ("Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB", "host-out-of-memory"),
        (
            "numpy.core._exceptions.MemoryError: Unable to allocate 3.1 GiB for an array with shape (9,)",
            "host-out-of-memory",
        ),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible", "shm-too-small"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/a'", "shm-too-small"),
        ("OSError: [Errno 28] No space left on device: '/tmp/a'", "disk-full"),
        (
            "RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode: Too many open files "
            "(24)",
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
    ],
)
def test_neighbours_are_told_apart(line: str, code: str | None) -> None:
    assert _best(line) == code
