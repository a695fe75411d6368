"""Why nothing moves, from where all ranks are: who does not come, and why not; refuses to say that nothing moves.

That is measured by ``ddplaunch.agent.hang``. A stack shows where a rank is and not why, so nothing here is more than
likely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddplaunch.explain.diagnosis import Diagnosis, Evidence
from ddplaunch.explain.places import Group, groups, ranks_text
from ddplaunch.explain.stacks import RankStack
from ddplaunch.explain.stillness import condition
from ddplaunch.frozen import dataclass

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
    if seconds < 90:
        return f"for {seconds:.0f} s"
    return f"for {seconds / 60:.0f} min" if seconds < 5400 else f"for {seconds / 3600:.1f} h"


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
