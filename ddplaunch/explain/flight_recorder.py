"""Which collective did not end and who did not join it, from torch's flight recorder; refuses to run what is in it.

A dump is a pickle (``torch/csrc/distributed/c10d/FlightRecorder.hpp``) of dicts, lists, texts and numbers; anything
else in it is refused, because loading a pickle may run code:
https://docs.python.org/3/library/pickle.html#restricting-globals.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.explain.places import ranks_text
from ddplaunch.frozen import dataclass

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
    for rank, entries in dumps.items():
        for entry in entries:
            if not entry.get("is_p2p"):
                reached.setdefault((_group(entry), _number(entry)), {})[rank] = entry
    last = {
        (group, rank): number
        for (group, number), by_rank in sorted(reached.items(), key=lambda each: each[0][1])
        for rank in by_rank
    }
    for (group, number), by_rank in sorted(reached.items(), key=lambda each: each[0][1]):
        if all(entry.get("state") == _DONE for entry in by_rank.values()):
            continue
        members = {rank for named, rank in last if named == group}
        missing = tuple(sorted(rank for rank in members - set(by_rank) if last[group, rank] < number))
        names = {rank: _name(entry) for rank, entry in by_rank.items()}
        if len(set(names.values())) > 1:
            listed = "; ".join(
                f"{ranks_text([rank for rank in names if names[rank] == name])} called {name}"
                for name in dict.fromkeys(names[rank] for rank in sorted(names))
            )
            return Flight(f"in collective {number}, {listed}")
        name = next(iter(names.values()))
        waiting = ranks_text(sorted(by_rank))
        if missing:
            return Flight(f"{ranks_text(missing)} did not join {name} (number {number}); {waiting} did", missing)
        return Flight(f"{waiting} joined {name} (number {number}), and it has not ended")
    return None


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
