"""A row of numbers as a row of small bars; refuses to say what they mean."""

from __future__ import annotations

from collections.abc import Sequence

_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#@"


def sparkline(values: Sequence[float | None], width: int, top: float | None = None, unicode: bool = True) -> str:
    """Return the last ``width`` values, newest right, from 0 to ``top`` (the greatest where it is None or more).

    What is not known is blank, and so is the left of a short row.
    """
    shown = list(values)[-width:] if width > 0 else []
    greatest = max([each for each in shown if each is not None], default=0.0)
    most = max(greatest, top or 0.0)
    bars = _BARS if unicode else _ASCII_BARS
    text = "".join(" " if each is None else bars[_level(each, most, len(bars))] for each in shown)
    return text.rjust(width)


def _level(value: float, most: float, levels: int) -> int:
    return min(levels - 1, max(0, int(value / most * levels))) if most > 0 else 0
