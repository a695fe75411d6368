"""What collectives that never complete print, and what only follows from them."""

from __future__ import annotations

import pytest

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.collective import SIGNATURES
from tests.explain.signature_rules import caught, idle, matched, missed, slow, unfilled

CODES = (
    "collective-timeout",
    "collective-mismatch",
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
        (
            "Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=9) ran for 10 "
            "milliseconds",
            "collective-timeout",
        ),
        (
            "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 9ms for send operation to "
            "complete",
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
    ],
)
def test_neighbours_are_told_apart(line: str, code: str | None) -> None:
    assert _best(line) == code


def test_the_late_rank_is_named() -> None:
    line = "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 8000 ms"
    found = [match for each in SIGNATURES if (match := matched(each, line))]
    assert [match["culprit"] for match in found] == ["1"]
