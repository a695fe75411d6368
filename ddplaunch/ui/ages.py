"""Times, sizes and numbers of processes as people say them; refuses to read a clock."""

from __future__ import annotations

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
