"""Files that say a launch: accelerate's YAML, a hostfile of DeepSpeed or MPI, PyTorchJob and TorchX."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

#: accelerate's names that differ from its options, with the prefix that its file leaves out or adds.
_GROUPS = {"fsdp_config": "", "deepspeed_config": "", "dynamo_config": ""}
_NO_OPTIONS = ("compute_environment", "distributed_type", "rdzv_backend", "downcast_bf16", "same_network")


def parsed(data: bytes) -> Any:
    """Return the first document of a YAML (or JSON) file, None for what is no YAML."""
    import yaml  # takes 15 ms

    try:
        return next(iter(yaml.safe_load_all(data.decode("utf-8", "replace"))), None)
    except (yaml.YAMLError, RecursionError, ValueError):
        return None


def accelerate_options(document: Any) -> Mapping[str, str] | None:
    """Return what the file of `accelerate config` says, by option; None for another file.

    https://huggingface.co/docs/accelerate/package_reference/cli#accelerate-config
    """
    if not isinstance(document, dict) or not {"num_processes", "distributed_type", "num_machines"} & document.keys():
        return None
    found: dict[str, str] = {}
    kind = str(document.get("distributed_type", "")).upper()
    switches = {"FSDP": "--use-fsdp", "DEEPSPEED": "--use-deepspeed"}
    if kind in switches:
        found[switches[kind]] = ""
    for name, value in document.items():
        if isinstance(value, dict) and name in _GROUPS:
            found.update({_option(inner): _said(each) for inner, each in value.items() if each is not None})
        elif name not in _NO_OPTIONS and isinstance(value, (str, int, float)) and value is not False:
            found[_option(name)] = _said(value)
    return found


def _option(name: Any) -> str:
    return (
        "--" + str(name).replace("_", "-").removeprefix("dynamo-")
        if "dynamo" not in str(name)
        else f"--{name}".replace("_", "-")
    )


def _said(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def line_of(document: Any) -> list[str] | None:
    """Return the launch that a file says as the words of a line of its launcher, None for a file that says none."""
    if not isinstance(document, dict):
        return None
    if document.get("kind") == "PyTorchJob":
        return _pytorch_job(document)
    return None


def _pytorch_job(document: Mapping[str, Any]) -> list[str] | None:
    """https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/"""
    spec = document.get("spec") or {}
    replicas = spec.get("pytorchReplicaSpecs") or {}
    nodes = sum(int((each or {}).get("replicas", 1)) for each in replicas.values())
    first = replicas.get("Master") or replicas.get("Worker") or {}
    containers = ((first.get("template") or {}).get("spec") or {}).get("containers") or []
    if not containers or not nodes:
        return None
    command = [str(word) for word in (*(containers[0].get("command") or ()), *(containers[0].get("args") or ()))]
    if command[:2] in (["bash", "-c"], ["sh", "-c"], ["/bin/bash", "-c"], ["/bin/sh", "-c"]) and len(command) > 2:
        command = shlex.split(command[2])
    return command or None
