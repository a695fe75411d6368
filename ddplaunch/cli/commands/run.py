"""``ddplaunch run``: check, plan, show, record, and become torchrun.

In a Slurm allocation but outside of a step it becomes the srun that starts one, and runs again in each of its tasks.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddplaunch.cli.configuration import with_configuration, working_directory
from ddplaunch.cli.execute import environment_of, execute, refuse_too_long
from ddplaunch.cli.prepare import Prepared, interpreter, prepare
from ddplaunch.cli.streams import answer, answer_json, tell, tell_findings
from ddplaunch.cli.target import parse_target, required
from ddplaunch.hosts.slurm.programs import with_end_of_job
from ddplaunch.launch.inside.slurm import Slurm, describe, read_slurm
from ddplaunch.launch.job.sbatch import step_argv
from ddplaunch.launch.launch import Launch
from ddplaunch.launch.options import Options, Said
from ddplaunch.launch.relaunch import RETURN
from ddplaunch.records.directory import path_text
from ddplaunch.records.gpu_lock import GpuLocks
from ddplaunch.records.write import write
from ddplaunch.ui.export import plan_json
from ddplaunch.ui.launch_view import launch_panel
from ddplaunch.ui.shell import command_lines, dry_run_text
from ddplaunch.ui.speech import refusal_text
from ddplaunch.ui.terminal import Terminal, wrap
from ddplaunch.values.finding import ExitStatus, RefusedError, error, usage

if TYPE_CHECKING:
    from ddplaunch.launch.relaunch import Return


def run(
    said: Said,
    script: list[str] | None,
    profile: str | None,
    dry_run: bool | None,
    json: bool | None,
    **hosts: Any,
) -> int:
    """Launch what ``script`` names; return only where nothing is to be launched. ``hosts`` are flags of its own."""
    if json and not dry_run:
        raise usage(
            "`--json` without `--dry-run`",
            why="stdout belongs to the script once it runs",
            fix="`ddplaunch run … --dry-run --json -- …`, or `ddplaunch plan … --json -- …`",
        )
    join_timeout = hosts.get("join_timeout")
    if any(value not in (None, []) for name, value in hosts.items() if name != "join_timeout"):
        from ddplaunch.cli.hosts import (
            plan_hosts,
            run_on_hosts,  # for the launches that have other hosts
        )

        return run_on_hosts.run_on_hosts(said, plan_hosts.asked_for(hosts), script, profile, bool(dry_run), bool(json))
    options = with_configuration(said, profile, working_directory())
    if RETURN not in os.environ:
        return _run(options, script, dry_run, json, join_timeout)
    from ddplaunch.cli import relaunching

    back = relaunching.claimed(os.environ)
    if back is None:
        return _run(options, script, dry_run, json, join_timeout)
    relaunching.pause(back, options)
    return relaunching.or_status_before(back, lambda: _run(options, script, dry_run, json, join_timeout, back))


def _run(
    options: Options,
    script: list[str] | None,
    dry_run: bool | None,
    json: bool | None,
    join_timeout: float | None,
    back: Return | None = None,
) -> int:
    target = parse_target(required(script))
    if "SLURM_JOB_ID" in os.environ and (status := _start_slurm_step(options, os.environ, bool(dry_run))) is not None:
        return status
    locks = GpuLocks()
    prepared = prepare(options, target, locks=None if dry_run else locks, relaunch=back.number if back else 0)
    refusing = prepared.refusing()
    if dry_run:
        _print_dry_run(prepared, bool(json))
        return ExitStatus.REFUSED if refusing else ExitStatus.DONE
    if refusing:
        tell_findings(prepared.findings)
        tell(refusal_text(refusing, Terminal.of(sys.stderr)))
        return ExitStatus.REFUSED
    environment = environment_of(prepared.launch)
    timeout_s = _roll_call_s(prepared.launch, join_timeout, again=back is not None)
    told = _with_order(environment, prepared.launch, back, alone=timeout_s is None)
    refuse_too_long(prepared.launch.argv, told)
    prepared = replace(prepared, launch=meet_others(prepared, timeout_s, back))
    of = back.of if back else None
    noted = write(prepared.launch, sys.argv, environment, prepared.facts, prepared.findings, prepared.base, of)
    if not speaks_elsewhere(prepared.launch):
        _show(prepared, f"none: {noted}" if isinstance(noted, str) else path_text(noted))
    execute(prepared.launch, told)


def _roll_call_s(launch: Launch, join_timeout: float | None, again: bool) -> float | None:
    """Return how long all nodes may take to meet, None where they do not."""
    if launch.topology.nnodes.value == 1:
        return None
    from ddplaunch.cli.hosts import meet_nodes  # sockets and comparisons, which one node has no need of

    return meet_nodes.wanted(launch, join_timeout, again)


def _with_order(environment: dict[str, str], launch: Launch, back: Return | None, alone: bool) -> dict[str, str]:
    """Return the environment with what the plug-in needs to launch all of it again, if that was asked for."""
    if launch.options.relaunch is None:
        return environment
    from ddplaunch.cli import relaunching  # for the launches that ask for it

    return relaunching.with_order(environment, launch, back, relaunching.this_command(), alone)


def meet_others(prepared: Prepared, timeout_s: float | None, back: Return | None) -> Launch:
    """Return the launch once all of several nodes are there; at once where no roll is called, ``timeout_s`` is None.

    Raises RefusedError where nodes are missing or do not fit together, or do not want to launch again after ``back``.
    """
    launch = prepared.launch
    if back is not None:
        launch = replace(launch, notes=(f"relaunch {back.number}, because {back.of} failed", *launch.notes))
        prepared = replace(prepared, launch=launch)
    if timeout_s is None:
        return launch
    from ddplaunch.cli.hosts import meet_nodes

    evidence = back.evidence if back else None
    return meet_nodes.call_roll(prepared, timeout_s, speaks_elsewhere(launch), evidence)


def _print_dry_run(prepared: Prepared, json: bool) -> None:
    tell_findings(prepared.findings)
    if json:
        answer_json(plan_json(prepared.launch, prepared.findings))
    else:
        answer(dry_run_text(prepared.launch, Terminal.of(sys.stdout)))


def speaks_elsewhere(launch: Launch) -> bool:
    """Whether node 0 shows the launch to the same reader: srun and mpirun bring all nodes' output to one place."""
    rank = launch.topology.node_rank
    return rank is not None and rank.value > 0 and rank.source.kind in ("Slurm", "Open MPI", "PMI")


