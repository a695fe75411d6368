"""What processes that end print, and what it is mistaken for."""

from __future__ import annotations

import pytest

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.ending import SIGNATURES
from tests.explain.signature_rules import caught, idle, matched, missed, unfilled

CODES = (
    "killed",
    "segmentation-fault",
    "aborted",
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
    ],
)
def test_neighbours_are_told_apart(line: str, code: str | None) -> None:
    assert _best(line) == code
