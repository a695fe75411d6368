"""Slurm's compressed lists, ``gpu[01-03,7],login1`` and ``2(x3),1``, spelled out; refuses to ask scontrol."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, product

LIMIT = 100_000  # hosts; Slurm's own MAX_SLURM_NODES is 65536
_PART = re.compile(r"([^\[\],]*)\[([0-9,-]+)\]|([^\[\],]+)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")
_REPEATED = re.compile(r"([0-9]{1,7})(?:\(x([0-9]{1,7})\))?\Z")


def expand_hosts(text: str) -> tuple[str, ...] | None:
    """Return the hosts of a node list in Slurm's order, or None for a list that is malformed or too long.

    Leading zeros are kept: ``gpu[08-10]`` is gpu08, gpu09, gpu10 (https://slurm.schedmd.com/slurm.conf.html, NodeName).
    """
    hosts: list[str] = []
    for word in _split(text.strip()):
        spelled = _expand_one(word)
        if spelled is None or len(hosts) + len(spelled) > LIMIT:
            return None
        hosts.extend(spelled)
    return tuple(hosts) or None


def repeated_counts(text: str) -> tuple[int, ...] | None:
    """Return one number for each node of ``2(x3),1`` (SLURM_TASKS_PER_NODE): 2, 2, 2, 1; None if malformed."""
    counts: list[int] = []
    for word in text.strip().split(","):
        match = _REPEATED.match(word)
        times = int(match[2] or 1) if match else 0
        if match is None or times == 0 or len(counts) + times > LIMIT:
            return None
        counts.extend([int(match[1])] * times)
    return tuple(counts)


def _split(text: str) -> Iterator[str]:
    """Split at the commas that are not in brackets."""
    depth, start = 0, 0
    for position, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _expand_one(word: str) -> list[str] | None:
    pieces: list[list[str]] = []
    position = 0
    while position < len(word):
        match = _PART.match(word, position)
        if match is None:
            return None
        position = match.end()
        if match[3] is not None:
            pieces.append([match[3]])
            continue
        numbers = _numbers(match[2])
        if numbers is None:
            return None
        pieces.append([match[1] + number for number in numbers])
    spelled = ["".join(parts) for parts in islice(product(*pieces), LIMIT + 1)]
    return spelled if pieces and len(spelled) <= LIMIT else None


def _numbers(text: str) -> list[str] | None:
    numbers: list[str] = []
    for word in text.split(","):
        match = _RANGE.match(word)
        if match is None:
            return None
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < LIMIT - len(numbers):
            return None
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers
