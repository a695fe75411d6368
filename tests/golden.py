"""Compares what users read with tests/golden/NAME.txt, or writes it when told to."""

from __future__ import annotations

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
    assert path.exists(), f"{path.name} is missing: read the output, then run pytest with --accept-golden\n{shown}"
    expected = path.read_text(encoding="utf-8")
    assert shown == expected, f"differs from {path.name}; if it is better, run pytest with --accept-golden"
