"""Compares what users read with tests/golden/NAME.txt, or writes it when told to; reads the texts beside tests."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from pathlib import Path

FOLDER = Path(__file__).with_name("golden")


def compare(name: str, text: str, *, accept: bool = False) -> None:
    """Assert that ``text`` is the content of the golden file, byte for byte (escape codes are written as ``\\e``)."""
    path = FOLDER / f"{name}.txt"
    shown = text.replace("\x1b", "\\e")
    if accept:
        FOLDER.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
        return
    if not path.exists():
        raise AssertionError(f"tests/golden/{path.name} is missing; if this is right, {accepting()}\n{shown}")
    assert_same(path, shown)


def assert_same(path: Path, text: str) -> None:
    """Assert that ``text`` is what ``path`` holds; the error has the lines that differ and the command that accepts."""
    expected = path.read_text(encoding="utf-8")
    if text != expected:
        lines = difflib.unified_diff(expected.splitlines(True), text.splitlines(True), path.name, "now", n=1)
        raise AssertionError("".join([f"differs from {path.name}; if this is meant, {accepting()}\n", *lines]))


def sections(path: Path) -> list[tuple[str, str]]:
    """Return the titles behind ``===`` in a file of texts beside a test, each with what stands below it."""
    _, *parts = re.split(r"(?m)^=== (.*)\n", path.read_text(encoding="utf-8"))
    return [*zip(parts[::2], parts[1::2], strict=True)]


def accepting() -> str:
    """Return the command that writes what the test that runs now compares."""
    test, _, _ = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")
    return f"`.venv/bin/python -m pytest --accept-golden {shlex.quote(test)}`, then read `git diff`"
