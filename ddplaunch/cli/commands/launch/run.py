"""``ddplaunch run``: check, plan, show, record, and become torchrun."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any, NoReturn

from ddplaunch.cli.configuration import with_configuration
from ddplaunch.cli.execute import detach as detach_from_terminal
from ddplaunch.cli.execute import environment_of, new_token, record_and_execute, refuse_too_long
from ddplaunch.cli.parsing.command import HOSTS, OUTPUT, Command, names_hosts
from ddplaunch.cli.parsing.typed_words import TypedLaunch
from ddplaunch.cli.prepare import Prepared, errors, prepare
from ddplaunch.cli.streams import answer, tell_findings, tell_refusal
from ddplaunch.cli.target import parse_target, required
from ddplaunch.planning.flag import Flag
from ddplaunch.planning.launch import Launch
from ddplaunch.planning.options import Options
from ddplaunch.records.gpu_lock import GpuLocks
from ddplaunch.records.own.run_lock import hold_run, refuse_taken
from ddplaunch.ui.shell import dry_run_text
from ddplaunch.values.finding import ExitStatus, usage

COMMAND = Command(
    examples=(
        ("ddplaunch run 4 --batch-size 8 -- train.py --epochs 20", "four processes, 8 samples each"),
        ("ddplaunch run 2 --device cpu --dry-run -- train.py", "the torchrun command; nothing is started"),
    ),
    options=(
        Flag("dry_run", "switch", OUTPUT, "Print the launch as shell text; start nothing."),
        Flag("detach", "switch", OUTPUT, "Launch, print the run's id and go on without this terminal.", short="-d"),
        *HOSTS,
    ),
    more="Everything after `--` is your script and its arguments: train.py, -m package.module, or any program.",
)


def run(typed: TypedLaunch, dry_run: bool | None, detach: bool | None, **hosts: Any) -> int:
    """Launch the script; returns only if this process does not become torchrun. ``hosts`` are flags that name hosts."""
    if detach and not dry_run and (status := detach_from_terminal()) is not None:
        return status
    if names_hosts(hosts):
        from ddplaunch.cli.hosts import plan_hosts, run_on_hosts  # needed only for other hosts

        if asked_hosts := plan_hosts.asked_for(hosts):
            return run_on_hosts.run_on_hosts(typed, asked_hosts, "commands" if dry_run else "")
    options = with_configuration(typed)
    return _run(options, typed.script, bool(dry_run), hosts["join_timeout"])


def _run(options: Options, script: list[str] | None, dry_run: bool, join_timeout: float | None) -> int:
    target = parse_target(required(script))
    if "SLURM_JOB_ID" in os.environ:
        from ddplaunch.cli.hosts.slurm_step import start_slurm_step  # needed only in a job

        if (status := start_slurm_step(options.nnodes, os.environ, dry_run)) is not None:
            return status
    if options.debug is not None and find_spec("debugpy") is None:
        raise usage(
            "debugpy is not installed",
            why="with it the rank of `--debug` waits for a debugger",
            fix="`python -m pip install debugpy`",
        )
    locks = None if dry_run else GpuLocks()
    prepared = prepare(options, target, locks=locks)
    refusing = errors(prepared.findings)
    if dry_run:
        tell_findings(prepared.findings)
        answer(dry_run_text(prepared.launch))
        return ExitStatus.REFUSED if refusing else ExitStatus.DONE
    if refusing:
        tell_refusal(prepared.findings)
        return ExitStatus.REFUSED
    _start(prepared, join_timeout)


def _start(prepared: Prepared, join_timeout: float | None) -> NoReturn:
    """Meet the other nodes if there are any, show and record the launch, and become torchrun.

    Raises RefusedError where nodes are missing or do not fit together.
    """
    launch, timeout_s = prepared.launch, None
    refuse_taken(prepared.base, launch)
    if launch.topology.nnodes.value != 1:
        from ddplaunch.cli.hosts import meet_nodes  # sockets and comparisons that one node does not need

        timeout_s = meet_nodes.wanted(launch, join_timeout)
    refuse_too_long(launch.argv, environment_of(launch))
    silent = _speaks_elsewhere(launch)
    if timeout_s is not None:
        launch = meet_nodes.call_roll(prepared, timeout_s, silent)
    lock, token = hold_run(prepared.base, launch), new_token()
    record_and_execute(prepared, launch, environment_of(launch), lock, sys.argv, token, silent=silent)


def _speaks_elsewhere(launch: Launch) -> bool:
    """Whether node 0 shows the launch to the same reader: srun brings all nodes' output together."""
    rank = launch.topology.node_rank
    return rank is not None and rank.value > 0 and rank.source.kind == "Slurm"
