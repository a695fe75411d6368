"""The test suite's own rules: what then fails that is skipped elsewhere, and when golden files are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import golden as golden_files
from tests.conftest import skip


def test_golden_files_are_written_only_when_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_files, "FOLDER", tmp_path)
    with pytest.raises(AssertionError, match="is missing"):
        golden_files.compare("x", "text\n")
    assert not (tmp_path / "x.txt").exists()
    golden_files.compare("x", "\x1b[1mtext\n", accept=True)
    golden_files.compare("x", "\x1b[1mtext\n")
    with pytest.raises(AssertionError, match="differs"):
        golden_files.compare("x", "other\n")


def test_nothing_is_skipped_where_nothing_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, raised in (("0", pytest.skip.Exception), ("1", pytest.fail.Exception)):
        monkeypatch.setenv("DDPLAUNCH_REQUIRE_ALL", value)
        with pytest.raises(raised, match="needs root"):
            skip("needs root")
