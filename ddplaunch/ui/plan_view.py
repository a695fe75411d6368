"""What `ddplaunch plan` prints: a launch in full as tables, with the source of every value."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ddplaunch.launch.launch import Launch
from ddplaunch.machine.facts import Facts
from ddplaunch.scaling.numbers import Assumption, Numbers
from ddplaunch.ui.launch_view import batch_text, device_text, lr_text, nodes_text, number_text, target_text
from ddplaunch.ui.shell import command_lines
from ddplaunch.ui.table import section, table
from ddplaunch.ui.terminal import Terminal, visible, wrap
from ddplaunch.values.resolved import Resolved
from ddplaunch.values.secrets import hide_text, hide_value, hide_words

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
    """Return the numbers that are known, by field name (``lr:phase2``), in the order of the tables."""
    known: dict[str, Resolved[int] | Resolved[float] | Resolved[str]] = {}
    for name in _NUMBER_TITLES:
        if (found := getattr(numbers, name)) is not None:
            known[name] = found
        if name in ("base_lr", "lr"):
            parts = {rate.name: rate.base if name == "base_lr" else rate.lr for rate in numbers.rates}
            known.update({f"{name}:{rate}": part for rate, part in parts.items() if part is not None})
    return known


def _title(name: str) -> str:
    field, _, rate = name.partition(":")
    return f"{_NUMBER_TITLES[field]} {rate}".rstrip()


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
    fields = tuple(_NUMBER_TITLES)
    found = {name: None for each in known for name in each if name != "world_size"}
    names = sorted(found, key=lambda name: fields.index(name.partition(":")[0]))
    rows = [[_title(name), *(_cell(each.get(name)) for each in known)] for name in names]
    header = ["world size", *(str(each.world_size.value) for each in numbers)]
    needed = sum(max(map(len, column)) + 2 for column in zip(header, *rows, strict=True))
    if needed <= terminal.width or len(numbers) == 1:
        lines = table(header, rows, terminal, range(1, len(header)))
    else:
        lines = []
        for i, each in enumerate(numbers):
            one = table(["", ""], [[row[0], row[i + 1]] for row in rows], terminal, right=(1,))
            lines += section(f"world size {each.world_size.value}", one, terminal)
        lines.pop()
    shared = dict.fromkeys(assumption for each in numbers for assumption in each.assumptions)
    if shared:
        lines += ["", *section("assumptions", _assumptions(tuple(shared), terminal.width), terminal)[:-1]]
    return terminal.spell("\n".join(lines).rstrip("\n") + "\n")


def _cell(resolved: Resolved[int] | Resolved[float] | Resolved[str] | None) -> str:
    return "-" if resolved is None else number_text(resolved.value)


def _launch(launch: Launch, terminal: Terminal, facts: Facts | None) -> list[str]:
    topology = launch.topology
    rows = [
        ["runs", target_text(launch.target)],
        ["processes", f"{nodes_text(launch)} ({topology.nproc_per_node.source})"],
        ["device", f"{device_text(launch, facts)} ({launch.device.source})"],
        ["CPUs", f"{launch.placement.text} ({launch.placement.source})" if launch.placement.text else ""],
        ["batch", batch_text(launch)],
        ["learning rate", lr_text(launch.numbers)],
        *(["note", hide_text(note)] for note in launch.notes),
    ]
    return table(["", ""], [row for row in rows if row[1]], terminal)


def _numbers(numbers: Numbers, terminal: Terminal) -> list[str]:
    known = resolved_numbers(numbers)
    rows = [[_title(name), number_text(each.value), str(each.source)] for name, each in known.items()]
    return table(["number", "value", "source"], rows, terminal, right=(1,))


def _passed(launch: Launch, terminal: Terminal) -> list[str]:
    rows = []
    for each in launch.passed:
        place = "read by the script" if each.variable else str(each.at) if each.at else "a placeholder of yours"
        if each.arguments or each.variable or each.at is None:
            how = shlex.join(hide_words(each.arguments)) if each.arguments else each.variable or f"{{{each.number}}}"
            rows.append([each.number, each.value, how, ", ".join(part for part in (place, each.note) if part)])
        else:
            rows.append([each.number, each.value, each.note, f"{place} says so already"])
    rows += [[each.number, each.value, "not passed", each.reason] for each in launch.missing]
    return table(["number", "value", "as", "how it is understood"], rows, terminal)


def _environment(launch: Launch, terminal: Terminal) -> list[str]:
    """Return name, value and reason as a table; long values, which would squeeze the reasons, stand below it."""
    rows = []
    for variable in launch.environment:
        value = "(removed)" if variable.value is None else hide_value(variable.name, variable.value)
        rows.append([variable.name, value, f"{variable.reason} ({variable.source})"])
    short = [row for row in rows if len(row[1]) <= _SHORT]
    lines = table(["name", "value", "reason (source)"], short, terminal)
    for name, value, reason in (row for row in rows if len(row[1]) > _SHORT):
        lines += wrap(visible(f"{name}={value}"), terminal.width, "  ", "    ")
        lines += wrap(visible(reason), terminal.width, "      ", "      ")
    return lines


def _assumptions(assumptions: Sequence[Assumption], width: int) -> list[str]:
    lines: list[str] = []
    for each in assumptions:
        lines += wrap(f"{each.text} ({each.source})", width, "  ", "    ")
    return lines
