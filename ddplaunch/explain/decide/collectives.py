"""Which rank waited in which collective, from the timeouts of all ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from ddplaunch.explain.diagnosis import Frame
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.scan import Scanned
from ddplaunch.explain.signatures import patterns
from ddplaunch.explain.stacks.parse import is_collective
from ddplaunch.values.frozen import dataclass

_WORK, _GROUP, _COUNTS, _WORLD, _WAITS = patterns("waits")
_MOST_RANKS = 1_000_000  # the largest world size that is believed


@dataclass(frozen=True)
class Waited:
    """The collective in which a rank timed out, or, if ``lost``, in which it lost its connection to others.

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
    lost: bool = False

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
    """The first timeout of every rank that timed out, and how many collectives each had completed.

    ``called`` are these and the collectives in which ranks lost their connection to others.
    """

    waited: tuple[Waited, ...]
    completed: dict[int, int]
    world_size: int | None
    called: tuple[Waited, ...]

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
            completed.setdefault(rank, int(match["completed"]))
    for wait in _gloo(scanned):
        waited.setdefault(wait.rank, wait)
    named = set(groups.values())
    only = named.pop() if len(named) == 1 else ""  # some lines of a rank do not name its group
    ordered = tuple(replace(waited[rank], group=groups.get(rank, only)) for rank in sorted(waited))
    timed_out = tuple(wait for wait in ordered if not wait.lost)
    return Stuck(timed_out, completed, world_size(scanned), ordered)


@dataclass(frozen=True)
class Left:
    """Ranks that ended with status 0 while rank ``waiting`` still needed them.

    ``call`` is what it waited in and ``frame`` where, both empty if unknown; ``line`` is its own last message.
    """

    ranks: tuple[int, ...]
    waiting: int
    call: str
    frame: str
    line: Line | None


def waited_in(scanned: Scanned, rank: int) -> tuple[str, str, Line | None]:
    """Return the call in which a rank failed because of others, the user's frame, and the line that reports it."""
    for last in reversed(scanned.tracebacks):
        if last.speaker.rank == rank and not (last.handled or last.side):
            frames = [frame for part in last.parts for frame in part.frames]
            return _called_by_user(frames), last.raised.frame or "", last.root.line
    return "", "", None


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
        if rank is None or (match := _WAITS.search(part.raised.message)) is None:
            continue
        place, source = next(((call.place, call.source) for call in traceback.calls), ("", ""))
        call = _called_by_user(part.frames)
        yield Waited(rank, part.line, call=call, frame=place, source=source, lost=bool(match["lost"]))


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
    """Return two ranks that waited in different collectives; None if all were in the same one or it is unknown.

    A rank that was lost to others in its next collective called that one where they had called theirs.
    """
    by_call: dict[str, Waited] = {}
    by_number: dict[tuple[str, int | None], Waited] = {}
    for wait in waits.called:
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
