"""A launch as data for other programs, each value with its source: JSON, YAML and shell exports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.launch.launch import Launch, Variable
from ddplaunch.machine.environ import redact
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.ui.plan_view import resolved_numbers
from ddplaunch.ui.shell import is_secret, quote
from ddplaunch.ui.terminal import visible
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Resolved, Source

_SCHEMA = 1


def plan_json(launch: Launch, findings: Sequence[Finding] = ()) -> dict[str, Any]:
    """Return the launch as JSON values; every resolved one is ``{"value", "source", "detail"}``.

    The schema's number rises when a key changes its meaning or goes away, not when one is added.
    """
    topology = launch.topology
    target = launch.target
    return {
        "schema": _SCHEMA,
        "run_id": launch.run_id,
        "target": None if target is None else {"kind": target.kind, "name": target.name, "args": list(target.args)},
        "topology": {
            "world_size": topology.world_size,
            "nnodes": _resolved_json(topology.nnodes),
            "min_nodes": topology.min_nodes,
            "nproc_per_node": _resolved_json(topology.nproc_per_node),
            "node_rank": _resolved_json(topology.node_rank),
            "master_addr": _resolved_json(topology.master_addr),
            "master_port": _resolved_json(topology.master_port),
        },
        "device": _resolved_json(launch.device),
        "gpus": None if launch.gpus is None else list(launch.gpus),
        "numbers": _numbers_json(launch.numbers),
        "passed": [
            {
                "number": passed.number,
                "value": passed.value,
                "arguments": list(passed.arguments),
                "declared_at": None if passed.at is None else str(passed.at),
            }
            for passed in launch.passed
        ],
        "environment": [_variable(variable) for variable in launch.environment],
        "argv": list(launch.argv),
        "notes": list(launch.notes),
        "findings": [finding_json(finding) for finding in findings],
    }


def _numbers_json(numbers: Numbers) -> dict[str, Any]:
    """Return the numbers that are known and the assumptions behind them."""
    known = {name: _resolved_json(resolved) for name, resolved in resolved_numbers(numbers).items()}
    said = [{"text": each.text, **_source(each.source)} for each in numbers.assumptions]
    return {**known, "assumptions": said}


def compare_json(numbers: Sequence[Numbers]) -> dict[str, Any]:
    """Return the numbers of several world sizes."""
    return {"schema": _SCHEMA, "numbers": [_numbers_json(each) for each in numbers]}


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON values."""
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "what": finding.what,
        "where": list(finding.where),
        "why": finding.why,
        "fix": finding.fix,
    }


def _resolved_json(resolved: Resolved[Any] | None) -> dict[str, Any] | None:
    """Return value, source and detail, or None for what nobody said."""
    return None if resolved is None else {"value": resolved.value, **_source(resolved.source)}


def _source(source: Source) -> dict[str, str]:
    return {"source": source.kind, "detail": source.detail}


def _variable(variable: Variable) -> dict[str, Any]:
    value = None if variable.value is None else redact(variable.name, variable.value)
    return {"name": variable.name, "value": value, **_source(variable.source), "reason": variable.reason}


def plan_env(launch: Launch) -> str:
    """Return the environment of the launch as shell text: ``export NAME=value`` and ``unset NAME``."""
    lines = []
    for variable in launch.environment:
        if not variable.name.isidentifier():
            lines.append(f"# {visible(variable.name)}: a shell cannot export this name")
        elif variable.value is None:
            lines.append(f"unset {variable.name}")
        elif is_secret(variable):
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
        plain = _PLAIN.match(data) and data.lower() not in _WORDS
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=None if plain else '"')

    Dumper.add_representer(str, text)
    return yaml.dump(
        value, Dumper=Dumper, sort_keys=False, default_flow_style=False, allow_unicode=unicode, width=float("inf")
    )
