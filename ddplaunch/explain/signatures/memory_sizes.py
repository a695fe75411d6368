"""What the sizes in a line about a full GPU tell of who holds its memory."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddplaunch.explain.signatures import named
from ddplaunch.explain.signatures.signature import Signature
from ddplaunch.values.words import size_text

_NUMBER = re.compile(r"([\d.]+) (?:([KMGTPE]?)i?B|bytes?)")  # torch writes bytes below a KiB
_OF_DRIVER = 0.05  # of a GPU's memory, which nobody else holds


def told_by_sizes(groups: Mapping[str, str]) -> tuple[Signature, Mapping[str, str]] | None:
    """Return the words for an allocation of which the line has all sizes, and their groups; None where it has not.

    They tell a tensor that no GPU holds, and whether others hold the memory.
    """
    wanted_bytes, free, total, used = (_bytes(groups.get(name, "")) for name in ("wanted", "free", "total", "used"))
    if total and wanted_bytes and wanted_bytes > total:
        return named("larger-than-a-gpu"), groups
    if not (total and used and free is not None):
        return None
    other_bytes = total - free - used
    if other_bytes < _OF_DRIVER * total:
        return named("gpu-all-own"), groups
    return named("gpu-shared"), {**groups, "others": size_text(round(other_bytes))}


def _bytes(text: str) -> float | None:
    match = _NUMBER.fullmatch(text)
    return float(match[1]) * (1 << 10 * ("", "K", "M", "G", "T", "P", "E").index(match[2] or "")) if match else None
