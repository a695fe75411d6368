"""A launch as data for other programs, each value with its source: JSON, YAML and shell exports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.launch.launch import Launch, Placement, Target, Variable
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.ui.plan_view import resolved_numbers
from ddplaunch.ui.shell import quote
from ddplaunch.ui.terminal import visible
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Resolved, Source
from ddplaunch.values.secrets import hide_json, hide_text, hide_value, hide_words, is_secret

_SCHEMA = 1


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
