"""What `ddplaunch plan` prints: a launch in full with the source of every value, as tables, JSON, YAML or exports."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.machine.facts import Facts
from ddplaunch.planning.launch import Launch, Placement, Target, Variable
from ddplaunch.scaling.numbers import Assumption, Numbers
from ddplaunch.ui.launch_view import batch_text, device_text, lr_text, nodes_text, number_text, target_text
from ddplaunch.ui.shell import command_lines, quote
from ddplaunch.ui.table import section, table
from ddplaunch.ui.terminal import Terminal, visible, wrap
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Resolved, Source
from ddplaunch.values.secrets import hide_json, hide_text, hide_value, hide_words, is_secret

_SCHEMA = 1
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


# For other programs


def plan_json(launch: Launch, findings: Sequence[Finding] = ()) -> dict[str, Any]:
    """Return the launch as JSON values; every resolved one is ``{"value", "source", "detail"}``.

    The schema's number rises when a key changes its meaning or goes away, not when one is added.
    """
    topology = launch.topology
    resolved = ("nproc_per_node", "node_rank", "master_addr", "master_port")
    return {
        "schema": _SCHEMA,
        "run_id": launch.run_id,
        "target": _target(launch.target),
        "topology": {
            "world_size": topology.world_size,
            "nnodes": _resolved_json(topology.nnodes),
            "min_nodes": topology.min_nodes,
            **{name: _resolved_json(getattr(topology, name)) for name in resolved},
        },
        "device": _resolved_json(launch.device),
        "gpus": plain(launch.gpus),
        "placement": _placement(launch.placement),
        "numbers": _numbers_json(launch.numbers),
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
        "receives": list(launch.receives),
        "environment": [_variable(variable) for variable in launch.environment],
        "argv": hide_words(launch.argv),
        "notes": [hide_text(note) for note in launch.notes],
        "findings": hide_json(plain(findings)),
    }


def _target(target: Target | None) -> dict[str, Any] | None:
    return None if target is None else {**plain(target), "args": hide_words(target.args)}


def _placement(placement: Placement) -> dict[str, Any]:
    """Return the CPUs of each local rank, empty where ranks are not bound, who binds them, and what was decided."""
    by = ("torchrun" if placement.torchrun else "ddplaunch") if placement.cpus else None
    said = {"cpus": list(placement.cpus), "bound_by": by, "text": placement.text, "threads": placement.threads or None}
    return {**said, **_source(placement.source)}


def _numbers_json(numbers: Numbers) -> dict[str, Any]:
    """Return the numbers that are known and the assumptions behind them."""
    known = {name: _resolved_json(resolved) for name, resolved in resolved_numbers(numbers).items()}
    said = [{"text": each.text, **_source(each.source)} for each in numbers.assumptions]
    return {**known, "assumptions": said}


def compare_json(numbers: Sequence[Numbers]) -> dict[str, Any]:
    """Return the numbers of several world sizes."""
    return {"schema": _SCHEMA, "numbers": [_numbers_json(each) for each in numbers]}


def _resolved_json(resolved: Resolved[Any] | None) -> dict[str, Any] | None:
    """Return value, source and detail, or None for what nobody said."""
    return None if resolved is None else {"value": resolved.value, **_source(resolved.source)}


def _source(source: Source) -> dict[str, str]:
    return {"source": source.kind, "detail": source.detail}


def _variable(variable: Variable) -> dict[str, Any]:
    value = None if variable.value is None else hide_value(variable.name, variable.value)
    return {"name": variable.name, "value": value, **_source(variable.source), "reason": variable.reason}


def plan_env(launch: Launch) -> str:
    """Return the environment of the launch as shell text: ``export NAME=value`` and ``unset NAME``."""
    lines = []
    for variable in launch.environment:
        if not variable.name.isidentifier():
            lines.append(f"# {visible(variable.name)}: a shell cannot export this name")
        elif variable.value is None:
            lines.append(f"unset {variable.name}")
        elif is_secret(variable.name, variable.value):
            lines.append(f"# {variable.name}: its value is not printed")
        else:
            lines.append(f"export {variable.name}={quote(variable.value)}")
    return "".join(f"{line}\n" for line in lines)


def plan_yaml(launch: Launch, findings: Sequence[Finding] = ()) -> str:
    """Return ``plan_json`` as YAML, ASCII only."""
    return yaml_text(plan_json(launch, findings), unicode=False)


# What every YAML reader takes for the same text; all else is quoted, as are the words that YAML 1.1 reads as booleans.
# PyYAML alone would write 1e3 as it is, which Kubernetes' reader takes for a number.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9._/-]*\Z")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def yaml_text(value: Mapping[str, Any], *, unicode: bool = True) -> str:
    """Return JSON values as block-style YAML in their own order, each text on one line."""
    import yaml  # 20 ms, for `plan --yaml` and manifests only

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
        bare = _PLAIN.match(data) and data.lower() not in _WORDS
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=None if bare else '"')

    Dumper.add_representer(str, text)
    return yaml.dump(
        value, Dumper=Dumper, sort_keys=False, default_flow_style=False, allow_unicode=unicode, width=float("inf")
    )