def _show(prepared: Prepared, record: str) -> None:
    tell(
        launch_panel(
            prepared.launch,
            prepared.findings,
            Terminal.of(sys.stderr),
            facts=prepared.facts,
            record=record,
        )
    )


_WIDTH = 100
#: The job, set for its step, so that a Slurm that hides its variables there starts no further one.
_DEPTH = "DDPLAUNCH_STEP"


def _start_slurm_step(options: Options, environ: Mapping[str, str], dry_run: bool) -> int | None:
    """Become srun where the allocation has nodes that this process alone would not reach; None where it has not.

    The batch script runs on the first node only, the shell of ``salloc`` often on the login node; without this they
    would train there alone. Raises RefusedError where there is no srun.
    """
    slurm = read_slurm(environ)
    if slurm is None or environ.get(_DEPTH) == slurm.job:
        return None
    if slurm.step is None and not _one_node(options):
        _refuse_components(slurm, environ)
    if not _wanted(slurm, options):
        return None
    step = step_argv(slurm, environ)
    words = [*step, *interpreter(), "-m", "ddplaunch", *sys.argv[1:]]
    if dry_run:
        answer("\n".join([f"# {describe(slurm)}", *command_lines(words, _WIDTH)]) + "\n")
        return ExitStatus.DONE
    found = shutil.which(step[0], path=environ.get("PATH"))
    if found is None:
        raise RefusedError(
            error(
                "srun-missing",
                f"Slurm job {slurm.label} has {slurm.nodes} nodes, and there is no `srun` on PATH",
                why="the other nodes are reached by a step, which srun starts",
                fix="put Slurm's programs on PATH, often by `module load slurm`",
            )
        )
    tell("\n".join(_became(slurm, step)) + "\n")
    os.execve(found, words, {**with_end_of_job(environ), _DEPTH: slurm.job})


def _became(slurm: Slurm, step: tuple[str, ...]) -> list[str]:
    tasks = "one task on each node" if "--ntasks-per-node=1" in step else "the tasks that it asked for"
    said = wrap(f"{describe(slurm)}; {tasks}, by", Terminal.of(sys.stderr).width, "ddplaunch: ", "  ")
    return [*said, *(f"  {line}" for line in command_lines(step, Terminal.of(sys.stderr).width - 4))]


def _wanted(slurm: Slurm, options: Options) -> bool:
    """A shell on a node of a job with one node is in the right place already, as is a launch of one node there."""
    if slurm.step is not None:
        return False
    if _one_node(options):
        return not slurm.on_node
    return slurm.nodes > 1 or not slurm.on_node


def _one_node(options: Options) -> bool:
    """Whether the user said that the launch has one node."""
    return options.nnodes is not None and options.nnodes.value.most == 1


def _refuse_components(slurm: Slurm, environ: Mapping[str, str]) -> None:
    """Raise RefusedError in a heterogeneous job: its first component is all that a process outside of a step sees.

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
