"""What another launcher set up for this process, as one value whoever it was; refuses to recognise anybody itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ddplaunch.frozen import dataclass
from ddplaunch.values import Resolved, SourceKind

_NUMBER = re.compile(r"[0-9]{1,10}\Z")


@dataclass(frozen=True)
class Found:
    """The place in a job that somebody else gave to this process; None is "they did not say".

    The fields are those of ``Options`` of the same name. ``devices`` are the entries of CUDA_VISIBLE_DEVICES that are
    this process's own where its neighbours on the host see them too. ``note`` is a clause that tells it to a user.
    """

    by: SourceKind
    note: str
    nnodes: Resolved[str] | None = None
    nproc: Resolved[str] | None = None
    node_rank: Resolved[int] | None = None
    master_addr: Resolved[str] | None = None
    master_port: Resolved[int] | None = None
    socket_ifname: Resolved[str] | None = None
    run_id: Resolved[str] | None = None
    devices: tuple[str, ...] = ()


def number(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the first of these variables that is a whole number; what is malformed counts as not said."""
    for name in names:
        text = environ.get(name, "").strip()
        if _NUMBER.match(text):
            return int(text)
    return None


def visible_entries(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES (indices or UUIDs), None where it is not set."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    return None if text is None else tuple(entry.strip() for entry in text.split(",") if entry.strip())


def share_of(entries: Sequence[str], local_rank: int, local_size: int) -> tuple[str, ...]:
    """Return the entries that belong to one of ``local_size`` tasks that all see them; none where they do not divide.

    Four GPUs for four tasks are one each, in order; eight for four are two each.
    """
    each, rest = divmod(len(entries), local_size)
    if rest or not each or local_rank >= local_size:
        return ()
    return tuple(entries[local_rank * each : (local_rank + 1) * each])
