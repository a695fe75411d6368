"""Which rank waited in which collective: from the timeouts of all ranks, and from dumps of torch's flight recorder.

A dump is a pickle (``torch/csrc/distributed/c10d/FlightRecorder.hpp``) of dicts, lists, strings and numbers. Any other
type is refused, because loading a pickle may run code:
https://docs.python.org/3/library/pickle.html#restricting-globals.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.explain.diagnosis import Frame
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.scan import Scanned
from ddplaunch.explain.stacks.parse import RankStack, ThreadStack, is_collective
from ddplaunch.machine.files import read_plain
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import ranks_text

_WORK = re.compile(
    r"Work(?:NCCL|XCCL|HCCL|\w+)?\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+))?"
)
_GROUP = re.compile(r"\[PG (?:ID )?(\S+(?: PG GUID \S+)?)")
_COUNTS = re.compile(r"[Ll]ast enqueued(?: NCCL)? work: -?\d+, last completed(?: NCCL)? work: (?P<completed>-?\d+)")
_WORLD = re.compile(
    r"world_size[=:] ?(\d+)|nranks (\d+)|worker_count=\d+.*world_size=(\d+)|nproc[_-]per[_-]node[ =](\d+)"
)
_WAITS = re.compile(r"Timed out waiting \d+ ?ms for (?:send|recv) operation")
_MOST_RANKS = 1_000_000  # the largest world size that is believed
_HUGE = 1 << 40  # some versions print -1 as an unsigned number


@dataclass(frozen=True)
class Waited:
    """The collective in which a rank timed out.

    ``call`` is the Python function, ``frame`` the line of the script and ``source`` its text, if in a traceback.
    """

    rank: int
    line: Line
    seq: int | None = None
    op: str | None = None
    numel: int | None = None
    group: str = ""
    call: str = ""
    frame: str = ""
    source: str = ""

    @property
    def described(self) -> str:
        """The collective in words, with its number and size if known."""
        call = "a collective of backward" if self.call == "backward" else self.call
        name = call or self.op or "the collective"
        if self.seq is None:
            return name
        size = f", {self.numel} elements" if self.numel is not None else ""
        return f"{name} (number {self.seq}{size})"


@dataclass(frozen=True)
class Stuck:
    """The first timeout of every rank that timed out, and how many collectives each had completed."""

    waited: tuple[Waited, ...]
    completed: dict[int, int]
    world_size: int | None

    def only_silent(self, complaining: Collection[int | None]) -> int | None:
        """Return the only rank that neither timed out nor is ``complaining`` about others, or None."""
        silent = [rank for rank in self.absent if rank not in complaining]
        return silent[0] if len(silent) == 1 and self.world_size != 1 else None

    @property
    def absent(self) -> tuple[int, ...]:
        """Ranks that did not time out; empty if the world size is unknown."""
        if self.world_size is None:
            return ()
        present = {wait.rank for wait in self.waited}
        return tuple(rank for rank in range(self.world_size) if rank not in present)


def stuck(scanned: Scanned) -> Stuck:
    """Return which rank waited in which collective."""
    waited: dict[int, Waited] = {}
    completed: dict[int, int] = {}
    groups: dict[int, str] = {}
    for line in scanned.lines:
        rank = line.speaker.rank
        if rank is None or ("imeout" not in line.text and "ast enqueued" not in line.text):
            continue
        if group := _GROUP.search(line.text):
            groups.setdefault(rank, group[1])
        if "imeout" in line.text and (match := _WORK.search(line.text)):
            seq, numel = match["seq"], match["numel"]
            work = Waited(rank, line, int(seq) if seq else None, match["op"], int(numel) if numel else None)
            waited.setdefault(rank, work)
        if match := _COUNTS.search(line.text):
            number = int(match["completed"])
            completed.setdefault(rank, -1 if number > _HUGE else number)
    for wait in _gloo(scanned):
        waited.setdefault(wait.rank, wait)
    named = set(groups.values())
    only = named.pop() if len(named) == 1 else ""  # some lines of a rank do not name its group
    ordered = tuple(replace(waited[rank], group=groups.get(rank, only)) for rank in sorted(waited))
    return Stuck(ordered, completed, world_size(scanned))


@dataclass(frozen=True)
class Left:
    """Ranks that ended with status 0 while rank ``waiting`` still needed them; it failed ``before_s`` seconds later.

    ``call`` is what it waited in and ``frame`` where, both empty if unknown; ``line`` is its own last message.
    """

    ranks: tuple[int, ...]
    waiting: int
    before_s: float
    call: str
    frame: str
    line: Line | None


def waited_in(scanned: Scanned, rank: int) -> tuple[str, str, Line | None]:
    """Return the call in which a rank failed because of others, the user's frame, and the line that reports it."""
    own_tracebacks = [
        traceback
        for traceback in scanned.tracebacks
        if traceback.speaker.rank == rank and not (traceback.handled or traceback.side)
    ]
    if not own_tracebacks:
        return "", "", None
    last = own_tracebacks[-1]
    frames = [frame for part in last.parts for frame in part.frames]
    return _called_by_user(frames), last.raised.frame or "", last.root.line


