"""The test suite's own rules: what skips, what then fails, and when golden files are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import golden as golden_files
from tests.conftest import pytest_runtest_setup


@pytest.mark.root
def test_marked() -> None:
    assert os.geteuid() == 0


@pytest.fixture
def marked(request: pytest.FixtureRequest) -> pytest.Item:
    node = request.node
    assert isinstance(node, pytest.Item)
    node.add_marker("root")
    return node


def test_root_tests_skip_for_others_and_fail_where_nothing_may_be_skipped(
    marked: pytest.Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("DDPLAUNCH_REQUIRE_ALL", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs root"):
        pytest_runtest_setup(marked)
    monkeypatch.setenv("DDPLAUNCH_REQUIRE_ALL", "1")
    with pytest.raises(pytest.fail.Exception, match="DDPLAUNCH_REQUIRE_ALL"):
        pytest_runtest_setup(marked)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    pytest_runtest_setup(marked)


def test_golden_files_are_written_only_when_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_files, "FOLDER", tmp_path)
    with pytest.raises(AssertionError, match="is missing"):
        golden_files.compare("x", "text\n")
    assert not (tmp_path / "x.txt").exists()
    golden_files.compare("x", "\x1b[1mtext\n", accept=True)
    golden_files.compare("x", "\x1b[1mtext\n")
    with pytest.raises(AssertionError, match="differs"):
        golden_files.compare("x", "other\n")
