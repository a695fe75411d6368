"""Reads this process's place in a Kubeflow job from the environment.

``PlaceInJob`` is the type for a job of Slurm (``slurm.py``) too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.planning.flag import read_nodes
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source, SourceKind

_NUMBER = re.compile(r"[0-9]{1,10}\Z")


@dataclass(frozen=True)
class PlaceInJob:
    """The place in a job that ``by`` gave to this process; ``note`` is a clause that describes it to a user.

    ``said`` are values for ``Options``, by name of the field: ``nnodes``, ``nproc``, ``node_rank``, ``master_addr``,
    ``master_port`` and ``run_id``. ``devices`` are this process's own entries of CUDA_VISIBLE_DEVICES if other
    processes of the job on this host see them too.
    """

    by: SourceKind
    note: str
    said: Mapping[str, Resolved[Any]]
    devices: tuple[str, ...] = ()


def place(by: SourceKind, note: str, devices: tuple[str, ...] = (), **typed: tuple[Any, str]) -> PlaceInJob:
    """Return a ``PlaceInJob`` from (value, variable) pairs; a value that is None or empty was not said."""
    resolved = {name: Resolved(value, Source(by, at)) for name, (value, at) in typed.items() if value not in (None, "")}
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
    if rest or not share or local_rank >= local_size:
        return ()
    return tuple(entries[local_rank * share : (local_rank + 1) * share])


_NODES = re.compile(r"[0-9]{1,9}(?::[0-9]{1,9})?\Z")
_WORKER = re.compile(r"-worker-([0-9]{1,6})\Z")


def find_kubeflow(environ: Mapping[str, str]) -> PlaceInJob | None:
    """Return the place that ``PET_*`` of Kubeflow's Trainer (TrainJob) or training operator (PyTorchJob) give.

    None outside of Kubernetes, where ``PET_*`` are stale. An elastic PyTorchJob names the rendezvous instead of a
    master and gives no rank: the rank is then the number at the end of the pod's name.
    https://www.kubeflow.org/docs/components/trainer/user-guides/pytorch/
    """
    nodes = environ.get("PET_NNODES", "").strip()
    if "KUBERNETES_SERVICE_HOST" not in environ or not _NODES.match(nodes):
        return None
    endpoint_host, _, endpoint_port = environ.get("PET_RDZV_ENDPOINT", "").rpartition(":")
    addr = environ.get("PET_MASTER_ADDR") or environ.get("MASTER_ADDR") or endpoint_host.strip("[]")
    port = first_number(environ, "PET_MASTER_PORT", "MASTER_PORT") or first_number({"port": endpoint_port}, "port")
    rank = first_number(environ, "PET_NODE_RANK")
    if rank is None and (pod := _WORKER.search(environ.get("HOSTNAME", ""))):
        rank = int(pod[1])
    return place(
        "Kubeflow",
        f"Kubeflow: node {rank if rank is not None else '?'} of {nodes}",
        nnodes=(read_nodes(None, Resolved(nodes, Source("Kubeflow", "PET_NNODES"))), "PET_NNODES"),
        nproc=(first_number(environ, "PET_NPROC_PER_NODE") or None, "PET_NPROC_PER_NODE"),
        node_rank=(rank, "PET_NODE_RANK"),
        master_addr=(addr, "PET_MASTER_ADDR"),
        master_port=(port, "PET_MASTER_PORT"),
    )
