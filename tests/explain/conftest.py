"""The fixtures that tests of explanations share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.golden import assert_same

Same = Callable[[Path, str], None]


@pytest.fixture
def same(request: pytest.FixtureRequest) -> Same:
    """``same(path, text)`` compares a file with ``text``, or writes it with ``--accept-golden``."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--accept-golden"):
            path.write_text(text, encoding="utf-8")
        assert_same(path, text)

    return compare
