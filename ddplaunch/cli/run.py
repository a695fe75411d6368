"""``ddplaunch run``: check, plan, show, record, and become torchrun."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ddplaunch.cli.configuration import with_configuration, working_directory
from ddplaunch.cli.prepare import Prepared, prepare
from ddplaunch.cli.say import answer, answer_json, tell, tell_findings
from ddplaunch.cli.target import parse_target, required
from ddplaunch.errors import ExitStatus, RefusedError, usage
from ddplaunch.finding import error
from ddplaunch.launch.capture import EXECUTED, VARIABLE
from ddplaunch.launch.durations import duration_s
from ddplaunch.launch.options import Options
from ddplaunch.launch.plan import Launch
from ddplaunch.launch.relaunch import RETURN
from ddplaunch.records.gpu_lock import GpuLocks
from ddplaunch.records.record import write
from ddplaunch.ui.dry_run import dry_run_text
from ddplaunch.ui.export import plan_json
from ddplaunch.ui.panel import launch_panel
from ddplaunch.ui.speech import refusal_text
from ddplaunch.ui.streams import styled, unicode_ok, width

if TYPE_CHECKING:
    from ddplaunch.launch.relaunch_order import Return

LONGEST_WORD = 32 * 4096  # bytes, with the null byte at the end


def run(
    options: Options,
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
        from ddplaunch.cli import hosts_flags, hosts_run  # for the launches that have other hosts

        return hosts_run.run_on_hosts(options, hosts_flags.asked_for(hosts), script, profile, bool(dry_run), bool(json))
    options = with_configuration(options, profile, working_directory())
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
    join_timeout: str | None,
    back: Return | None = None,
) -> int:
    target = parse_target(required(script))
    if "SLURM_JOB_ID" in os.environ and (status := start_step(options, bool(dry_run))) is not None:
        return status
    if join_timeout is not None:
        duration_s("--join-timeout", join_timeout)  # refused at once, not after the checks
    locks = GpuLocks()
    prepared = prepare(options, target, locks=None if dry_run else locks, relaunch=back.number if back else 0)
    refusing = prepared.refusing()
    if dry_run:
        _print_dry_run(prepared, bool(json))
        return ExitStatus.REFUSED if refusing else ExitStatus.DONE
    if refusing:
        tell_findings(prepared.findings)
        tell(refusal_text(refusing, width(sys.stderr), styled(sys.stderr)))
        return ExitStatus.REFUSED
    environment = environment_of(prepared.launch)
    timeout_s = _roll_call_s(prepared.launch, join_timeout, again=back is not None)
    told = _with_order(environment, prepared.launch, back, alone=timeout_s is None)
    refuse_too_long(prepared.launch.argv, told)
    prepared = replace(prepared, launch=meet_others(prepared, timeout_s, back))
    of = back.of if back else None
    noted = write(prepared.launch, sys.argv, environment, prepared.facts, prepared.findings, prepared.base, of)
    if not speaks_elsewhere(prepared.launch):
        _show(prepared, f"none: {noted}" if isinstance(noted, str) else shown_path(noted))
    execute(prepared.launch, told)


def _roll_call_s(launch: Launch, join_timeout: str | None, again: bool) -> float | None:
    """Return how long all nodes may take to meet, None where they do not."""
    if launch.topology.nnodes.value == 1:
        return None
    from ddplaunch.cli import roll_call  # sockets and comparisons, which one node has no need of

    return roll_call.wanted(launch, join_timeout, again)


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
    from ddplaunch.cli import roll_call

    evidence = back.evidence if back else None
    return roll_call.call_roll(prepared, timeout_s, speaks_elsewhere(launch), evidence)


def start_step(options: Options, dry_run: bool) -> int | None:
    """Become the srun that starts a step, in a Slurm allocation outside of one; None where there is no need to."""
    from ddplaunch.cli import own_step  # for the few launches that start there

    return own_step.start_step(options, os.environ, dry_run)


def environment_of(launch: Launch) -> dict[str, str]:
    """Return the environment that torchrun gets: this process's with the launch's variables set and removed."""
    environment = dict(os.environ)
    for variable in launch.environment:
        if variable.value is None:
            environment.pop(variable.name, None)
        else:
            environment[variable.name] = variable.value
    return environment


def shown_path(path: Path) -> str:
    """Return ``path`` relative to the working directory where it lies below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def execute(launch: Launch, environment: dict[str, str]) -> NoReturn:
    """Replace this process by torchrun."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it is None where its descriptor was closed
            stream.flush()
    if launch.options.trace is not None and VARIABLE in environment:
        environment[EXECUTED] = str(time.time())
    os.execve(launch.argv[0], list(launch.argv), environment)


def refuse_too_long(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise RefusedError for an argument or variable that the kernel would not pass on (MAX_ARG_STRLEN, execve(2))."""
    words = [(f"the argument `{word[:20]}…`", os.fsencode(word)) for word in argv if len(word) > LONGEST_WORD // 4]
    words += [
        (f"the variable `{name}`", os.fsencode(f"{name}={value}"))
        for name, value in environment.items()
        if len(name) + len(value) > LONGEST_WORD // 4
    ]
    for what, word in words:
        if len(word) >= LONGEST_WORD:
            raise RefusedError(
                error(
                    "argument-too-long",
                    f"{what} has {len(word)} bytes; Linux passes at most {LONGEST_WORD - 1} to a program",
                    why="torchrun could not be started with it",
                    fix="write it to a file, and pass the file's name",
                )
            )


def _print_dry_run(prepared: Prepared, json: bool) -> None:
    tell_findings(prepared.findings)
    if json:
        answer_json(plan_json(prepared.launch, prepared.findings))
    else:
        answer(dry_run_text(prepared.launch, unicode=unicode_ok(sys.stdout)))


def speaks_elsewhere(launch: Launch) -> bool:
    """Whether node 0 shows the launch to the same reader: srun and mpirun bring all nodes' output to one place."""
    rank = launch.topology.node_rank
    return rank is not None and rank.value > 0 and rank.source.kind in ("Slurm", "Open MPI", "PMI")


def _show(prepared: Prepared, record: str) -> None:
    tell(
        launch_panel(
            prepared.launch,
            prepared.findings,
            width(sys.stderr),
            styled(sys.stderr),
            unicode=unicode_ok(sys.stderr),
            facts=prepared.facts,
            record=record,
        )
    )
