"""What missing, raced and unreadable data prints, and what it is mistaken for."""

from __future__ import annotations

import pytest

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.data import SIGNATURES
from tests.explain.signature_rules import caught, idle, matched, missed, unfilled

CODES = (
    "dataset-missing",
    "dataset-race",
    "download-failed",
    "checkpoint-mismatch",
    "checkpoint-corrupt",
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
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'", "dataset-missing"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/.cache/x.incomplete'", "dataset-race"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'out/ckpt_3.pth'", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: './train.py'", None),
        ("FileExistsError: [Errno 17] File exists: '/data/mnist/raw'", "dataset-race"),
        ("FileExistsError: [Errno 17] File exists: '/home/a/runs/exp1'", None),
        ("urllib.error.HTTPError: HTTP Error 404: Not Found", "download-failed"),
        ("WARNING:urllib3.connectionpool:Retrying (Retry(total=4)) after connection broken by 'x': /gpt2", None),
        ("RuntimeError: Error(s) in loading state_dict for Net:", "checkpoint-mismatch"),
        ("Some weights of Net were not initialized from the model checkpoint and are newly initialized", None),
        ("_pickle.UnpicklingError: invalid load key, '<'.", "checkpoint-corrupt"),
        ("RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed", None),
    ],
)
def test_neighbours_are_told_apart(line: str, code: str | None) -> None:
    assert _best(line) == code