def _called_by_user(frames: Sequence[Frame]) -> str:
    """Return the collective that the user's line called (maybe through others); empty if there is none."""
    calls = [frame.function for frame in frames if is_collective(frame)]
    if calls:
        return calls[0]
    return "backward" if any(frame.function == "_engine_run_backward" for frame in frames) else ""


def _gloo(scanned: Scanned) -> Iterable[Waited]:
    for traceback in scanned.tracebacks:
        part = traceback.parts[-1]
        rank = traceback.speaker.rank
        if rank is None or not _WAITS.search(part.raised.message):
            continue
        place, source = next(((call.place, call.source) for call in traceback.calls), ("", ""))
        yield Waited(rank, part.line, call=_called_by_user(part.frames), frame=place, source=source)


def world_size(scanned: Scanned) -> int | None:
    """Return the number of ranks: as printed, else from the highest rank that a line or a report names."""
    for line in scanned.lines:
        if ("world" in line.text or "nranks" in line.text or "nproc" in line.text) and (
            match := _WORLD.search(line.text)
        ):
            return _plausible(max(int(number) for number in match.groups() if number))
    ranks = [line.speaker.rank for line in scanned.lines if line.speaker.rank is not None]
    ranks += [end.rank for end in scanned.exits if end.rank is not None]
    return _plausible(max(ranks) + 1) if ranks else None


def _plausible(size: int) -> int | None:
    return size if size <= _MOST_RANKS else None


def mismatch(waits: Stuck) -> tuple[Waited, Waited] | None:
    """Return two ranks that waited in different collectives; None if all were in the same one or it is unknown."""
    by_call: dict[str, Waited] = {}
    by_number: dict[tuple[str, int | None], Waited] = {}
    for wait in waits.waited:
        if wait.call:
            first = by_call.setdefault(wait.group, wait)
            if first.call != wait.call:
                return first, wait
        if wait.op is not None:
            first = by_number.setdefault((wait.group, wait.seq), wait)
            if (first.op, first.numel) != (wait.op, wait.numel):
                return first, wait
    return None


def first_never_done(waits: Stuck) -> bool:
    """Return whether every rank was stuck in its first collective."""
    if len(waits.waited) < 2 or any(wait.seq != 1 for wait in waits.waited) or waits.absent:
        return False
    return all(completed <= 0 for completed in waits.completed.values())


# Flight recorders

_DONE = "completed"
LARGEST_BYTES = 64 << 20


