"""Which collective did not end and which ranks did not join it, from the dumps of torch's flight recorder.

A dump is a pickle (``torch/csrc/distributed/c10d/FlightRecorder.hpp``) of dicts, lists, texts and numbers. Anything
else is refused, because loading a pickle may run code:
https://docs.python.org/3/library/pickle.html#restricting-globals.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import ranks_text

_DONE = "completed"
LARGEST_BYTES = 64 << 20


@dataclass(frozen=True)
class Flight:
    """``what`` in one line; ``missing`` are the ranks that did not join the first collective that did not end."""

    what: str
    missing: tuple[int, ...] = ()


class _PlainValues(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Refuse every class and function: the recorder's dumps need none."""
        raise pickle.UnpicklingError(f"a dump with {module}.{name}")


def read_dump(data: bytes) -> list[dict[str, Any]]:
    """Return the entries of one rank's dump, oldest first. Raises ValueError for anything else."""
    try:
        value = _PlainValues(io.BytesIO(data)).load()
    except Exception as error:  # whatever broken bytes bring about
        raise ValueError(f"no dump of a flight recorder: {error}") from error
    entries = value.get("entries") if isinstance(value, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("no dump of a flight recorder: it has no entries")
    return entries


def flight(dumps: Mapping[int, Sequence[Mapping[str, Any]]]) -> Flight | None:
    """Return the first collective that some rank began and did not end; ``dumps`` are the entries of each rank.

    None where all have ended, or nothing was recorded. Ranks whose dump is missing are not judged.
    """
    if len(dumps) < 2:
        return None
    reached: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    last: dict[tuple[str, int], int] = {}
    for rank, entries in dumps.items():
        for entry in entries:
            if not entry.get("is_p2p"):
                group, number = _group(entry), _number(entry)
                reached.setdefault((group, number), {})[rank] = entry
                last[group, rank] = max(number, last.get((group, rank), number))
    ends_known = any(entry.get("state") == _DONE for by_rank in reached.values() for entry in by_rank.values())
    for group, number in sorted(reached, key=lambda each: (each[1], each[0])):
        by_rank = reached[group, number]
        members = {rank: upto for (named, rank), upto in last.items() if named == group}
        missing = tuple(sorted(rank for rank, upto in members.items() if upto < number))
        if ends_known and all(entry.get("state") == _DONE for entry in by_rank.values()):
            continue
        if not ends_known and number < max(members.values()) and not missing:
            continue  # gloo's do not say what has ended: only the last one can be open, and any that some never joined
        return _open(number, by_rank, missing)
    return None


def _open(number: int, by_rank: Mapping[int, Mapping[str, Any]], missing: tuple[int, ...]) -> Flight:
    names = {rank: _name(entry) for rank, entry in sorted(by_rank.items())}
    if len(set(names.values())) > 1:
        listed = "; ".join(
            f"{ranks_text([rank for rank in names if names[rank] == name])} called {name}"
            for name in dict.fromkeys(names.values())
        )
        return Flight(f"in collective {number}, {listed}")
    name, joined = next(iter(names.values())), ranks_text(list(names))
    if missing:
        return Flight(f"{ranks_text(missing)} did not join {name} (number {number}); {joined} did", missing)
    return Flight(f"{joined} joined {name} (number {number}), and its end is not recorded")


def _group(entry: Mapping[str, Any]) -> str:
    described = entry.get("process_group")
    return str(described[0]) if isinstance(described, (tuple, list)) and described else str(entry.get("pg_id", ""))


def _number(entry: Mapping[str, Any]) -> int:
    number = entry.get("collective_seq_id", entry.get("seq_id"))
    return number if isinstance(number, int) else -1


def _name(entry: Mapping[str, Any]) -> str:
    name = str(entry.get("profiling_name", "a collective")).rpartition(":")[2]
    sizes = entry.get("input_sizes")
    return f"{name} of {sizes[0]}" if isinstance(sizes, (list, tuple)) and sizes else name


_NAME = re.compile(r"flight-recorder-rank-_?(\d+)")


def flight_dumps(directory: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the entries of each rank's dump; missing, broken and too large ones are left out."""
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
