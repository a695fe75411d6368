"""Why nothing moves, from where all ranks are: who does not come, and why not; refuses to say that nothing moves.

That is measured by `agent.guard.hang_watch`. A stack shows where a rank is and not why, so nothing here is more than
likely.

Why a rank may be where it is, from its state, the kernel's and its place; refuses to look at other ranks.

Whether ranks that all compute are a hang after all, because most of them only spin; refuses to decide on one look.

NCCL waits by spinning, as does a thread in `cudaStreamSynchronize`: a rank that waits uses a core like one that works,
https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__DEVICE.html (cudaDeviceScheduleSpin).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ddplaunch.explain.diagnosis import Diagnosis, Evidence
from ddplaunch.explain.stacks.parse import Group, RankStack, groups, place_of
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import duration_text, ranks_text

_READS = re.compile(r"wait_woken|pipe_read|fifo_open|wait_for_partner|tty_read|read_chan|splice_from_pipe")
_FILES = re.compile(r"nfs|rpc_|fuse|ceph|lustre|gpfs|cifs|smb|p9_|io_schedule|folio_wait|wait_on_page|jbd2|xfs_|ext4_")
_SOCKET = re.compile(r"unix_stream|skb_wait|sk_wait|inet_csk|tcp_")


@dataclass(frozen=True)
class Condition:
    """The mechanism, empty where nothing tells, and what to do about it."""

    why: str = ""
    fixes: tuple[str, ...] = ()


def condition(group: Group, busy: Mapping[int, float]) -> Condition:
    """Return what keeps the ranks of ``group`` at their place; ``busy`` is how much of a core a rank used."""
    stack = group.stacks[0]
    who, place = ranks_text(group.ranks[:1]), group.place
    if stack.state in ("T", "t"):
        why = f"{who} is stopped, by SIGSTOP, Ctrl-Z or a debugger (state {stack.state})"
        return Condition(why, (f"`kill -CONT {stack.pid}` lets it go on",))
    if stack.state == "D" or _FILES.search(stack.kernel):
        why = f"{who} waits in the kernel{_function(stack.kernel)} for a disk or a file server"
        return Condition(why, ("`findmnt` and `dmesg | tail` show mounts that do not answer",))
    if (share := busy.get(stack.rank)) is not None or stack.state == "R":
        used = "" if share is None else f" ({min(share, 1.0):.0%} of a core)"
        why = f"{who} computes{used} without coming to an end"
        return Condition(why, (f"look for a loop at `{place.path}:{place.line}` that never ends",))
    if place.kind == "loader":
        fixes = ("`--workers 0` if the script takes it, or `num_workers=0`, shows the error that a worker hides",)
        return Condition(f"{who} waits for its DataLoader workers, which send nothing{_workers(stack)}", fixes)
    if stack.reads and not stack.reads.startswith("socket:"):
        why = f"{who} reads from `{stack.reads}`, from which nothing comes{_function(stack.kernel)}"
        return Condition(why, (f"look at what writes to `{stack.reads}`; ranks have no input to wait for",))
    if not stack.reads and _READS.search(stack.kernel):
        why = f"{who} waits for input: into its terminal, pipe or FIFO nobody writes{_function(stack.kernel)}"
        return Condition(why, (f"look at what `{place.path}:{place.line}` reads; ranks have no input to wait for",))
    if "nanosleep" in stack.kernel:
        return Condition(f"{who} sleeps", (f"look at what `{place.path}:{place.line}` sleeps for",))
    if stack.reads or _SOCKET.search(stack.kernel):
        why = f"{who} waits for an answer over the network{_function(stack.kernel)}"
        return Condition(why, (f"give what `{place.path}:{place.line}` asks a time-out",))
    return Condition()


def _workers(stack: RankStack) -> str:
    """Say where the workers are that are not idle: those that wait for the next index are."""
    places = [place_of(each) for each in stack.workers if each.threads]
    busy = dict.fromkeys(place.text for place in places if place.kind == "own" and "worker.py" not in place.path)
    return f": one is at {next(iter(busy))}" if busy else ""


def _function(kernel: str) -> str:
    return f" (`{kernel}`)" if kernel else ""


_COLLECTIVE_WHY = "a collective needs all ranks of its group: until the last one comes, the others wait"
_ORDER = "look for collectives under an `if` on the rank, a `break` or an exception that only some ranks take"
_UNEVEN = "give every rank equally many batches: DistributedSampler with `drop_last=True`, or `with Join([model]):`"
_TRANSPORT = "`--nccl-debug INFO` or `--env TORCH_DISTRIBUTED_DEBUG=DETAIL` shows what the group waits for"
_EVIDENCE = 4


@dataclass(frozen=True)
class Stillness:
    """What was measured: nothing moved for ``seconds``; ``busy`` ranks used a core meanwhile.

    ``left`` says how ranks have ended that the others may wait for: rank to ``exit status 0``. ``elsewhere`` is True
    where other hosts have ranks of this run.
    """

    seconds: float
    busy: Mapping[int, float]
    left: Mapping[int, str]
    host: str | None = None
    elsewhere: bool = False


def hang_diagnosis(stacks: Sequence[RankStack], still: Stillness) -> Diagnosis:
    """Return what ranks that stand still are waiting for, with the rank that does not come where one can be told."""
    found = groups(stacks)
    known = [group for group in found if group.place.kind != "unknown"]
    waiting = [group for group in known if group.place.needs_others]
    apart = [group for group in known if not group.place.needs_others]
    since = _for(still.seconds)
    if still.left and waiting:
        return _left(waiting, still, found, since)
    if waiting and apart:
        return _apart(apart, waiting, still, found, since)
    if len(waiting) > 1 and _really_differ(waiting):
        return _mismatch(waiting, still, found, since)
    if waiting:
        return _together(waiting, still, found, since)
    return _alone(known, stacks, still, found, since)


def _left(waiting: Sequence[Group], still: Stillness, found: Sequence[Group], since: str) -> Diagnosis:
    gone = sorted(still.left)
    how = "; ".join(dict.fromkeys(still.left[rank] for rank in gone))
    what = f"{ranks_text(gone)} had ended ({how}) while {_where(waiting)} {since}"
    rank = gone[0] if len(gone) == 1 else None
    return _diagnosis("collective-timeout", what, _COLLECTIVE_WHY, (_UNEVEN, _ORDER), rank, still, found)


def _apart(
    apart: Sequence[Group], waiting: Sequence[Group], still: Stillness, found: Sequence[Group], since: str
) -> Diagnosis:
    late = [rank for group in apart for rank in group.ranks]
    reason = condition(apart[0], still.busy)
    verb = "are" if len(late) > 1 else "is"
    at = " and ".join(_at(group) for group in apart[:2])
    what = f"{ranks_text(late)} {verb} {at}, and {_where(waiting)} {since}"
    why = f"{reason.why}; {_COLLECTIVE_WHY}" if reason.why else _COLLECTIVE_WHY
    rank = late[0] if len(late) == 1 else None
    return _diagnosis("collective-timeout", what, why, reason.fixes or (_UNEVEN, _ORDER), rank, still, found)


def _mismatch(waiting: Sequence[Group], still: Stillness, found: Sequence[Group], since: str) -> Diagnosis:
    parts = [f"{ranks_text(group.ranks)} in {group.place.text}" for group in waiting[:3]]
    what = f"ranks wait for each other in different calls {since}: {', '.join(parts)}"
    why = "ranks pair up their collectives by order: if one calls another one, or one more, all wait for ever"
    first, last = waiting[0].ranks, waiting[-1].ranks
    rank = first[0] if len(first) == 1 and len(last) > 1 else None
    return _diagnosis("collective-mismatch", what, why, (_ORDER, _UNEVEN), rank, still, found)


def _together(waiting: Sequence[Group], still: Stillness, found: Sequence[Group], since: str) -> Diagnosis:
    if still.elsewhere:
        what = f"{_where(waiting)} {since}; the rank that has not come is on another host"
        fixes = ("`ddplaunch stacks` on the other hosts shows where their ranks are", _ORDER)
    else:
        what = f"all ranks: {_where(waiting)} {since}, and none is elsewhere"
        fixes = (_TRANSPORT, _UNEVEN)
    why = "the ranks are in the same line, but not in the same turn of a loop, or what carries data between them stalls"
    return _diagnosis("collective-timeout", what, why, fixes, None, still, found)


def _alone(
    known: Sequence[Group], stacks: Sequence[RankStack], still: Stillness, found: Sequence[Group], since: str
) -> Diagnosis:
    """No rank waits for another one in a way that its stack shows."""
    ranks = [stack.rank for stack in stacks]
    if not known:
        problem = next((stack.problem for stack in stacks if stack.problem), "")
        what = f"{ranks_text(ranks)}: no output and no computation {since}"
        why = f"where they are is not known: {problem}" if problem else "where they are is not known"
        return Diagnosis("hang", "unknown", what, why, ("`--stacks` lets ranks show where they are",))
    known = sorted(known, key=lambda group: not set(group.ranks) & still.busy.keys())  # it may be what is waited for
    reason = condition(known[0], still.busy)
    odd = known[0].ranks if len(known) > 1 and _is_odd(known, still) else ()
    at = "; ".join(f"{ranks_text(group.ranks)} {_at(group)}" for group in known[:3])
    what = f"nothing has moved {since}: {at}"
    why = reason.why or "no rank computes, reads or prints anything: each waits for something that does not come"
    rank = odd[0] if len(odd) == 1 else ranks[0] if len(ranks) == 1 else None
    return _diagnosis("hang", what, why, reason.fixes or ("look at what the named line waits for",), rank, still, found)


def _is_odd(known: Sequence[Group], still: Stillness) -> bool:
    """Whether the first group stands out: it alone computes, or it is the smaller one."""
    computing = [bool(set(group.ranks) & still.busy.keys()) for group in known]
    return computing.count(True) == 1 if any(computing) else len(known[0].ranks) < len(known[-1].ranks)


def _really_differ(waiting: Sequence[Group]) -> bool:
    """Whether they are in different calls as opposed to different moments of the same training step."""
    return all(group.place.kind in ("collective", "meeting") for group in waiting)


def _at(group: Group) -> str:
    if not group.place.path:
        return group.place.text
    return f"{'in' if ' at ' in group.place.text else 'at'} {group.place.text}"


def _where(waiting: Sequence[Group]) -> str:
    parts = []
    for group in waiting[:2]:
        verb = "wait" if len(group.ranks) > 1 else "waits"
        parts.append(f"{ranks_text(group.ranks)} {verb} in {group.place.text}")
    return " and ".join(parts) + (" and elsewhere" if len(waiting) > 2 else "")


def _for(seconds: float) -> str:
    return f"for {duration_text(round(seconds))}"


def _diagnosis(
    code: str,
    what: str,
    why: str,
    fixes: tuple[str, ...],
    rank: int | None,
    still: Stillness,
    found: Sequence[Group],
) -> Diagnosis:
    evidence = tuple(
        Evidence(group.place.path, group.place.line, f"{ranks_text(group.ranks)}: {group.place.text}")
        for group in found[:_EVIDENCE]
        if group.place.path
    )
    return Diagnosis(code, "likely", what, why, fixes, rank, None if rank is None else still.host, evidence)


def spinning(samples: Sequence[Sequence[RankStack]]) -> bool:
    """Return whether some ranks stay in one collective in all samples while some never enter any."""
    by_rank: dict[int, list[RankStack]] = {}
    for stacks in samples:
        for stack in stacks:
            by_rank.setdefault(stack.rank, []).append(stack)
    kinds = [_kind(each) for each in by_rank.values() if len(each) == len(samples)]
    return "waits" in kinds and "apart" in kinds and len(kinds) == len(by_rank)


def _kind(stacks: Sequence[RankStack]) -> str:
    places = [place_of(stack) for stack in stacks]
    if all(place.kind in ("collective", "meeting") for place in places):
        return "waits" if len({stack.main for stack in stacks}) == 1 else "works"
    if all(place.kind in ("own", "loader") for place in places):
        return "apart"
    return "works"
