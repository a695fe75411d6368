"""Files of a record: read with bounds, and written so that a reader sees the old one or the new one."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.records.json_files import as_number, as_text, as_whole, objects, read_object, replace_file


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "has schema None; this ddplaunch reads 1"),
        ('{"schema": 2}', "has schema 2; this ddplaunch reads 1"),
        ('{"schema": "1"}', "has schema 1; this ddplaunch reads 1"),
    ],
)
def test_what_is_no_file_of_a_record(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=f"a.json {problem}"):
        read_object(tmp_path / "a.json")
    with pytest.raises(FileNotFoundError):
        read_object(tmp_path / "b.json")


@pytest.mark.parametrize(
    ("value", "text", "whole", "number"),
    [
        ("a", "a", None, None),
        (5, None, 5, 5),
        (5.5, None, None, 5.5),
        (True, None, None, None),
        (None, None, None, None),
        ((1 << 63) - 1, None, (1 << 63) - 1, (1 << 63) - 1),
        (1 << 63, None, None, 1 << 63),
        (float("nan"), None, None, None),
        (float("inf"), None, None, None),
    ],
)
def test_values_of_another_type_are_not_there(value: Any, text: Any, whole: Any, number: Any) -> None:
    assert (as_text(value), as_whole(value), as_number(value)) == (text, whole, number)


def test_lists_of_objects() -> None:
    assert objects([{"a": 1}, 5, None, [], {}]) == [{"a": 1}, {}]
    assert objects({"a": 1}) == objects("ab") == objects(None) == []


def test_only_the_owner_reads(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        replace_file(tmp_path / "a.json", "1")
        replace_file(str(tmp_path / "runs" / "x" / "node-1" / "b.json"), "1")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"a.json": 0o600, "b.json": 0o600, "runs": 0o700, "x": 0o700, "node-1": 0o700}


def test_a_reader_sees_whole_files_only(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, "old")
    with path.open() as reader:
        replace_file(path, "newer")
        assert (reader.read(), path.read_text()) == ("old", "newer")


def test_a_draft_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        replace_file(tmp_path / "a.json", "1")
    with pytest.raises(UnicodeEncodeError):
        replace_file(tmp_path / "b.json", "\udcff")
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]
