"""The output of `ddplaunch plan`: a launch in full with the source of every value, as tables or JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddplaunch.machine.facts import Facts
from ddplaunch.planning.launch import Launch, Variable
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.ui.launch_view import launch_rows, number_text, passed_text
from ddplaunch.ui.shell import command_lines
from ddplaunch.ui.speech import findings_text
from ddplaunch.ui.table import panel, section, table
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.resolved import Resolved, Source, value_of
from ddplaunch.values.secrets import hide_json, hide_value, hide_words

_SCHEMA = 1

#: Fields of ``Numbers`` as rows, each after those it follows from.
_NUMBER_TITLES = {
    "world_size": "world size",
    "batch_size": "batch size per rank",
    "accum": "accumulation",
    "global_batch_size": "effective batch size",
    "base_lr": "base learning rate",
    "base_batch_size": "base batch size",
    "lr_scaling": "scaling",
    "lr_factor": "factor",
    "lr": "learning rate",
    "base_warmup": "base warmup steps",
    "warmup_steps": "warmup steps",
    "dataset_size": "samples in the dataset",
    "steps_per_epoch": "steps per epoch",
    "dropped": "samples dropped per epoch",
    "padded": "samples padded per epoch",
}


def resolved_numbers(numbers: Numbers) -> dict[str, Resolved[Any]]:
    """Return the numbers that are known, by field name, in the order of the tables."""
    return {name: value for name in _NUMBER_TITLES if (value := getattr(numbers, name)) is not None}


_SCREEN = 38  # most lines of a plan with its findings, before one that says how many were left out


def plan_text(
    launch: Launch, terminal: Terminal, findings: Sequence[Finding] = (), facts: Facts | None = None
) -> tuple[list[Finding], str]:
    """Return the findings and what ``run`` would decide, as tables; with ``--verbose`` in full, with each variable.

    Else on one screen: beyond it warnings lose reason and fix, the script's last, then sections are left out. Errors,
    the summary, and what is passed stay.
    """
    placement, rows, verbose = launch.placement, launch_rows(launch, facts), value_of(launch.options.verbose, False)
    rows["cpus"] = f"{placement.text} ({placement.source})" if placement.text else ""
    summary = [(label, text) for label, text in rows.items() if label != "pass" and not (verbose and label == "env")]
    variables = [(one.name, f"{_value(one) or '(removed)'}: {one.reason} ({one.source})") for one in launch.environment]
    command = [] if launch.target is None else command_lines(launch.argv, terminal.width - 4)
    passed = panel([(one.number, passed_text(one)) for one in launch.passed], terminal)
    lines = section("launch", panel(summary, terminal), terminal) + section("passed to the script", passed, terminal)
    parts = {
        "numbers": _numbers(launch, terminal, verbose),
        "environment": panel(variables if verbose else (), terminal),
        "command": [f"  {line}" for line in command],
        "assumptions": [
            line
            for one in launch.numbers.assumptions
            if verbose or rows["lr"] or rows["steps"]  # a number that they are about arrives
            for line in terminal.lines(f"{one.text} ({one.source})", "  ", "    ")
        ],
    }
    room = sys.maxsize if verbose else _SCREEN
    shown, more = list(findings), findings_text(findings, terminal).count("\n")
    for place, one in enumerate(findings):
        if one.severity is Severity.WARNING and len(lines) + findings_text(shown, terminal).count("\n") > room:
            shown[place] = replace(one, why="", fix="")
    height = findings_text(shown, terminal).count("\n")
    more -= height
    for title, body in parts.items():
        part = section(title, body, terminal)
        if height + len(lines) + len(part) <= room:
            lines += part
        else:
            more += len(part)
    return shown, terminal.page([*lines, f"{more} more lines: `--verbose`"] if more else lines[:-1])


_OF_A_SIZE = ("world_size", "global_batch_size", "lr", "steps_per_epoch")
_OF_DOUBTS = {name: (name, "global_batch_size") for name in ("batch_size", "accum", "world_size")}


def _number(name: str, launch: Launch) -> str:
    """Return a number as text, with a question mark where another one may train; empty where it is unknown."""
    number: Resolved[Any] | None = getattr(launch.numbers, name)
    doubted = {each for family, _ in launch.doubts for each in _OF_DOUBTS.get(family, (family,))}
    return "" if number is None else number_text(number.value) + "?" * (name in doubted)


def _numbers(launch: Launch, terminal: Terminal, verbose: bool) -> list[str]:
    """Return the numbers with their sources; not ``verbose`` those that were neither typed nor are in the summary."""
    rows = [
        {"number": _NUMBER_TITLES[name], "value": _number(name, launch), "source": str(number.source)}
        for name, number in resolved_numbers(launch.numbers).items()
        if verbose or name in ("dropped", "padded") or number.source.kind not in ("flag", "default", "computed")
    ]
    return table(rows, terminal, ("value",))


def compare_text(launches: Sequence[Launch], terminal: Terminal) -> str:
    """Return the numbers that follow from the size, a row for each launch."""
    rows = [{_NUMBER_TITLES[name]: _number(name, launch) for name in _OF_A_SIZE} for launch in launches]
    return terminal.page(table(rows, terminal, rows[0]))


def _value(variable: Variable) -> str | None:
    return None if variable.value is None else hide_value(variable.name, variable.value)


# For other programs


def plan_json(launch: Launch, findings: Sequence[Finding] = ()) -> dict[str, Any]:
    """Return the launch as JSON values; every resolved one is ``{"value", "source", "detail"}``.

    The schema's number increases when a key is removed or changes its meaning, not when one is added.
    """
    topology = launch.topology
    resolved = ("nproc_per_node", "node_rank", "master_addr", "master_port")
    return {
        "schema": _SCHEMA,
        "run_id": launch.run_id,
        "target": launch.target and {**plain(launch.target), "args": hide_words(launch.target.args)},
        "topology": {
            "world_size": topology.world_size,
            "nnodes": _resolved_json(topology.nnodes),
            "min_nodes": topology.min_nodes,
            **{name: _resolved_json(getattr(topology, name)) for name in resolved},
        },
        "device": _resolved_json(launch.device),
        "gpus": plain(launch.gpus),
        "placement": {**plain(launch.placement), **_source(launch.placement.source)},
        "numbers": {
            **{name: _resolved_json(one) for name, one in resolved_numbers(launch.numbers).items()},
            "assumptions": [{"text": one.text, **_source(one.source)} for one in launch.numbers.assumptions],
        },
        "passed": [
            {
                "number": passed.number,
                "value": passed.value,
                "arguments": hide_words(passed.arguments),
                "declared_at": None if passed.at is None else str(passed.at),
                "note": passed.note,
                "variable": passed.variable,
            }
            for passed in launch.passed
        ],
        "missing": plain(launch.missing),
        "doubts": dict(launch.doubts),
        "receives": list(launch.receives),
        "environment": [
            {"name": one.name, "value": _value(one), **_source(one.source), "reason": one.reason}
            for one in launch.environment
        ],
        "argv": hide_words(launch.argv),
        "notes": hide_json(list(launch.notes)),
        "findings": hide_json(plain(findings)),
    }


def _resolved_json(resolved: Resolved[Any] | None) -> dict[str, Any] | None:
    """Return value, source and detail; None for an unset value."""
    return None if resolved is None else {"value": resolved.value, **_source(resolved.source)}


def _source(source: Source) -> dict[str, str]:
    return {"source": source.kind, "detail": source.detail}