@dataclass(frozen=True)
class Flight:
    """The first collective that did not end, described by ``what`` in one line; ``missing`` ranks did not join it.

    ``last`` are the stacks in which the ranks of the group called their last collective, as far as the dumps tell.
    ``everyone`` is the number of ranks of the run if all of them called this one, else 0.
    """

    what: str
    missing: tuple[int, ...] = ()
    last: tuple[RankStack, ...] = ()
    everyone: int = 0


class _PlainValues(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Refuse every class and function, because the recorder's dumps need none."""
        raise pickle.UnpicklingError(f"a dump with {module}.{name}")


def read_dump(data: bytes) -> list[dict[str, Any]]:
    """Return the entries of one rank's dump, oldest first. Raises ValueError if it is not a dump."""
    try:
        value = _PlainValues(io.BytesIO(data)).load()
    except Exception as error:  # broken data may raise anything
        raise ValueError(f"no dump of a flight recorder: {error}") from error
    entries = value.get("entries") if isinstance(value, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("no dump of a flight recorder: it has no entries")
    return entries


def flight(dumps: Mapping[int, Sequence[Mapping[str, Any]]], ranks: int = 0) -> Flight | None:
    """Return the first collective that some rank began and did not end; ``dumps`` are the entries of each rank.

    None if all have ended, or nothing was recorded. Ranks whose dump is missing are not judged. ``ranks`` is the number
    of ranks of the run, 0 if unknown.
    """
    if len(dumps) < min(ranks or 2, 2):
        return None
    reached: dict[tuple[int, str], dict[int, Mapping[str, Any]]] = {}
    last: dict[str, dict[int, int]] = {}  # highest number by group and rank
    for rank, entry in (
        (rank, entry) for rank, entries in dumps.items() for entry in entries if not entry.get("is_p2p")
    ):
        group, number = _group(entry), _number(entry)
        reached.setdefault((number, group), {})[rank] = entry
        members = last.setdefault(group, {})
        members[rank] = max(number, members.get(rank, number))
    ends_known = any(entry.get("state") == _DONE for by_rank in reached.values() for entry in by_rank.values())
    for (number, group), by_rank in sorted(reached.items(), key=lambda item: item[0]):
        members = last[group]
        missing = tuple(sorted(rank for rank, upto in members.items() if upto < number))
        if ends_known and all(entry.get("state") == _DONE for entry in by_rank.values()):
            continue
        if not ends_known and number < max(members.values()) and not missing:
            continue  # gloo records no ends: only the last, and those that some rank did not join, can be open
        called = [_called(rank, reached[upto, group][rank]) for rank, upto in sorted(members.items())]
        operation = _open(number, by_rank, missing, ranks if ends_known else 0)
        return replace(operation, last=tuple(stack for stack in called if stack.main))
    return None


def _called(rank: int, entry: Mapping[str, Any]) -> RankStack:
    """Return the stack in which ``rank`` called this collective; its frames are innermost first."""
    frames = entry.get("frames")
    calls = tuple(
        Frame(str(frame.get("filename")), line, str(frame.get("name")))
        for frame in (frames if isinstance(frames, list) else ())
        if isinstance(frame, dict) and isinstance(line := frame.get("line"), int)
    )
    return RankStack(rank, 0, (ThreadStack("", calls),))


def _open(number: int, by_rank: Mapping[int, Mapping[str, Any]], missing: tuple[int, ...], ranks: int) -> Flight:
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
    everyone = ranks if len(names) == ranks else 0
    return Flight(f"{joined} joined {name} (number {number}), and its end is not recorded", everyone=everyone)


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
    """Return the entries of each rank's dump; missing, broken and too large dumps are left out."""
    dumps: dict[int, list[dict[str, Any]]] = {}
    try:
        paths = list(directory.iterdir())
    except OSError:
        return {}
    for path in paths:
        match = _NAME.fullmatch(path.name)
        try:
            if match and not path.is_symlink():
                dumps[int(match[1])] = read_dump(read_plain(path, LARGEST_BYTES))
        except (OSError, ValueError):
            continue
    return dumps
