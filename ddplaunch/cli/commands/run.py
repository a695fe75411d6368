"""``ddplaunch run``: check, plan, show, record, and become torchrun."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddplaunch.cli.configuration import with_configuration, working_directory
from ddplaunch.cli.execute import environment_of, execute, refuse_too_long
from ddplaunch.cli.prepare import Prepared, prepare
from ddplaunch.cli.streams import answer, answer_json, tell, tell_findings
from ddplaunch.cli.target import parse_target, required
from ddplaunch.launch.launch import Launch
from ddplaunch.launch.options import Options, Said
from ddplaunch.launch.relaunch import RELAUNCHED
from ddplaunch.records.directory import path_text
from ddplaunch.records.gpu_lock import GpuLocks
from ddplaunch.records.write import write_record
from ddplaunch.ui.export import plan_json
from ddplaunch.ui.launch_view import launch_panel
from ddplaunch.ui.shell import dry_run_text
from ddplaunch.ui.speech import refusal_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, usage

if TYPE_CHECKING:
    from ddplaunch.launch.relaunch import Relaunched


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
        from ddplaunch.cli.hosts import plan_hosts, run_on_hosts  # for the launches that have other hosts

        return run_on_hosts.run_on_hosts(said, plan_hosts.asked_for(hosts), script, profile, bool(dry_run), bool(json))
    options = with_configuration(said, profile, working_directory())
    if RELAUNCHED not in os.environ:
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
    back: Relaunched | None = None,
) -> int:
    target = parse_target(required(script))
    if "SLURM_JOB_ID" in os.environ:
        from ddplaunch.cli.hosts.slurm_step import start_slurm_step  # for the launches in a job

        if (status := start_slurm_step(options, os.environ, bool(dry_run))) is not None:
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
    prepared = replace(prepared, launch=_meet_others(prepared, timeout_s, back))
    of = back.of if back else None
    noted = write_record(prepared.launch, sys.argv, environment, prepared.facts, prepared.findings, prepared.base, of)
    if not _speaks_elsewhere(prepared.launch):
        record = f"none: {noted}" if isinstance(noted, str) else path_text(noted)
        terminal = Terminal.of(sys.stderr)
        tell(launch_panel(prepared.launch, prepared.findings, terminal, facts=prepared.facts, record=record))
    execute(prepared.launch, told)


def _roll_call_s(launch: Launch, join_timeout: float | None, again: bool) -> float | None:
    """Return how long all nodes may take to meet, None where they do not."""
    if launch.topology.nnodes.value == 1:
        return None
    from ddplaunch.cli.hosts import meet_nodes  # sockets and comparisons, which one node has no need of

    return meet_nodes.wanted(launch, join_timeout, again)


def _with_order(environment: dict[str, str], launch: Launch, back: Relaunched | None, alone: bool) -> dict[str, str]:
    """Return the environment with what the plug-in needs to launch all of it again, if that was asked for."""
    if launch.options.relaunch is None:
        return environment
    from ddplaunch.cli import relaunching  # for the launches that ask for it

    return relaunching.with_order(environment, launch, back, relaunching.this_command(), alone)


def _meet_others(prepared: Prepared, timeout_s: float | None, back: Relaunched | None) -> Launch:
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

    failed = back.progress if back else None
    return meet_nodes.call_roll(prepared, timeout_s, _speaks_elsewhere(launch), failed)


def _print_dry_run(prepared: Prepared, json: bool) -> None:
    tell_findings(prepared.findings)
    if json:
        answer_json(plan_json(prepared.launch, prepared.findings))
    else:
        answer(dry_run_text(prepared.launch, Terminal.of(sys.stdout)))


def _speaks_elsewhere(launch: Launch) -> bool:
    """Whether node 0 shows the launch to the same reader: srun and mpirun bring all nodes' output to one place."""
    rank = launch.topology.node_rank
    return rank is not None and rank.value > 0 and rank.source.kind in ("Slurm", "Open MPI", "PMI")
