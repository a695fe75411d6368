"""Words for ranks that waited for each other: who was where, who never came; refuses to decide."""

from __future__ import annotations

from collections.abc import Sequence

from ddplaunch.explain.decide import Decision
from ddplaunch.explain.stuck import Stuck, Waited, uneven
from ddplaunch.explain.unknown import Words

_STACKS = "`py-spy dump --pid PID` on every rank while it hangs shows where each one is"
_ORDER = "look for collectives under an `if` on the rank, a `break` or an exception that only some ranks take"
_UNEVEN = "give every rank equally many batches: DistributedSampler with `drop_last=True`, or `with Join([model]):`"
_P2P = "run again with `--env NCCL_P2P_DISABLE=1`: if that works, look for ACS or IOMMU, or a broken NVLink"
_NAMED = 6


def stuck_words(decision: Decision) -> Words | None:
    """Return the words for a time-out whose ranks are known, None where the signature's own words say as much."""
    found = decision.stuck
    if found is None or not found.waited:
        return None
    if decision.code == "collective-mismatch":
        return _mismatch(decision, found)
    if decision.code == "gpu-p2p-broken":
        return Words(
            f"all {len(found.waited)} ranks hang in their first collective ({_call(found.waited[0])})",
            "setting up worked, moving data between the GPUs does not: peer-to-peer transport, ACS or IOMMU, NVLink",
            (_P2P, "`--nccl-debug INFO` prints which transport each pair of GPUs took", _STACKS),
        )
    if decision.code == "collective-timeout" and decision.rank is not None and decision.rank in found.absent:
        waited = [each.rank for each in found.waited]
        return Words(
            f"rank {decision.rank} did not come to {_call(found.waited[0])}; {ranks_text(waited)} waited in vain",
            "a collective needs all ranks: the one that is missing was still computing or loading, hung, or had left",
            (f"look at what rank {decision.rank} did last; {_STACKS}", _UNEVEN),
        )
    return None


def _mismatch(decision: Decision, found: Stuck) -> Words | None:
    why = "ranks pair up their collectives by order: if one calls another one, or one more, all wait for ever"
    if decision.mismatched is not None:
        first, other = decision.mismatched
        what = f"rank {first.rank} waited in {_call(first)}, rank {other.rank} in {_call(other)}"
        return Words(
            what,
            why,
            (
                _ORDER,
                "`--env TORCH_DISTRIBUTED_DEBUG=DETAIL` names the first difference (some versions crash with it)",
                _UNEVEN,
            ),
        )
    if found.left and decision.rank is not None:
        what = (
            f"rank {decision.rank} was done while {ranks_text([each.rank for each in found.waited])} still waited in "
        )
        return Words(what + _call(found.waited[0]), why, (_UNEVEN, _ORDER))
    apart = uneven(found)
    if apart is None:
        return None
    least, most = apart
    what = (
        f"rank {least} had started {found.enqueued[least]} collectives when rank {most} had started "
        f"{found.enqueued[most]}"
    )
    return Words(what, why, (_UNEVEN, _ORDER))


def _call(waited: Waited) -> str:
    name = waited.call or waited.op or "the collective"
    if waited.seq is not None:
        size = f", {waited.numel} elements" if waited.numel is not None else ""
        return f"{name} (number {waited.seq}{size})"
    return name


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0, 1 and 2 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= _NAMED:
        return f"ranks {', '.join(map(str, ranks))}"
    return f"ranks {', '.join(map(str, ranks[:_NAMED]))} and {len(ranks) - _NAMED} more"
