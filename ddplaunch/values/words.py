"""Times, sizes and numbers of processes as people say them; refuses to read a clock.

Lengths of time as flags and profiles spell them; refuses to read a clock.
"""

from __future__ import annotations

import re

from ddplaunch.values.finding import usage

_UNITS = ((86400 * 2, 86400, "d"), (3600 * 2, 3600, "h"), (60 * 2, 60, "min"))
_KIB = 1024


def age_text(seconds: float | None) -> str:
    """Return ``45 s``, ``12 min``, ``3 h``, ``9 d``; empty for None. Each unit begins at two of it, rounded down."""
    if seconds is None:
        return ""
    for least, unit_s, name in _UNITS:
        if seconds >= least:
            return f"{int(seconds // unit_s)} {name}"
    return f"{max(0, int(seconds))} s"


def duration_text(seconds: float) -> str:
    """Return ``0.8 s``, ``42 s``, ``3 min 5 s``, ``2 h 10 min``, ``3 d 4 h``: to the nearest, for what was measured."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, large, small_size, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size} {large}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def size_text(size_bytes: int | None) -> str:
    """Return ``512 B``, ``64 MiB``, ``1.5 GiB``; empty for None."""
    if size_bytes is None:
        return ""
    size, names = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= _KIB and len(names) > 1:
        size /= _KIB
        names.pop(0)
    return f"{size:.0f} {names[0]}" if names[0] in ("B", "KiB") or size >= 10 else f"{size:.1f} {names[0]}"


def processes_text(number: int) -> str:
    """Return ``1 process``, ``2 processes``."""
    return f"{number} process" if number == 1 else f"{number} processes"


_DURATIONS_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
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
    return float(match[1]) * _DURATIONS_UNITS[match[2]]
