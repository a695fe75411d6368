"""``ddplaunch plan``: prints everything that ``run`` would decide."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from ddplaunch.cli.configuration import with_configuration
from ddplaunch.cli.parsing.command import HOSTS, OUTPUT, Command, names_hosts
from ddplaunch.cli.parsing.typed_words import TypedLaunch, whole_number
from ddplaunch.cli.prepare import Prepared, prepare
from ddplaunch.cli.streams import answer, answer_json, tell_findings
from ddplaunch.cli.target import parse_target
from ddplaunch.planning.flag import Flag
from ddplaunch.planning.launch import Target
from ddplaunch.planning.resolve import request_at
from ddplaunch.scaling.compute import compare_sizes
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.ui.plan_view import (
    compare_json,
    compare_text,
    plan_json,
    plan_text,
)
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, usage

COMMAND = Command(
    examples=(
        ("ddplaunch plan 2 --batch-size 8 -- train.py", "every value, with who decided it"),
        ("ddplaunch plan --compare 1,2,4,8 --batch-size 8 --base-lr 1e-4", "the numbers for several world sizes"),
    ),
    options=(
        Flag("compare", "text", OUTPUT, "The numbers for several world sizes, side by side.", "1,2,4,8"),
        Flag("json", "switch", OUTPUT, "The whole plan as JSON."),
        *HOSTS,
    ),
)


def plan(typed: TypedLaunch, compare: str | None, json: bool | None, **hosts: Any) -> int:
    """Print the plan in the requested format. ``hosts`` are the flags that name other machines."""
    if names_hosts(hosts):
        from ddplaunch.cli.hosts import plan_hosts, run_on_hosts  # needed only for other hosts

        if compare:
            why = "each host has a plan of its own"
            raise usage("`--compare` with other hosts", why=why, fix="leave `--compare` out", where="flag: --compare")
        if asked_hosts := plan_hosts.asked_for(hosts):
            return run_on_hosts.run_on_hosts(typed, asked_hosts, dry_run=True, json=bool(json), plan_only=True)
    options = with_configuration(typed)
    target = None if typed.script is None else parse_target(typed.script)
    prepared = prepare(options, target)
    sizes = None if compare is None else _compared(prepared, target, compare)
    tell_findings(prepared.findings)
    if json:
        answer_json(plan_json(prepared.launch, prepared.findings) if sizes is None else compare_json(sizes))
    elif sizes is not None:
        answer(compare_text(sizes, Terminal.of(sys.stdout)))
    else:
        answer(plan_text(prepared.launch, Terminal.of(sys.stdout), facts=prepared.facts))
    return ExitStatus.DONE


def _compared(prepared: Prepared, target: Target | None, text: str) -> tuple[Numbers, ...]:
    """Return the numbers for each world size.

    Raises UsageError unless all sizes are positive integers.
    """
    why, fix = "it takes world sizes, separated by commas", "`--compare 1,2,4,8`"
    sizes = [whole_number("--compare", word.strip(), "processes", why, fix, least=1) for word in text.split(",")]
    launch = prepared.launch
    at = partial(request_at, launch.options, target, launch.topology, prepared.script)
    return compare_sizes(at(launch.numbers.world_size), sizes, at)
