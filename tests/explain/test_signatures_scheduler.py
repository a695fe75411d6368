"""What schedulers print, and what it is mistaken for."""

from __future__ import annotations

import pytest

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.scheduler import SIGNATURES
from tests.explain.signature_rules import caught, idle, matched, missed, unfilled

CODES = (
    "time-limit",
    "scheduler-error",
    "terminated",
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
        ("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-21T10:16:20 DUE TO TIME LIMIT ***", "time-limit"),
        (
            "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-21T10:16:20 DUE TO NODE FAILURE, SEE SLURMCTLD "
            "LOG ***",
            "scheduler-error",
        ),
        ("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-21T10:16:20 DUE TO PREEMPTION ***", "terminated"),
        ("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-21T10:16:20 ***", "terminated"),
        ("srun: error: n: task 0: Exited with exit code 1", None),
        ("#SBATCH --time=24:00:00", None),
    ],
)
def test_neighbours_are_told_apart(line: str, code: str | None) -> None:
    assert _best(line) == code
