"""One short log for each thing that can go wrong, and the code that it gets; neighbours stand side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddplaunch.explain.signatures import all_signatures
from tests.explain.logs import diagnosed

CASES = [
    case.split("\n", 1) for case in Path(__file__).with_name("every_code.txt").read_text().split("=== ") if case.strip()
]


@pytest.mark.parametrize(("code", "text"), CASES)
def test_its_code(code: str, text: str) -> None:
    found = diagnosed(text)
    assert found.code == code, found
    assert found.what and found.why and found.fixes and "\n" not in found.what and "{" not in found.what
    assert found.evidence


def test_every_code_that_a_line_can_have_is_here() -> None:
    assert {each.code for each in all_signatures() if each.is_root} <= {code for code, _ in CASES}
