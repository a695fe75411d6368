"""This process's place in the job of a cluster's system, and how numbers and GPUs are read from its variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source, SourceKind

_NUMBER = re.compile(r"[0-9]{1,10}\Z")


@dataclass(frozen=True)
class PlaceInJob:
    """The place in a job that ``by`` gave to this process; ``note`` is a clause that describes it to a user.

    ``said`` are values for ``Options``, by name of the field: ``nnodes``, ``nproc``, ``node_rank``, ``master_addr``,
    ``master_port`` and ``run_id``. ``devices`` are this process's own entries of CUDA_VISIBLE_DEVICES if other
    processes of the job on this host see them too. ``alone_of`` are the job's hosts
    where only the first one got the command.
    """

    by: SourceKind
    note: str
    said: Mapping[str, Resolved[Any]]
    devices: tuple[str, ...] = ()
    alone_of: tuple[str, ...] = ()


def place(by: SourceKind, note: str, devices: tuple[str, ...] = (), **typed: tuple[Any, str]) -> PlaceInJob:
    """Return a ``PlaceInJob`` from (value, variable) pairs; a value that is None was not said."""
    resolved = {name: Resolved(value, Source(by, at)) for name, (value, at) in typed.items() if value is not None}
    return PlaceInJob(by, note, resolved, devices)


def first_number(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the first of these variables that is a whole number, None if none is."""
    for name in names:
        text = environ.get(name, "").strip()
        if _NUMBER.match(text):
            return int(text)
    return None


def visible_entries(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES (indices or UUIDs), None if it is not set."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    return None if text is None else tuple(entry.strip() for entry in text.split(",") if entry.strip())


def share_of(entries: Sequence[str], local_rank: int, local_size: int) -> tuple[str, ...]:
    """Return one task's share of entries that all ``local_size`` tasks see; empty if they do not divide evenly.

    Of four GPUs each of four tasks gets one, in order; of eight it gets two.
    """
    share, rest = divmod(len(entries), local_size)
    return () if rest else tuple(entries[local_rank * share : (local_rank + 1) * share])
