"""Lengths of time and moments as flags spell them; refuses to read a clock."""

from __future__ import annotations

import re
from datetime import datetime

from ddplaunch.errors import usage

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|)")


def duration_s(flag: str, text: str) -> float:
    """Return ``30``, ``90s``, ``10m``, ``1.5h`` or ``2d`` in seconds. Raises UsageError for anything else."""
    match = _LENGTH.fullmatch(text.strip())
    if match is None:
        raise usage(
            f"`{flag} {text}` is no length of time",
            why="it is a number of seconds, or a number with s, m, h or d",
            fix=f"`{flag} 30` or `{flag} 10m`",
            where=f"flag: {flag}",
        )
    return float(match[1]) * _UNITS[match[2]]


def moment_s(flag: str, text: str, now_s: float) -> float:
    """Return ``10m`` (ago) or ``2026-11-21 14:30`` (local unless it says otherwise) in seconds since the epoch.

    Raises UsageError for anything else.
    """
    if _LENGTH.fullmatch(text.strip()):
        return now_s - duration_s(flag, text)
    try:
        return datetime.fromisoformat(text.strip().replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        raise usage(
            f"`{flag} {text}` is neither a length of time nor a moment",
            why="it is a number with s, m, h or d, counted back from now, or a date and time",
            fix=f'`{flag} 10m` or `{flag} "2026-11-21 14:30"`',
            where=f"flag: {flag}",
        ) from None
