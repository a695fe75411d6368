"""Finds what torch's flight recorder left in a run's record; refuses to explain it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ddplaunch.explain.flight_recorder import LARGEST_BYTES, read_dump

_NAME = re.compile(r"flight-recorder-rank-_?(\d+)")


def flight_dumps(directory: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the entries of each rank's dump; one that is missing, broken or too large says nothing."""
    found: dict[int, list[dict[str, Any]]] = {}
    try:
        paths = list(directory.iterdir())
    except OSError:
        return {}
    for path in paths:
        match = _NAME.fullmatch(path.name)
        try:
            if match and path.stat().st_size <= LARGEST_BYTES:
                found[int(match[1])] = read_dump(path.read_bytes())
        except (OSError, ValueError):
            continue
    return found
