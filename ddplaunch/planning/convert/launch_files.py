"""Files that say a launch: accelerate's YAML, DeepSpeed's host file, a PyTorchJob."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

#: The parts of accelerate's file that hold options of one subject.
_GROUPS = ("fsdp_config", "deepspeed_config", "dynamo_config")
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


def line_of(name: str, data: bytes) -> list[str] | None:
    """Return the launch that a file says as the words of a line of its launcher, None for a file that says none.

    A script that the file does not name is ``train.py``.
    """
    lines = [line.partition("#")[0].split() for line in data.decode("utf-8", "replace").splitlines()]
    hosts = [words for words in lines if words]
    if hosts and all(len(words) == 2 and words[1].startswith("slots=") for words in hosts):
        return ["deepspeed", "--no_local_rank", "--hostfile", name, "train.py"]
    if not name.endswith((".yaml", ".yml", ".json")):
        return None
    document = parsed(data)
    if accelerate_options(document) is not None:
        return ["accelerate", "launch", "--config_file", name, "train.py"]
    is_job = isinstance(document, dict) and document.get("kind") == "PyTorchJob"
    return _pytorch_job(document) if is_job else None


def _pytorch_job(document: Mapping[str, Any]) -> list[str] | None:
    """https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/"""
    try:
        replicas = document["spec"]["pytorchReplicaSpecs"]
        first = replicas.get("Master") or replicas["Worker"]
        container = first["template"]["spec"]["containers"][0]
        command = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
        if len(command) > 2 and command[0].rpartition("/")[2] in ("bash", "sh") and command[1].endswith("c"):
            command = shlex.split(command[2])
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        return None
    return command or None
