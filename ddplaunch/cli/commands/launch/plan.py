"""``ddplaunch plan``: prints everything that ``run`` would decide."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from ddplaunch.cli.configuration import with_configuration
from ddplaunch.cli.parsing.command import HOSTS, OUTPUT, Command, names_hosts
from ddplaunch.cli.parsing.typed_words import TypedLaunch
from ddplaunch.cli.prepare import prepare
from ddplaunch.cli.streams import answer, answer_json, tell_findings
from ddplaunch.cli.target import parse_target
from ddplaunch.planning.flag import Flag
from ddplaunch.ui.plan_view import compare_text, plan_json, plan_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, usage
from ddplaunch.values.resolved import Resolved, Source

COMMAND = Command(
    examples=(
        ("ddplaunch plan 2 --batch-size 8 -- train.py", "every value, with who decided it"),
        ("ddplaunch plan 8 --batch-size 8 --base-lr 1e-4", "the numbers alone, without a script"),
    ),
    options=(
        Flag("json", "switch", OUTPUT, "The whole plan as JSON."),
        Flag("compare", "text", OUTPUT, "The numbers of several sizes, a row for each: 1,2,4,8.", "SIZES"),
        *HOSTS,
    ),
)


def plan(typed: TypedLaunch, json: bool | None, compare: str | None, **hosts: Any) -> int:
    """Print the plan, or the numbers of several sizes. ``hosts`` are the flags that name other machines."""
    if compare and (json or names_hosts(hosts)):
        raise usage(
            "`--compare` with `--json`, or with other hosts",
            why="it is a table of this machine's numbers",
            fix="leave one of them out",
        )
    if names_hosts(hosts):
        from ddplaunch.cli.hosts import plan_hosts, run_on_hosts  # needed only for other hosts

        if asked_hosts := plan_hosts.asked_for(hosts):
            return run_on_hosts.run_on_hosts(typed, asked_hosts, "json" if json else "plan")
    target = None if typed.script is None else parse_target(typed.script)
    terminal = Terminal.of(sys.stdout)
    if compare is not None:
        source = Source("flag", "--compare")
        sizes = [replace(typed, said={**typed.said, "nproc": Resolved(size, source)}) for size in compare.split(",")]
        answer(compare_text([prepare(with_configuration(size), target).launch for size in sizes], terminal))
        return ExitStatus.DONE
    prepared = prepare(with_configuration(typed), target)
    findings, text = plan_text(prepared.launch, terminal, prepared.findings, prepared.facts)
    tell_findings(findings)
    if json:
        answer_json(plan_json(prepared.launch, prepared.findings))
    else:
        answer(text)
    return ExitStatus.DONE
