"""Whether ranks that all compute are a hang after all, because most of them only spin; refuses to decide on one look.

NCCL waits by spinning, as does a thread in `cudaStreamSynchronize`: a rank that waits uses a core like one that works,
https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__DEVICE.html (cudaDeviceScheduleSpin).
"""

from __future__ import annotations

from collections.abc import Sequence

from ddplaunch.explain.places import place_of
from ddplaunch.explain.stacks import RankStack


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
