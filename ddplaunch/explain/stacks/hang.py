"""Why nothing moves, from the stacks of all ranks: which rank does not come to the collective, and what keeps it.

A stack shows where a rank is and not why, so every diagnosis here is at most likely. Whether anything moves is measured
in `agent.guard.hang_watch`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddplaunch.explain.diagnosis import Certainty, Diagnosis, Evidence
from ddplaunch.explain.stacks.parse import RankGroup, RankStack, groups, place_of
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import duration_text, ranks_text

_READS = re.compile(r"wait_woken|pipe_read|fifo_open|wait_for_partner|tty_read|read_chan|splice_from_pipe")
_FILES = re.compile(r"nfs|rpc_|fuse|ceph|lustre|gpfs|cifs|smb|p9_|io_schedule|folio_wait|wait_on_page|jbd2|xfs_|ext4_")
_SOCKET = re.compile(r"unix_stream|skb_wait|sk_wait|inet_csk|tcp_")
_COLLECTIVE_WHY = "a collective needs all ranks of its group: until the last one comes, the others wait"
SAME_ORDER = "look for collectives under an `if` on the rank, a `break` or an exception that only some ranks take"
EQUAL_BATCHES = (
    "give every rank equally many batches: DistributedSampler with `drop_last=True`, or `with Join([model]):`"
)
_TRANSPORT = "`--nccl-debug INFO` or `--env TORCH_DISTRIBUTED_DEBUG=DETAIL` shows what the group waits for"
_EVIDENCE = 4  # places that a diagnosis names


@dataclass(frozen=True)
class NoProgress:
    """What was measured: nothing moved for ``seconds``; ``busy`` ranks used a core meanwhile.

    ``left`` says how ranks have ended that the others may wait for: rank to ``exit status 0``. ``elsewhere`` is True
    where other hosts have ranks of this run.
    """

    seconds: float
    busy: Mapping[int, float]
    left: Mapping[int, str]
    host: str | None = None
    elsewhere: bool = False


class _Story(NamedTuple):
    code: str
    what: str
    why: str
    fixes: tuple[str, ...]
    rank: int | None = None


def hang_diagnosis(stacks: Sequence[RankStack], measured: NoProgress) -> Diagnosis:
    """Return what the ranks wait for, with the rank that does not come where one can be told."""
    found = groups(stacks)
    known = [group for group in found if group.place.kind != "unknown"]
    waiting = [group for group in known if group.place.needs_others]
    late = [group for group in known if not group.place.needs_others]
    since = f"for {duration_text(round(measured.seconds))}"
    if measured.left and waiting:
        story = _waiting_for_ended(waiting, measured.left, since)
    elif waiting and late:
        story = _waiting_for_late(late, waiting, measured.busy, since)
    elif len(waiting) > 1 and all(group.place.kind in ("collective", "meeting") for group in waiting):
        story = _in_different_calls(waiting, since)  # and not at different moments of one training step
    elif waiting:
        story = _in_one_call(waiting, measured.elsewhere, since)
    elif known:
        story = _none_waits(known, [stack.rank for stack in stacks], measured.busy, since)
    else:
        story = _nothing_known(stacks, since)
    evidence = tuple(
        Evidence(group.place.path, group.place.line, f"{ranks_text(group.ranks)}: {group.place.text}")
        for group in found[:_EVIDENCE]
        if group.place.path
    )
    host = None if story.rank is None else measured.host
    certainty: Certainty = "likely" if known else "unknown"
    return Diagnosis(story.code, certainty, story.what, story.why, story.fixes, story.rank, host, evidence)


def _waiting_for_ended(waiting: Sequence[RankGroup], left: Mapping[int, str], since: str) -> _Story:
    gone = sorted(left)
    how = "; ".join(dict.fromkeys(left[rank] for rank in gone))
    what = f"{ranks_text(gone)} had ended ({how}) while {_where(waiting)} {since}"
    return _Story("collective-timeout", what, _COLLECTIVE_WHY, (EQUAL_BATCHES, SAME_ORDER), _only(gone))


def _waiting_for_late(
    late: Sequence[RankGroup], waiting: Sequence[RankGroup], busy: Mapping[int, float], since: str
) -> _Story:
    ranks = [rank for group in late for rank in group.ranks]
    reason = _reason(late[0], busy)
    at = " and ".join(_at(group) for group in late[:2])
    what = f"{ranks_text(ranks)} {'are' if len(ranks) > 1 else 'is'} {at}, and {_where(waiting)} {since}"
    why = f"{reason.why}; {_COLLECTIVE_WHY}" if reason.why else _COLLECTIVE_WHY
    return _Story("collective-timeout", what, why, reason.fixes or (EQUAL_BATCHES, SAME_ORDER), _only(ranks))


def _in_different_calls(waiting: Sequence[RankGroup], since: str) -> _Story:
    parts = [f"{ranks_text(group.ranks)} in {group.place.text}" for group in waiting[:3]]
    what = f"ranks wait for each other in different calls {since}: {', '.join(parts)}"
    why = "ranks pair up their collectives by order: if one calls another one, or one more, all wait for ever"
    rank = _only(waiting[0].ranks) if len(waiting[-1].ranks) > 1 else None
    return _Story("collective-mismatch", what, why, (SAME_ORDER, EQUAL_BATCHES), rank)


def _in_one_call(waiting: Sequence[RankGroup], elsewhere: bool, since: str) -> _Story:
    if elsewhere:
        what = f"{_where(waiting)} {since}; the rank that has not come is on another host"
        fixes = ("`ddplaunch stacks` on the other hosts shows where their ranks are", SAME_ORDER)
    else:
        what = f"all ranks: {_where(waiting)} {since}, and none is elsewhere"
        fixes = (_TRANSPORT, EQUAL_BATCHES)
    why = "the ranks are in the same line, but not in the same turn of a loop, or what carries data between them stalls"
    return _Story("collective-timeout", what, why, fixes)


def _none_waits(known: Sequence[RankGroup], ranks: Sequence[int], busy: Mapping[int, float], since: str) -> _Story:
    """Tell where the ranks are, first those that compute, because the others may wait for them unseen."""
    known = sorted(known, key=lambda group: not set(group.ranks) & busy.keys())
    reason = _reason(known[0], busy)
    at = "; ".join(f"{ranks_text(group.ranks)} {_at(group)}" for group in known[:3])
    why = reason.why or "no rank computes, reads or prints anything: each waits for something that does not come"
    computing = [bool(set(group.ranks) & busy.keys()) for group in known]
    stands_out = computing.count(True) == 1 if any(computing) else len(known[0].ranks) < len(known[-1].ranks)
    rank = _only(known[0].ranks) if len(known) > 1 and stands_out else None
    fixes = reason.fixes or ("look at what the named line waits for",)
    return _Story("hang", f"nothing has moved {since}: {at}", why, fixes, _only(ranks) if rank is None else rank)


def _nothing_known(stacks: Sequence[RankStack], since: str) -> _Story:
    problem = next((stack.problem for stack in stacks if stack.problem), "")
    what = f"{ranks_text([stack.rank for stack in stacks])}: no output and no computation {since}"
    why = f"where they are is not known: {problem}" if problem else "where they are is not known"
    return _Story("hang", what, why, ("`--stacks` lets ranks show where they are",))


def _only(ranks: Sequence[int]) -> int | None:
    return ranks[0] if len(ranks) == 1 else None


def _at(group: RankGroup) -> str:
    if not group.place.path:
        return group.place.text
    return f"{'in' if ' at ' in group.place.text else 'at'} {group.place.text}"


def _where(waiting: Sequence[RankGroup]) -> str:
    parts = []
    for group in waiting[:2]:
        verb = "wait" if len(group.ranks) > 1 else "waits"
        parts.append(f"{ranks_text(group.ranks)} {verb} in {group.place.text}")
    return " and ".join(parts) + (" and elsewhere" if len(waiting) > 2 else "")


class _Reason(NamedTuple):
    why: str = ""  # empty where nothing tells
    fixes: tuple[str, ...] = ()


def _reason(group: RankGroup, busy: Mapping[int, float]) -> _Reason:
    """Return what keeps the ranks of ``group`` at their place; ``busy`` is how much of a core a rank used."""
    stack = group.stacks[0]
    who, place = ranks_text(group.ranks[:1]), group.place
    if stack.state in ("T", "t"):
        why = f"{who} is stopped, by SIGSTOP, Ctrl-Z or a debugger (state {stack.state})"
        return _Reason(why, (f"`kill -CONT {stack.pid}` lets it go on",))
    if stack.state == "D" or _FILES.search(stack.kernel):
        why = f"{who} waits in the kernel{_function(stack.kernel)} for a disk or a file server"
        return _Reason(why, ("`findmnt` and `dmesg | tail` show mounts that do not answer",))
    if (share := busy.get(stack.rank)) is not None or stack.state == "R":
        used = "" if share is None else f" ({min(share, 1.0):.0%} of a core)"
        why = f"{who} computes{used} without coming to an end"
        return _Reason(why, (f"look for a loop at `{place.path}:{place.line}` that never ends",))
    if place.kind == "loader":
        fixes = ("`--workers 0` if the script takes it, or `num_workers=0`, shows the error that a worker hides",)
        return _Reason(f"{who} waits for its DataLoader workers, which send nothing{_workers(stack)}", fixes)
    if stack.reads and not stack.reads.startswith("socket:"):
        why = f"{who} reads from `{stack.reads}`, from which nothing comes{_function(stack.kernel)}"
        return _Reason(why, (f"look at what writes to `{stack.reads}`; ranks have no input to wait for",))
    if not stack.reads and _READS.search(stack.kernel):
        why = f"{who} waits for input: into its terminal, pipe or FIFO nobody writes{_function(stack.kernel)}"
        return _Reason(why, (f"look at what `{place.path}:{place.line}` reads; ranks have no input to wait for",))
    if "nanosleep" in stack.kernel:
        return _Reason(f"{who} sleeps", (f"look at what `{place.path}:{place.line}` sleeps for",))
    if stack.reads or _SOCKET.search(stack.kernel):
        why = f"{who} waits for an answer over the network{_function(stack.kernel)}"
        return _Reason(why, (f"give what `{place.path}:{place.line}` asks a time-out",))
    return _Reason()


def _workers(stack: RankStack) -> str:
    """Return where a worker is that is not idle; one that waits for its next index is."""
    places = [place_of(each) for each in stack.workers if each.threads]
    busy = dict.fromkeys(place.text for place in places if place.kind == "own" and "worker.py" not in place.path)
    return f": one is at {next(iter(busy))}" if busy else ""


def _function(kernel: str) -> str:
    return f" (`{kernel}`)" if kernel else ""


def spinning(samples: Sequence[Sequence[RankStack]]) -> bool:
    """Return whether ranks that all compute are a hang: some stay in one collective, and some never enter any.

    NCCL waits by spinning, as does a thread in `cudaStreamSynchronize`, so that a rank that waits uses a core as well:
    https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__DEVICE.html (cudaDeviceScheduleSpin).
    """
    by_rank: dict[int, list[RankStack]] = {}
    for stacks in samples:
        for stack in stacks:
            by_rank.setdefault(stack.rank, []).append(stack)
    kinds = [_activity(each) for each in by_rank.values() if len(each) == len(samples)]
    return "waits" in kinds and "apart" in kinds and len(kinds) == len(by_rank)


def _activity(stacks: Sequence[RankStack]) -> str:
    places = [place_of(stack) for stack in stacks]
    if all(place.kind in ("collective", "meeting") for place in places):
        return "waits" if len({stack.main for stack in stacks}) == 1 else "works"
    if all(place.kind in ("own", "loader") for place in places):
        return "apart"
    return "works"
