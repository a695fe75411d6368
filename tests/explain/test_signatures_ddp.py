"""What DDP and torch.distributed refuse, and what they only warn of."""

from __future__ import annotations

import pytest

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.ddp import SIGNATURES
from tests.explain.signature_rules import caught, idle, matched, missed, slow, unfilled

CODES = (
    "unused-parameters",
    "parameter-ready-twice",
    "inplace-modification",
    "parameter-mismatch",
    "process-group-not-initialized",
    "not-a-number",
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
            "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 4 params, while rank 0 has "
            "inconsistent 2 params.",
            "parameter-mismatch",
        ),
        (
            "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 4 params, while rank 0 has "
            "inconsistent 0 params.",
            None,
        ),
        (
            "[W reducer.cpp] Warning: find_unused_parameters=True was specified, but did not find any unused "
            "parameters",
            None,
        ),
        ("ValueError: cannot convert float NaN to integer", None),
        (
            "NanCheck.cu:157: checkForNaN: block: [0,0,0], thread: [1,0,0] Assertion `!isnan(val)` failed.",
            "not-a-number",
        ),
        ("AssertionError: Rank 3: found NaN in local grad norm in backward pass. Device: 3", "not-a-number"),
        ("RuntimeError: Your training graph has changed in this iteration, e.g., one parameter", "unused-parameters"),
        ("AssertionError: data parallel group is not initialized", "process-group-not-initialized"),
        ("epoch 3 loss nan grad_norm inf", None),
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 32, reducing to 16", None),
        ("AssertionError: Loss is nan at step 4", "not-a-number"),
        (
            "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
            "process-group-not-initialized",
        ),
        ("Warning: destroy_process_group() was not called before program exit", None),
    ],
)
def test_neighbours_are_told_apart(line: str, code: str | None) -> None:
    assert _best(line) == code
