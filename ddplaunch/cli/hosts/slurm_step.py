"""In a Slurm allocation but outside a step, ``run`` becomes the srun that starts a step with a task on each node."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace

from ddplaunch.cli.prepare import interpreter
from ddplaunch.cli.streams import answer, say
from ddplaunch.planning.flag import NodeRange
from ddplaunch.planning.inside.slurm import Slurm, describe_slurm, read_slurm
from ddplaunch.planning.job.sbatch import step_argv
from ddplaunch.ui.shell import command_lines
from ddplaunch.values.finding import ExitStatus, RefusedError, error
from ddplaunch.values.resolved import Resolved
from ddplaunch.values.variable_names import JOIN_SECRET

_WIDTH = 100
#: Set to the job's id for its step, so that no further step is started where Slurm hides its own variables in a step.
_DEPTH = "DDPLAUNCH_STEP"


def start_slurm_step(nodes: Resolved[NodeRange] | None, environ: Mapping[str, str], dry_run: bool) -> int | None:
    """Become srun where the allocation has nodes that this process cannot reach; return None where it has none.

    ``nodes`` is the user's choice. No step is needed on a node of a job with one node, or for a launch of one node
    there. With ``dry_run`` it prints the command and returns an exit status.

    A batch script runs on the first node only, the shell of ``salloc`` often on the login node; without a step they
    would train there alone. Raises RefusedError where there is no srun.
    """
    slurm = read_slurm(environ)
    if slurm is None or slurm.step is not None or environ.get(_DEPTH) == slurm.job:
        return None
    one_node = nodes is not None and nodes.value.most == 1
    if not one_node:
        _refuse_components(slurm, environ)
    if slurm.on_node and (one_node or slurm.nodes == 1):
        return None
    if nodes is not None:  # the user may want fewer than the job has
        slurm = replace(slurm, nodes=min(slurm.nodes, nodes.value.most))
    step = step_argv(slurm, environ)
    words = [*step, *interpreter(), "-m", "ddplaunch", *sys.argv[1:]]
    if dry_run:
        answer("\n".join([f"# {describe_slurm(slurm)}", *command_lines(words, _WIDTH)]) + "\n")
        return ExitStatus.DONE
    program = shutil.which(step[0], path=environ.get("PATH"))
    if program is None:
        raise RefusedError(
            error(
                "srun-missing",
                f"Slurm job {slurm.label} has {slurm.nodes} nodes, and there is no `srun` on PATH",
                why="the other nodes are reached by a step, which srun starts",
                fix="put Slurm's programs on PATH, often by `module load slurm`",
            )
        )
    tasks = "one task on each node" if "--ntasks-per-node=1" in step else "the tasks that it asked for"
    say(f"ddplaunch: {describe_slurm(slurm)}; {tasks}, by `{shlex.join(step)}`")
    os.execve(program, words, {JOIN_SECRET: os.urandom(16).hex(), **environ, _DEPTH: slurm.job})


def _refuse_components(slurm: Slurm, environ: Mapping[str, str]) -> None:
    """Raise RefusedError in a heterogeneous job: a process outside a step sees only the first component.

    https://slurm.schedmd.com/heterogeneous_jobs.html
    """
    size = environ.get("SLURM_HET_SIZE", "")
    if not size.isdigit() or int(size) < 2:
        return
    groups = ",".join(str(number) for number in range(int(size)))
    raise RefusedError(
        error(
            "slurm-het-job",
            f"Slurm job {slurm.label} is heterogeneous, of {size} components; this process is in the first",
            why="the nodes of the other components would do nothing",
            fix=f"`srun --het-group={groups} --kill-on-bad-exit=1 --ntasks-per-node=1 ddplaunch run -- train.py` if "
            "all nodes have the same number of GPUs; `ddplaunch run 1xN -- train.py` for this node alone",
        )
    )
