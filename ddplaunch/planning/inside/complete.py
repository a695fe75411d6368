"""Completes options from what Slurm or another system set up; what the user said stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddplaunch.machine.facts import Facts
from ddplaunch.planning.options import Options
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.resolved import Resolved, Source, Unavailable, value_of
from ddplaunch.values.words import duration_text

if TYPE_CHECKING:
    from ddplaunch.planning.inside.place_in_job import PlaceInJob

_EXPORTED = ("node_rank", "master_addr", "master_port")  # batch scripts export them in upper case
_SIZES = ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")  # Open MPI and MVAPICH; others set PMI_SIZE
#: Variables of which each system that is known sets one.
SIGNS = (
    *("SLURM_JOB_ID", "PET_NNODES", "SKYPILOT_NUM_NODES", "DSTACK_NODES_NUM", "SM_HOSTS", "PBS_NODEFILE"),
    *("LSB_MCPU_HOSTS", "LSB_HOSTS", "JOB_COMPLETION_INDEX", "RAY_RAYLET_PID"),
)


def recognise(environ: Mapping[str, str]) -> PlaceInJob | None:
    """Return this process's place in a job of Slurm or of a system of ``systems.toml``; None outside of all."""
    if not any(name in environ for name in SIGNS):
        return None
    from ddplaunch.planning.inside.slurm import find_slurm
    from ddplaunch.planning.inside.systems import find_system

    return find_slurm(environ) or find_system(environ)


def complete(options: Options, environ: Mapping[str, str]) -> Options:
    """Return the options, with those that were not said taken from the surrounding job.

    Flags and profile win over the job; so do MASTER_ADDR, MASTER_PORT and NODE_RANK of the environment, which
    ``resolve_topology`` reads: a batch script exports them on purpose. A launch that was told to use one node stays on
    it. Raises UsageError if mpirun starts the same launch several times, or a job has further hosts without the launch.
    """
    place = recognise(environ)
    sizes = [*_SIZES, *(["PMI_SIZE"] if place is None else [])]  # or srun's own
    size = next(filter(None, map(environ.get, sizes)), "1")
    if size != "1" and (options.nnodes is None or options.nnodes.value.most == 1):
        raise _started_by_mpi(size)
    if place is None:
        return options
    if place.alone_of and options.nnodes is None:
        raise _alone(place)
    nodes, nproc = options.nnodes or place.said.get("nnodes"), place.said.get("nproc")
    names = {"run_id"} if place.by == "Slurm" else set()
    if nodes is not None and nodes.value.most > 1:
        exported = {name for name in _EXPORTED if environ.get(name.upper(), "").strip()}
        names = {"nnodes", *_EXPORTED, "run_id"} - exported
    # The number of ranks of one of several tasks on a node holds on the CPU too.
    by_task = nproc is not None and nproc.source.detail.startswith("task")
    if options.gpus is None and (by_task or value_of(options.device, "auto") != "cpu"):
        names.add("nproc")
    values: dict[str, Any] = {
        name: place.said[name] for name in names & place.said.keys() if getattr(options, name) is None
    }
    return replace(options, **values, env=(*_own_devices(options, place), *options.env))


def _started_by_mpi(size: str) -> UsageError:
    return usage(
        f"mpirun started this command {size} times, and each would start all ranks",
        why="a process of MPI does not say where the others are",
        fix="`ddplaunch run --hosts a,b -- train.py` without mpirun; or one process on each node, with `--nnodes`, "
        "`--node-rank` and `--master-addr`",
        where="the shell's environment",
    )


def _alone(place: PlaceInJob) -> UsageError:
    hosts = ",".join(place.alone_of)
    return usage(
        f"{place.note.partition(':')[0]} gave this job several hosts, {hosts}, and starts this command on one",
        why="one node would train, and the others would stand idle",
        fix=f"`--hosts {hosts}` starts all of them by ssh; `--nnodes 1` trains on this one alone",
        where="the shell's environment",
        code="hosts-left-out",
    )


def _own_devices(options: Options, place: PlaceInJob) -> tuple[Resolved[tuple[str, str]], ...]:
    """Return the variable that hides other tasks' GPUs. ``--gpus`` will not do: it counts as nvidia-smi does."""
    if not place.devices or options.gpus is not None:
        return ()
    pair = ("CUDA_VISIBLE_DEVICES", ",".join(place.devices))
    return (Resolved(pair, Source(place.by, "this task's own GPUs")),)


def notes(environ: Mapping[str, str], now_s: float, nodes: int = 1) -> tuple[str, ...]:
    """Return one clause on who set up this job, with the time that is left if Slurm says it.

    A launch on several ``nodes`` needs no hint that there may be others.
    """
    place = recognise(environ)
    if place is None or not place.note or (nodes > 1 and place.by == "environment" and "nnodes" not in place.said):
        return ()
    from ddplaunch.planning.inside.place_in_job import first_number

    end_s = first_number(environ, "SLURM_JOB_END_TIME")
    return (place.note if end_s is None else f"{place.note}, {duration_text(int(end_s - now_s))} left",)


def within_allocation(facts: Facts, environ: Mapping[str, str]) -> Facts:
    """Return the facts with no more usable CPUs than Slurm gave to this task: not every cluster enforces that."""
    if "SLURM_JOB_ID" not in environ:
        return facts
    from ddplaunch.planning.inside.slurm import read_slurm

    slurm, cpu = read_slurm(environ), facts.cpu
    if slurm is None or slurm.cpus_per_task is None or not slurm.on_node or isinstance(cpu, Unavailable):
        return facts
    return replace(facts, cpu=replace(cpu, usable=min(cpu.usable, slurm.cpus_per_task)))
