"""Which ranks are missing from which collective or transfer: from dumps of torch's flight recorder, one for each rank.

What one rank sends to another are the operations of a group of these two. A dump is a pickle or JSON
(``torch/csrc/distributed/c10d/FlightRecorder.hpp``) of dicts, lists, strings and numbers.
Any other type in a pickle is refused, because loading it may run code:
https://docs.python.org/3/library/pickle.html#restricting-globals.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ddplaunch.explain.diagnosis import Frame
from ddplaunch.explain.stacks.parse import RankStack, ThreadStack
from ddplaunch.machine.files import read_plain
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import ranks_text

LARGEST_BYTES = 64 << 20
PG_CONFIG = b"pg_config"  # stands near the start of every dump
_HEAD_BYTES, _SAID = 4096, 160
_RANK = re.compile(r"(\d+)(?:\.json|\.pkl|\.pickle)?$")
#: A send or recv; its peer is numbered by its place in the group.
_TRANSFER = re.compile(r"(send|recv) \d+(?:->|<-)(\d+)")
#: Operations to which all ranks bring equally much; others, such as `all_to_all`, may differ.
_EQUAL = re.compile(r"_?all_?reduce|broadcast|reduce\b|_all_gather_base|_reduce_scatter_base")


class Operation(NamedTuple):
    """A collective as one rank recorded it, in a ``group`` of a name and its ranks (empty: unknown).

    ``name`` has the size of its tensor; operations of different ``kind`` cannot be the same collective. ``asks`` is
    what a send or recv needs of its peer: "send to rank 1".
    """

    group: tuple[str, tuple[int, ...]]
    number: int
    name: str
    kind: str
    has_ended: bool
    stack: RankStack
    asks: str = ""


@dataclass(frozen=True)
class Flight:
    """The collectives that did not end, described by ``what`` in one line; ``missing`` ranks did not join them.

    ``last`` are the stacks in which the ranks called their last collective. ``everyone`` is the number of ranks of the
    run if all of them called this one, else 0. ``differs``: ranks called different operations.
    """

    what: str
    missing: tuple[int, ...] = ()
    last: tuple[RankStack, ...] = ()
    everyone: int = 0
    differs: bool = False


class _PlainValues(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Refuse every class and function, because the recorder's dumps need none."""
        raise pickle.UnpicklingError(f"it contains {module}.{name}")


def is_dump(path: Path) -> bool:
    """Return whether a file is named and begins like a dump. Raises OSError if it cannot be read."""
    if not (_RANK.search(path.name) and path.is_file()):
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return head[:1] in (b"\x80", b"{") and PG_CONFIG in head


def read_dump(path: Path) -> tuple[int, tuple[Operation, ...]]:
    """Return the rank at the end of a dump's name, and its collectives, oldest first.

    Raises UsageError for a dump that is broken, too large or not a plain file.
    """
    rank = int((_RANK.search(path.name) or "00")[1])
    try:
        return rank, tuple(_operations(rank, read_plain(path, LARGEST_BYTES)))
    except Exception as error:  # broken data may raise anything
        raise usage(
            f"`{path.name}` is not a dump of torch's flight recorder",
            why=f"{type(error).__name__}: {error}"[:_SAID],
            fix="leave that file out",
        ) from error


def read_dumps(directory: Path) -> dict[int, tuple[Operation, ...]]:
    """Return each rank's collectives, from the dumps in the record of a run; broken ones are left out."""
    dumps: dict[int, tuple[Operation, ...]] = {}
    for path in directory.glob("flight-recorder-rank-*"):
        with suppress(UsageError):
            dumps.update([read_dump(path)])
    return dumps


def _operations(rank: int, data: bytes) -> Iterator[Operation]:
    value = json.loads(data) if data[:1] == b"{" else _PlainValues(io.BytesIO(data)).load()
    ranks_of = {name: tuple(json.loads(about["ranks"])) for name, about in value.get("pg_config", {}).items()}
    entries = value["entries"]
    # of the sends and recvs of one batch, torch notes the end in an entry of its own with their number
    ended = (entry for entry in entries if ":coalesced" in entry["profiling_name"] and _has_ended(entry))
    batches = {(entry["process_group"][0], entry["p2p_seq_id"]) for entry in ended}
    for entry in entries:
        group, number, has_ended, asks = entry["process_group"][0], entry["collective_seq_id"], _has_ended(entry), ""
        ranks = ranks_of.get(group, ())
        name, sizes = entry["profiling_name"].rpartition(":")[2], entry.get("input_sizes")
        sized = f"{name} of {list(sizes[0])}" if sizes else name
        kind = sized if _EQUAL.match(name) else name
        if entry.get("is_p2p"):
            if (match := _TRANSFER.match(name)) is None or not ranks:
                continue
            has_ended = has_ended or (group, entry["p2p_seq_id"]) in batches
            peer, sends = ranks[int(match[2])], match[1] == "send"
            ranks = (rank, peer) if sends else (peer, rank)
            group, kind = f"{group}, {ranks}", "transfer"
            asks = f"receive from rank {rank}" if sends else f"send to rank {rank}"
            number = int(not has_ended)  # the ranks may have recorded different numbers of those that have ended
        frames = (Frame(each["filename"], each["line"], each["name"]) for each in entry.get("frames", ()))
        stack = RankStack(rank, 0, (ThreadStack("", tuple(frames)),))
        yield Operation((group, ranks), number, sized, kind, has_ended, stack, asks)


