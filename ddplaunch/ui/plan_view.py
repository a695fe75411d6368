"""What `ddplaunch plan` prints: a launch in full as tables, with the source of every value."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields

from ddplaunch.launch.launch import Launch
from ddplaunch.machine.environ import redact
from ddplaunch.machine.facts import Facts
from ddplaunch.scaling.numbers import Assumption, Numbers
from ddplaunch.ui.launch_view import batch_text, device_text, lr_text, nodes_text, number_text, target_text
from ddplaunch.ui.shell import command_lines
from ddplaunch.ui.table import section, table
from ddplaunch.ui.terminal import Terminal, visible, wrap
from ddplaunch.values.resolved import Resolved

_SHORT = 12  # cells; values of variables that are longer do not fit beside their reasons

#: Fields of ``Numbers`` as rows, in the order in which one follows from another.
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


def resolved_numbers(numbers: Numbers) -> dict[str, Resolved[int] | Resolved[float] | Resolved[str]]:
    """Return the numbers that are known, by field name, in the order of the tables."""
    found = {field.name: getattr(numbers, field.name) for field in fields(numbers)}
    return {name: found[name] for name in _NUMBER_TITLES if isinstance(found[name], Resolved)}


def _value_text(value: int | float | str) -> str:
    """Return a value for a table."""
    return value if isinstance(value, str) else number_text(value)


def plan_text(launch: Launch, terminal: Terminal, *, facts: Facts | None = None) -> str:
    """Return everything that ``run`` would decide, as tables."""
    lines = section("launch", _launch(launch, terminal, facts), terminal)
    lines += section("numbers", _numbers(launch.numbers, terminal), terminal)
    lines += section("passed to the script", _passed(launch, terminal), terminal)
    lines += section("environment", _environment(launch, terminal), terminal)
    if launch.target is not None:
        lines += section(
            "command",
            [f"  {line}" for line in command_lines(launch.argv, terminal.width - 4, terminal.unicode)],
            terminal,
        )
    lines += section("assumptions", _assumptions(launch.numbers.assumptions, terminal.width), terminal)
    return terminal.spell("\n".join(lines[:-1]) + "\n")


def compare_text(numbers: Sequence[Numbers], terminal: Terminal) -> str:
    """Return the numbers of several world sizes side by side; where they do not fit, below each other."""
    known = [resolved_numbers(each) for each in numbers]
    names = [name for name in _NUMBER_TITLES if name != "world_size" and any(name in each for each in known)]
    rows = [[_NUMBER_TITLES[name], *(_cell(each.get(name)) for each in known)] for name in names]
    header = ["world size", *(str(each.world_size.value) for each in numbers)]
    needed = 2 + sum(max(len(row[i]) for row in [header, *rows]) + 2 for i in range(len(header))) - 2
    if needed <= terminal.width or len(numbers) == 1:
        lines = table(header, rows, terminal, frozenset(range(1, len(header))))
    else:
        lines = []
        for i, each in enumerate(numbers):
            one = table(["", ""], [[row[0], row[i + 1]] for row in rows], terminal, frozenset({1}))
            lines += section(f"world size {each.world_size.value}", one, terminal)
        lines.pop()
    shared = dict.fromkeys(assumption for each in numbers for assumption in each.assumptions)
    if shared:
        lines += ["", *section("assumptions", _assumptions(tuple(shared), terminal.width), terminal)[:-1]]
    return terminal.spell("\n".join(lines).rstrip("\n") + "\n")


def _cell(resolved: Resolved[int] | Resolved[float] | Resolved[str] | None) -> str:
    return "-" if resolved is None else _value_text(resolved.value)


def _launch(launch: Launch, terminal: Terminal, facts: Facts | None) -> list[str]:
    topology = launch.topology
    rows = [
        ["runs", target_text(launch.target)],
        ["processes", f"{nodes_text(launch)} ({topology.nproc_per_node.source})"],
        ["device", f"{device_text(launch, facts)} ({launch.device.source})"],
        ["batch", batch_text(launch)],
        ["learning rate", lr_text(launch.numbers)],
        *(["note", note] for note in launch.notes),
    ]
    return table(["", ""], [row for row in rows if row[1]], terminal)


def _numbers(numbers: Numbers, terminal: Terminal) -> list[str]:
    known = resolved_numbers(numbers)
    rows = [[_NUMBER_TITLES[name], _value_text(each.value), str(each.source)] for name, each in known.items()]
    return table(["number", "value", "source"], rows, terminal, frozenset({1}))


def _passed(launch: Launch, terminal: Terminal) -> list[str]:
    rows = []
    for each in launch.passed:
        how = shlex.join(each.arguments) if each.arguments else f"{{{each.number}}}"
        place = "a placeholder of yours" if not each.arguments else str(each.at) if each.at else "not declared"
        rows.append([each.number, each.value, how, place])
    return table(["number", "value", "as", "declared at"], rows, terminal) if rows else []


def _environment(launch: Launch, terminal: Terminal) -> list[str]:
    """Return name, value and reason as a table; long values, which would squeeze the reasons, stand below it."""
    rows = []
    for variable in launch.environment:
        value = "(removed)" if variable.value is None else redact(variable.name, variable.value)
        rows.append([variable.name, value, f"{variable.reason} ({variable.source})"])
    short = [row for row in rows if len(row[1]) <= _SHORT]
    lines = table(["name", "value", "reason (source)"], short, terminal) if short else []
    for name, value, reason in (row for row in rows if len(row[1]) > _SHORT):
        lines += wrap(visible(f"{name}={value}"), terminal.width, "  ", "    ")
        lines += wrap(visible(reason), terminal.width, "      ", "      ")
    return lines


def _assumptions(assumptions: Sequence[Assumption], width: int) -> list[str]:
    lines: list[str] = []
    for each in assumptions:
        lines += wrap(f"{each.text} ({each.source})", width, "  ", "    ")
    return lines
