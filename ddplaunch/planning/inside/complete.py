"""Options completed by what Slurm, Kubeflow, MPI or SageMaker set up; what the user said stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddplaunch.machine.facts import Facts
from ddplaunch.planning.options import Options
from ddplaunch.values.resolved import Resolved, Source, Unavailable, value_of
from ddplaunch.values.words import duration_text

if TYPE_CHECKING:
    from ddplaunch.planning.inside.place_in_job import PlaceInJob

_EXPORTED = ("node_rank", "master_addr", "master_port")  # upper case, in batch scripts
_SIGNS = ("SLURM_JOB_ID", "PET_NNODES", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SM_HOSTS")


def recognise(environ: Mapping[str, str]) -> PlaceInJob | None:
    """Return what another launcher set up; of several, the one closest to this process.

    mpirun inside of a Slurm job starts its processes itself, so it comes first, unless srun started them and set PMI's
    variables as well. None outside of them all.
    """
    if not any(name in environ for name in _SIGNS):
        return None
    from ddplaunch.planning.inside.place_in_job import find_kubeflow, find_open_mpi, find_pmi, find_sagemaker
    from ddplaunch.planning.inside.slurm import find_slurm, read_slurm

    slurm = read_slurm(environ)
    in_step = slurm is not None and slurm.step is not None
    order = (find_kubeflow, find_open_mpi, find_slurm, find_pmi, find_sagemaker)
    if not in_step:
        order = (find_kubeflow, find_open_mpi, find_pmi, find_slurm, find_sagemaker)
    return next((found for find in order if (found := find(environ)) is not None), None)


def complete(options: Options, environ: Mapping[str, str]) -> Options:
    """Return the options with what the surroundings know in place of what was not said.

    Flags and profile win over the surroundings; so do MASTER_ADDR, MASTER_PORT and NODE_RANK of the environment, which
    ``resolve_topology`` reads: a batch script exports them on purpose. A launch that was told to be on one node stays
    there.
    """
    found = recognise(environ)
    if found is None:
        return options
    nodes, nproc = options.nnodes or found.said.get("nnodes"), found.said.get("nproc")
    wanted = {"run_id"} if found.by == "Slurm" else set()
    if nodes is not None and nodes.value.most > 1:
        exported = {name for name in _EXPORTED if environ.get(name.upper(), "").strip()}
        wanted = {"nnodes", *_EXPORTED, "run_id", "socket_ifname"} - exported
    # A number of ranks that each task of several on a node was given counts on the CPU too.
    by_task = nproc is not None and nproc.source.detail.startswith(("task", "OMPI", "MPI"))
    if options.gpus is None and (by_task or value_of(options.device, "auto") != "cpu"):
        wanted.add("nproc")
    kept: dict[str, Any] = {
        name: found.said[name] for name in wanted & found.said.keys() if getattr(options, name) is None
    }
    return replace(options, **kept, env=(*_own_devices(options, found), *options.env))


def _own_devices(options: Options, found: PlaceInJob) -> tuple[Resolved[tuple[str, str]], ...]:
    """Hide the neighbours' GPUs by the variable whose entries they are; ``--gpus`` would count as nvidia-smi does."""
    if not found.devices or options.gpus is not None:
        return ()
    pair = ("CUDA_VISIBLE_DEVICES", ",".join(found.devices))
    return (Resolved(pair, Source(found.by, "this task's own GPUs")),)


def notes(environ: Mapping[str, str], now_s: float) -> tuple[str, ...]:
    """Return one clause on who set up this job, with the time that it has left where Slurm says it."""
    found = recognise(environ)
    if found is None:
        return ()
    from ddplaunch.planning.inside.place_in_job import number

    end_s = number(environ, "SLURM_JOB_END_TIME") if found.by == "Slurm" else None
    return (found.note if end_s is None else f"{found.note}, {duration_text(int(end_s - now_s))} left",)


def within_allocation(facts: Facts, environ: Mapping[str, str]) -> Facts:
    """Return the facts with no more usable CPUs than Slurm gave to this task, which not every cluster enforces."""
    if "SLURM_JOB_ID" not in environ:
        return facts
    from ddplaunch.planning.inside.slurm import read_slurm

    slurm, cpu = read_slurm(environ), facts.cpu
    if slurm is None or slurm.cpus_per_task is None or not slurm.on_node or isinstance(cpu, Unavailable):
        return facts
    return replace(facts, cpu=replace(cpu, usable=min(cpu.usable, slurm.cpus_per_task)))
