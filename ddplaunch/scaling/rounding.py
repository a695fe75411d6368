"""Floats as people write them: 0.0004, not 0.00039999999999999996; refuses to know which number it rounds."""

from __future__ import annotations

import math

SIGNIFICANT_DIGITS = 12
"""More than any learning rate is tuned to, fewer than the 15 at which a double's own error shows."""


def round_significant(x: float) -> float:
    """Return ``x`` rounded to 12 significant digits."""
    return float(f"{x:.{SIGNIFICANT_DIGITS}g}")


def round_half_up(x: float) -> int:
    """Return the nearest whole number of a non-negative ``x``; a half goes up (Python's ``round`` goes to even)."""
    return math.floor(round_significant(x) + 0.5)


def format_lr(x: float) -> str:
    """Return the shortest text that ``float()`` reads back as exactly ``x``: ``0.0004``, ``1e-05``, ``2``."""
    return repr(float(x)).removesuffix(".0")


def format_factor(x: float) -> str:
    """Return ``x`` for a formula that is read, not parsed: six significant digits, ``2.82843``."""
    return f"{x:.6g}"
