"""What commands that could not become ranks print, and what it is mistaken for."""

from __future__ import annotations

import pytest

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.launching import SIGNATURES
from tests.explain.signature_rules import caught, idle, matched, missed, unfilled

CODES = (
    "missing-rank-environment",
    "local-rank-argument",
    "script-arguments",
    "launcher-arguments",
    "script-not-found",
    "module-not-found",
    "syntax-error",
    "extension-build-failed",
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
        ("KeyError: 'RANK'", "missing-rank-environment"),
        ("KeyError: 'rank'", None),
        ("train.py: error: unrecognized arguments: --local-rank=3", "local-rank-argument"),
        ("train.py: error: unrecognized arguments: --epoch", "script-arguments"),
        ("torchrun: error: unrecognized arguments: --epoch", "launcher-arguments"),
        (
            "run.py: error: the following arguments are required: training_script, training_script_args",
            "launcher-arguments",
        ),
        ("run.py: error: unrecognized arguments: --epoch", "script-arguments"),
        ("python: can't open file 'x.py': [Errno 2] No such file or directory", "script-not-found"),
        ("/usr/bin/python: No module named train", "script-not-found"),
        ("/usr/bin/python: No module named torchrun", "launcher-arguments"),
        ("ModuleNotFoundError: No module named 'train'", "module-not-found"),
        ("ImportError: /opt/a.so: undefined symbol: _ZN2at", "extension-build-failed"),
        ("ImportError: /opt/libtorch_cuda.so: undefined symbol: ncclCommRegister", None),
        ("UserWarning: Failed to initialize NumPy: No module named 'numpy'", None),
        ('  File "a.py", line 3', None),
        ("SyntaxError: invalid syntax", "syntax-error"),
    ],
)
def test_neighbours_are_told_apart(line: str, code: str | None) -> None:
    assert _best(line) == code