def _has_ended(entry: Mapping[str, Any]) -> bool:
    return entry.get("state") == "completed" or entry.get("retired", False)


class _Group:
    """The collectives of one process group, by rank and number, of the ranks whose dumps are known.

    Each rank has ``reached`` the last one that it called, and is ``at`` the first one that it has not ended. ``late``
    ranks did not call, or did not end, what others did; ``waiting`` ones are in a collective that not all called.
    """

    def __init__(self, name: tuple[str, tuple[int, ...]], dumps: Mapping[int, Sequence[Operation]]) -> None:
        calls = {rank: {op.number: op for op in operations if op.group == name} for rank, operations in dumps.items()}
        self.calls = {rank: own_calls for rank, own_calls in sorted(calls.items()) if own_calls or rank in name[1]}
        opened = {rank: [op.number for op in own.values() if not op.has_ended] for rank, own in self.calls.items()}
        self.first_open = min((numbers[0] for numbers in opened.values() if numbers), default=0)
        reached = {rank: max(own_calls, default=self.first_open - 1) for rank, own_calls in self.calls.items()}
        self.at = {rank: min(numbers, default=reached[rank] + 1) for rank, numbers in opened.items()}
        front, most, least = max(self.at.values()), max(reached.values()), min(reached.values())
        self.late = {rank for rank, at in self.at.items() if at < front or reached[rank] < most}
        self.waiting = {rank for rank, at in self.at.items() if least < at <= reached[rank]}

    def called(self, number: int) -> dict[int, Operation]:
        """Return who called the collective of this number, and as what."""
        return {rank: calls[number] for rank, calls in self.calls.items() if number in calls}

    def mismatch(self) -> str:
        """Return the first collective in which ranks called different operations, and who called which, or ""."""
        for number in sorted({number for calls in self.calls.values() for number in calls}):
            called = self.called(number)
            kinds = {op.kind: [rank for rank in called if called[rank].kind == op.kind] for op in called.values()}
            if len(kinds) > 1 and not all(op.has_ended for op in called.values()):
                listed = (f"{ranks_text(ranks)} called {called[ranks[0]].name}" for ranks in kinds.values())
                return f"in collective {number}, {'; '.join(listed)}"
        return ""

    def described(self, missing: Collection[int]) -> str:
        """Return what the ``missing`` ranks of this group did not join or end, and who did; else who joined."""
        late = sorted(self.late.intersection(missing))
        number = min(self.at[rank] for rank in late) if late else max(self.at.values())
        called = self.called(number)
        first = called[min(called)]
        name = f"{first.name} (number {number})"
        if late and first.asks:
            return f"{ranks_text(late)} did not {first.asks}, which waits for it"
        if not late:
            return f"{ranks_text(list(called))} joined {name}, and its end is not recorded"
        if called.keys() >= set(late):
            return f"{ranks_text(late)} did not end {name}, as others did"
        return f"{ranks_text(late)} did not join {name}; {ranks_text([*called.keys() - missing])} did"


def flight(dumps: Mapping[int, Sequence[Operation]], ranks: int = 0) -> Flight | None:
    """Return who is missing from the collectives that did not end; None if all have ended, or nothing was recorded.

    Ranks that are late because they wait for others, in another group, are not missing. Ranks without a dump are not
    judged. ``ranks`` is the number of ranks of the run, 0 if unknown.
    """
    names = dict.fromkeys(operation.group for operations in dumps.values() for operation in operations)
    groups = [group for group in (_Group(name, dumps) for name in names) if group.first_open]
    if not groups or len(dumps) < min(ranks or 2, 2):
        return None
    last = tuple(operations[-1].stack for _, operations in sorted(dumps.items()) if operations)
    last = tuple(stack for stack in last if stack.main)
    if mismatch := next(filter(None, map(_Group.mismatch, groups)), ""):
        return Flight(mismatch, last=last, differs=True)
    late: set[int] = set().union(*(group.late for group in groups))
    missing = late.difference(*(group.waiting for group in groups)) or late
    groups.sort(key=lambda group: -len(group.late & missing))
    what, elsewhere = groups[0].described(missing), missing - groups[0].late
    others = [group for group in groups if group.late & elsewhere]
    if len(others) == 1:
        what += f"; {others[0].described(elsewhere)}"
    elif others:
        what += f"; {ranks_text(sorted(elsewhere))} did not come in other groups"
    return Flight(what, tuple(sorted(missing)), last, 0 if missing or len(groups[0].calls) != ranks else ranks)
