"""Moments as flags spell them; refuses to read a clock."""

from __future__ import annotations

from datetime import datetime

from ddplaunch.errors import usage
from ddplaunch.launch.durations import LENGTH, duration_s


def moment_s(flag: str, text: str, now_s: float) -> float:
    """Return ``10m`` (ago) or ``2026-11-21 14:30`` (local unless it says otherwise) in seconds since the epoch.

    Raises UsageError for anything else.
    """
    if LENGTH.fullmatch(text.strip()):
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
