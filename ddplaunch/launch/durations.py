"""Lengths of time as flags and profiles spell them; refuses to read a clock."""

from __future__ import annotations

import re

from ddplaunch.errors import usage

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|)")


def duration_s(flag: str, text: str) -> float:
    """Return ``30``, ``90s``, ``10m``, ``1.5h`` or ``2d`` in seconds. Raises UsageError for anything else."""
    match = LENGTH.fullmatch(text.strip())
    if match is None:
        raise usage(
            f"`{flag} {text}` is no length of time",
            why="it is a number of seconds, or a number with s, m, h or d",
            fix=f"`{flag} 30` or `{flag} 10m`",
            where=f"flag: {flag}",
        )
    return float(match[1]) * _UNITS[match[2]]
