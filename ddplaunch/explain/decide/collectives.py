"""Which rank waited in which collective, from the timeouts of all ranks, and whether they waited in the same one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.scan import Scanned
from ddplaunch.values.frozen import dataclass

_WORK = re.compile(
    r"Work(?:NCCL|XCCL|HCCL|\w+)?\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+))?"
)
_GROUP = re.compile(r"\[PG (?:ID )?(\S+(?: PG GUID \S+)?)")
_COUNTS = re.compile(
    r"[Ll]ast enqueued(?: NCCL)? work: (?P<enqueued>-?\d+), last completed(?: NCCL)? work: (?P<completed>-?\d+)"
)
_WORLD = re.compile(
    r"world_size[=:] ?(\d+)|nranks (\d+)|worker_count=\d+.*world_size=(\d+)|nproc[_-]per[_-]node[ =](\d+)"
)
_WAITS = re.compile(r"Timed out waiting \d+ ?ms for (?:send|recv) operation")
_CALLS = re.compile(
    r"(?:all_reduce|all_gather|all_to_all|broadcast|gather|reduce|reduce_scatter|scatter)(?:_\w+)?"
    r"|(?:monitored_)?barrier|send|recv"
)
_OVER = re.compile(r"(?i)\W*(?:all )?(?:finished|done|training (?:finished|complete|done))\W*$")
_LEFT = re.compile(
    r"(?i)\brank[ =:#]{0,2}(\d+)\b\W{0,3}(?:has |is )?(?:finished|done|completed?|exit(?:s|ing|ed)|leaves|left)\b"
)
_HUGE = 1 << 40  # some versions print -1 as an unsigned number


@dataclass(frozen=True)
class Waited:
    """The collective that a rank timed out in. ``call`` is the Python function, if its traceback tells."""

    rank: int
    line: Line
    seq: int | None = None
    op: str | None = None
    numel: int | None = None
    group: str = ""
    call: str = ""


@dataclass(frozen=True)
class Stuck:
    """The first timeout of every rank that had one, and how many collectives each had started and completed."""

    waited: tuple[Waited, ...]
    enqueued: dict[int, int]
    completed: dict[int, int]
    groups: dict[int, str]
    world_size: int | None
    left: frozenset[int] = frozenset()

    @property
    def absent(self) -> tuple[int, ...]:
        """Ranks that did not time out; empty if the world size is not known."""
        if self.world_size is None:
            return ()
        present = {each.rank for each in self.waited}
        return tuple(rank for rank in range(self.world_size) if rank not in present)


def stuck(scanned: Scanned) -> Stuck:
    """Return which rank waited in which collective."""
    waited: dict[int, Waited] = {}
    enqueued: dict[int, int] = {}
    completed: dict[int, int] = {}
    groups: dict[int, str] = {}
    for line in scanned.lines:
        rank = line.speaker.rank
        if rank is None or ("imeout" not in line.text and "ast enqueued" not in line.text):
            continue
        if group := _GROUP.search(line.text):
            groups.setdefault(rank, group.group(1))
        if "imeout" in line.text and (match := _WORK.search(line.text)):
            seq, numel = match["seq"], match["numel"]
            work = Waited(rank, line, int(seq) if seq else None, match["op"], int(numel) if numel else None)
            waited.setdefault(rank, work)
        if match := _COUNTS.search(line.text):
            enqueued.setdefault(rank, _signed(match["enqueued"]))
            completed.setdefault(rank, _signed(match["completed"]))
    for each in _gloo(scanned):
        waited.setdefault(each.rank, each)
    ordered = tuple(replace(waited[rank], group=groups.get(rank, "")) for rank in sorted(waited))
    left = frozenset(_left(scanned) - waited.keys()) if waited else frozenset()
    return Stuck(ordered, enqueued, completed, groups, world_size(scanned), left)


def _left(scanned: Scanned) -> set[int]:
    """Return the ranks that printed that they were done, if the line tells their rank."""
    first = {int(match.group(1)) for line in scanned.lines if (match := _LEFT.search(line.text))}
    said = (line for line in scanned.lines if line.speaker.rank is not None and _OVER.match(line.text))
    return first | {line.speaker.rank for line in said if line.speaker.rank is not None}


def _gloo(scanned: Scanned) -> Iterable[Waited]:
    for traceback in scanned.tracebacks:
        part = traceback.parts[-1]
        rank = traceback.speaker.rank
        if rank is None or not _WAITS.search(part.raised.message):
            continue
        calls = [
            function for file, _, function in part.frames if "distributed_c10d" in file and _CALLS.fullmatch(function)
        ]
        yield Waited(rank, part.line, call=calls[-1] if calls else "")


def world_size(scanned: Scanned) -> int | None:
    """Return the number of ranks: as printed, else from the highest rank that a line or a summary names."""
    for line in scanned.lines:
        if ("world" in line.text or "nranks" in line.text or "nproc" in line.text) and (
            match := _WORLD.search(line.text)
        ):
            return max(int(number) for number in match.groups() if number)
    ranks = [line.speaker.rank for line in scanned.lines if line.speaker.rank is not None]
    ranks += [each.rank for each in scanned.exits if each.rank is not None]
    return max(ranks) + 1 if ranks else None


def mismatch(found: Stuck) -> tuple[Waited, Waited] | None:
    """Return two ranks that waited in different collectives, None if all were in the same one or nothing tells."""
    for first in found.waited:
        for other in found.waited:
            if other.rank <= first.rank or other.group != first.group:
                continue
            if first.call and other.call and first.call != other.call:
                return first, other
            if first.op is None or other.op is None:
                continue
            if first.seq == other.seq and (first.op, first.numel) != (other.op, other.numel):
                return first, other
    return None


def uneven(found: Stuck) -> tuple[int, int] | None:
    """Return the ranks that had enqueued the fewest and the most collectives, if these differ by two or more."""
    if len(found.enqueued) < 2 or len({found.groups.get(rank, "") for rank in found.enqueued}) > 1:
        return None
    least = min(found.enqueued, key=lambda rank: found.enqueued[rank])
    most = max(found.enqueued, key=lambda rank: found.enqueued[rank])
    return (least, most) if found.enqueued[most] - found.enqueued[least] >= 2 else None


def first_never_done(found: Stuck) -> bool:
    """Return whether every rank was stuck in its first collective."""
    if len(found.waited) < 2 or any(each.seq != 1 for each in found.waited) or found.absent:
        return False
    return all(done <= 0 for done in found.completed.values())


def _signed(text: str) -> int:
    number = int(text)
    return -1 if number > _HUGE else number
