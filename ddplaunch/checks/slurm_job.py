"""Checks of a launch against the Slurm job and step that it runs in, as their environment variables describe it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddplaunch.checks.check import Findings, checks_in
from ddplaunch.machine.facts import HostFacts
from ddplaunch.planning.launch import Launch
from ddplaunch.values.finding import error, warning
from ddplaunch.values.words import count

if TYPE_CHECKING:
    from ddplaunch.planning.inside.slurm import Slurm

_ONE_TASK = "`srun --kill-on-bad-exit=1 --ntasks-per-node=1 ddplaunch run -- train.py`"


def slurm_node_rank_contradicts(environment: dict[str, str], launch: Launch) -> Findings:
    """The node rank differs from the one that Slurm gave this node.

    A batch script expands `$SLURM_NODEID` once, on the first node, so every node gets rank 0.
    https://github.com/huggingface/accelerate/issues/2816
    Remedy: leave the node rank out, because Slurm tells each node its own; or quote `$SLURM_NODEID`, so that each node
    expands it.
    """
    slurm, rank = _step(environment), launch.topology.node_rank
    if slurm is None or slurm.by_task or rank is None or rank.source.kind == "Slurm":
        return
    if launch.topology.nnodes.value != slurm.nodes or rank.value == slurm.node_rank:
        return
    leave = "`unset NODE_RANK`" if rank.source.kind == "environment" else "leave `--node-rank` out"
    yield error(
        "slurm-node-rank-contradicts",
        f"node rank {rank.value} was given, but Slurm made this node {slurm.node_rank} of {slurm.nodes}",
        why="a batch script expands `$SLURM_NODEID` once, on its first node, so all nodes get the same rank",
        fix=f"{leave}; Slurm tells each node its own: {_ONE_TASK}",
        where=str(rank.source),
    )


def slurm_nodes_contradict(environment: dict[str, str], launch: Launch) -> Findings:
    """The number of nodes differs from the number of nodes in the Slurm step.

    If the launch has more nodes, the rendezvous waits for nodes that never come; if it has one, every node trains a
    separate model.
    Remedy: leave the number out, or give srun the same one.
    """
    slurm, topology = _step(environment), launch.topology
    if slurm is None or topology.nnodes.source.kind == "Slurm":
        return
    allocated = slurm.tasks if slurm.by_task else slurm.nodes
    if topology.min_nodes <= allocated <= topology.nnodes.value:
        return
    nodes = topology.nnodes.value
    tasks = f"{allocated} tasks" if slurm.by_task else f"{allocated} nodes"
    yield error(
        "slurm-nodes-contradict",
        f"{count(nodes, 'node')} in this launch, {tasks} in the Slurm step",
        why="each task would train a model of its own"
        if nodes == 1
        else "the rendezvous would wait for nodes that never come, or turn some away",
        fix=f"leave the number of nodes out, or `srun --nodes={nodes} --ntasks-per-node=1 ddplaunch run -- train.py`",
        where=str(topology.nnodes.source),
    )


def slurm_tasks_contradict(environment: dict[str, str], launch: Launch) -> Findings:
    """The tasks of the Slurm step do not match the GPUs of the node.

    There must be either one task per node, which starts a rank for each GPU, or one task with one rank for each GPU.
    Any number in between puts several ranks on one GPU. https://github.com/Lightning-AI/pytorch-lightning/issues/18650
    Remedy: `--ntasks-per-node=1`.
    """
    slurm = _step(environment)
    if slurm is None or not slurm.by_task:
        return
    processes = launch.topology.nproc_per_node.value
    ranks = slurm.tasks_here * processes
    if not slurm.gpus_on_node:
        if processes > 1:
            yield warning(
                "slurm-tasks-contradict",
                f"{slurm.tasks_here} tasks on this node start {processes} ranks each: {ranks} ranks",
                why="srun starts every task, and every task its own ranks: the two numbers multiply",
                fix=f"one task on each node: {_ONE_TASK}; or one rank in each task: `ddplaunch run 1 -- train.py`",
                where=f"Slurm: {slurm.tasks} tasks on {count(slurm.nodes, 'node')}",
            )
        return
    from ddplaunch.planning.inside.place_in_job import visible_entries

    entries = visible_entries(environment)
    bound = entries is not None and len(entries) < slurm.gpus_on_node
    if ranks <= slurm.gpus_on_node and (bound or slurm.gpus_on_node % slurm.tasks_here == 0):
        return
    yield error(
        "slurm-tasks-contradict",
        f"{slurm.tasks_here} tasks on this node make {ranks} ranks, for {count(slurm.gpus_on_node, 'GPU')}",
        why="every task starts its own ranks, and ranks on one GPU fail in NCCL with `Duplicate GPU detected`",
        fix=f"one task on each node, which starts a rank for each GPU: {_ONE_TASK}",
        where=f"Slurm: {slurm.tasks} tasks on {count(slurm.nodes, 'node')}",
    )


def slurm_gpus_uneven(environment: dict[str, str], launch: Launch) -> Findings:
    """Slurm spread the GPUs of the job unevenly over its nodes.

    `--gpus=N` asks for N GPUs in total and leaves the split to Slurm: 6 GPUs on 2 nodes may become 5 and 1.
    Remedy: `--gpus-per-node`.
    """
    slurm, asked = _job(environment), environment.get("SLURM_GPUS", "")
    total = int(asked) if asked.isdecimal() else None
    if slurm is None or total is None or slurm.nodes == 1 or slurm.gpus_on_node is None or slurm.by_task:
        return
    if slurm.gpus_on_node * slurm.nodes == total:
        return
    share = -(-total // slurm.nodes)
    yield error(
        "slurm-gpus-uneven",
        f"{slurm.gpus_on_node} of the job's {total} GPUs are on this node of {slurm.nodes}",
        why="`--gpus` leaves the split to Slurm, and all nodes of a launch need the same number of ranks",
        fix=f"`#SBATCH --gpus-per-node={share}` instead of `--gpus={total}`",
        where="Slurm: SLURM_GPUS",
    )


def slurm_gpus_unused(environment: dict[str, str], launch: Launch) -> Findings:
    """Slurm gave GPUs to the job, but the launch runs on the CPU without `--device cpu`.

    torch or the driver cannot use the GPUs. Remedy: a torch that was built for them; `--device cpu` if the CPU is
    intended.
    """
    slurm = _job(environment)
    if slurm is None or not slurm.gpus_on_node or not slurm.on_node or launch.device.value != "cpu":
        return
    if launch.device.source.kind == "detected":
        yield warning(
            "slurm-gpus-unused",
            f"the launch runs on the CPU, but Slurm gave this node {count(slurm.gpus_on_node, 'GPU')}",
            why=f"{launch.device.source.detail or 'no GPU was found'}, and the job is charged for the GPUs",
            fix="`ddplaunch doctor` says what is wrong with torch or the driver; `--device cpu` if that is intended",
            where=str(launch.device.source),
        )


def slurm_elsewhere(environment: dict[str, str], host: HostFacts) -> Findings:
    """Slurm's variables name a task that does not run on this host.

    They were copied from another host, or outlived their job in a shell such as tmux's. Its nodes, GPUs and CPUs would
    be those of the launch. In containers, whose processes have other numbers, the check stays silent.
    Remedy: unset them, or start a job or step of your own.
    """
    if not (host.slurm_task or host.container):
        yield error(
            "slurm-elsewhere",
            f"the task of Slurm job {environment.get('SLURM_JOB_ID')} does not run on {host.name}",
            why="Slurm's variables decide nodes, GPUs and CPUs of a launch; these are another host's or an ended job's",
            fix="`unset ${!SLURM_@}` in bash, then the same command; a new `srun` starts it in a job",
            where="Slurm: SLURM_TASK_PID",
        )


def _job(environment: dict[str, str]) -> Slurm | None:
    if "SLURM_JOB_ID" not in environment:
        return None
    from ddplaunch.planning.inside.slurm import read_slurm  # not needed outside of Slurm

    return read_slurm(environment)


def _step(environment: dict[str, str]) -> Slurm | None:
    slurm = _job(environment)
    return None if slurm is None or slurm.step is None else slurm


CHECKS = checks_in(globals(), "slurm")
