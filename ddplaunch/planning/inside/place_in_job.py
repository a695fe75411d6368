"""What Kubeflow, Open MPI, PMI and SageMaker say in the environment of this process's place in a job.

``PlaceInJob`` is the one value for all launchers, Slurm (``slurm.py``) included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.planning.flag import NodeRange, read_nodes
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source, SourceKind

_NUMBER = re.compile(r"[0-9]{1,10}\Z")


@dataclass(frozen=True)
class PlaceInJob:
    """The place in a job that ``by`` gave to this process; ``note`` is a clause that tells it to a user.

    ``said`` are values for ``Options``, by name of the field: ``nnodes``, ``nproc``, ``node_rank``, ``master_addr``,
    ``master_port``, ``socket_ifname`` and ``run_id``. ``devices`` are the entries of CUDA_VISIBLE_DEVICES that are this
    process's own where its neighbours on the host see them too.
    """

    by: SourceKind
    note: str
    said: Mapping[str, Resolved[Any]]
    devices: tuple[str, ...] = ()


def place(by: SourceKind, note: str, devices: tuple[str, ...] = (), **said: tuple[Any, str]) -> PlaceInJob:
    """Return a ``PlaceInJob`` of (value, variable) pairs; what is None or empty was not said."""
    given = {name: Resolved(value, Source(by, at)) for name, (value, at) in said.items() if value not in (None, "")}
    return PlaceInJob(by, note, given, devices)


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


_NODES = re.compile(r"[0-9]{1,9}(?::[0-9]{1,9})?\Z")
_WORKER = re.compile(r"-worker-([0-9]{1,6})\Z")


def find_kubeflow(environ: Mapping[str, str]) -> PlaceInJob | None:
    """Return what Kubeflow's Trainer (TrainJob) or training operator (PyTorchJob) says by ``PET_*``.

    Outside of Kubernetes such variables are stale ones. An elastic PyTorchJob names the rendezvous instead of a master
    and gives no rank: that is the number at the end of the pod's name.
    https://www.kubeflow.org/docs/components/trainer/user-guides/pytorch/
    """
    nodes = environ.get("PET_NNODES", "").strip()
    if "KUBERNETES_SERVICE_HOST" not in environ or not _NODES.match(nodes):
        return None
    endpoint_host, _, endpoint_port = environ.get("PET_RDZV_ENDPOINT", "").rpartition(":")
    addr = environ.get("PET_MASTER_ADDR") or environ.get("MASTER_ADDR") or endpoint_host.strip("[]")
    port = number(environ, "PET_MASTER_PORT", "MASTER_PORT") or number({"port": endpoint_port}, "port")
    rank = number(environ, "PET_NODE_RANK")
    if rank is None and (pod := _WORKER.search(environ.get("HOSTNAME", ""))):
        rank = int(pod[1])
    return place(
        "Kubeflow",
        f"Kubeflow: node {rank if rank is not None else '?'} of {nodes}",
        nnodes=(read_nodes(None, Resolved(nodes, Source("Kubeflow", "PET_NNODES"))), "PET_NNODES"),
        nproc=(number(environ, "PET_NPROC_PER_NODE") or None, "PET_NPROC_PER_NODE"),
        node_rank=(rank, "PET_NODE_RANK"),
        master_addr=(addr, "PET_MASTER_ADDR"),
        master_port=(port, "PET_MASTER_PORT"),
    )


def find_open_mpi(environ: Mapping[str, str]) -> PlaceInJob | None:
    """Return what Open MPI's mpirun says (https://docs.open-mpi.org/en/main/launching-apps/prerequisites.html)."""
    names = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
    return _find_mpi("Open MPI", environ, names, environ.get("PMIX_NAMESPACE", ""))


def find_pmi(environ: Mapping[str, str]) -> PlaceInJob | None:
    """Return what the Hydra launcher of MPICH and Intel MPI says by PMI."""
    names = ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID")
    return _find_mpi("PMI", environ, names, "")


def _find_mpi(
    by: SourceKind, environ: Mapping[str, str], names: tuple[str, str, str, str], job: str
) -> PlaceInJob | None:
    """Every MPI process is a node of torchrun's, with a rank for each GPU that is its own.

    MPI tells nobody the address of rank 0; where all processes are on one host it is that one.
    """
    size, rank, local_size, local_rank = (number(environ, name) for name in names)
    if not size or rank is None or rank >= size:
        return None
    local_size, local_rank = local_size or 1, local_rank or 0
    note = f"{by}: process {rank} of {size}, {local_size} on this host"
    if size == 1:
        return place(by, note)
    devices: tuple[str, ...] = ()
    processes = None
    if local_size > 1:
        devices = share_of(visible_entries(environ) or (), local_rank, local_size)
        processes = len(devices) or 1
    safe = re.sub(r"[^A-Za-z0-9.]+", "-", job).strip("-.")[:60]
    return place(
        by,
        note,
        nnodes=(NodeRange(size, size), names[0]),
        nproc=(processes, names[2]),
        node_rank=(rank, names[1]),
        master_addr=("localhost" if local_size == size else None, f"{names[2]} is {names[0]}"),
        run_id=(f"mpi-{safe}" if safe else None, "PMIX_NAMESPACE"),
        devices=devices,
    )


def find_sagemaker(environ: Mapping[str, str]) -> PlaceInJob | None:
    """Return what SageMaker says (https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md)."""
    here = environ.get("SM_CURRENT_HOST", "")
    try:
        listed: Any = json.loads(environ.get("SM_HOSTS", ""))
    except ValueError:
        return None
    if not isinstance(listed, list) or here not in listed:
        return None
    hosts = sorted((str(host) for host in listed), key=_by_number)
    interface = environ.get("SM_NETWORK_INTERFACE_NAME")
    several: dict[str, tuple[Any, str]] = {
        "node_rank": (hosts.index(here), "SM_CURRENT_HOST"),
        "master_addr": (hosts[0], "SM_HOSTS"),
        "socket_ifname": (f"={interface}" if interface else None, "SM_NETWORK_INTERFACE_NAME"),
    }
    return place(
        "SageMaker",
        f"SageMaker: {here}, node {hosts.index(here)} of {len(hosts)}",
        nnodes=(NodeRange(len(hosts), len(hosts)), "SM_HOSTS"),
        nproc=(number(environ, "SM_NUM_GPUS") or None, "SM_NUM_GPUS"),
        **(several if len(hosts) > 1 else {}),
    )


def _by_number(host: str) -> tuple[int, str]:
    """``algo-10`` comes after ``algo-2``; every node has to sort alike."""
    tail = re.search(r"([0-9]{1,9})\Z", host)
    return (int(tail[1]) if tail else 0, host)
