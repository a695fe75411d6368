"""Files that say a launch: accelerate's YAML, DeepSpeed's host file, a PyTorchJob, a component of TorchX."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ddplaunch.planning.convert.launch_words import Word, find_launcher, is_python, known, plain
from ddplaunch.planning.convert.launcher_options import ONE_PROCESS
from ddplaunch.planning.convert.torchx_app import line_of_component

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
    if not isinstance(document, dict) or "distributed_type" not in document:
        return None
    kind = "NO" if document["distributed_type"] is False else str(document["distributed_type"]).upper()
    found = {"distributed_type": kind}
    switches = {"FSDP": "--use-fsdp", "DEEPSPEED": "--use-deepspeed"}
    if kind in switches:
        found[switches[kind]] = ""
    for name, value in document.items():
        if isinstance(value, dict) and name in _GROUPS:
            found.update({_option(inner): _said(each) for inner, each in value.items() if each is not None})
        elif isinstance(value, dict) and any(value.values()):
            found[_option(name)] = "{}"
        elif name == "use_cpu" and kind not in ONE_PROCESS:
            continue  # it is read where one process starts
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


def line_of(name: str, data: bytes) -> list[Word] | None:
    """Return the launch that a file says as the words of a line of its launcher, None for a file that says none.

    A script that the file does not name is ``train.py``. Raises CannotSay for a component of TorchX whose values are no
    literals.
    """
    lines = [line.partition("#")[0].split() for line in data.decode("utf-8", "replace").splitlines()]
    hosts = [words for words in lines if words]
    if hosts and all(len(words) == 2 and words[1].startswith("slots=") for words in hosts):
        return plain(["deepspeed", "--no_local_rank", "--hostfile", name, "train.py"])
    if name.endswith(".py"):
        return line_of_component(data.decode("utf-8", "replace"))
    if not name.endswith((".yaml", ".yml", ".json")):
        return None
    document = parsed(data)
    if accelerate_options(document) is not None:
        return plain(["accelerate", "launch", "--config_file", name, "train.py"])
    is_job = isinstance(document, dict) and document.get("kind") == "PyTorchJob"
    return _pytorch_job(document) if is_job else None


def _pytorch_job(document: Mapping[str, Any]) -> list[Word] | None:
    """Return the line of the container; each replica is a node, and the operator says its rank in RANK.

    https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/
    """
    try:
        spec = document["spec"]
        replicas = spec["pytorchReplicaSpecs"]
        nodes = sum(int(each.get("replicas") or 1) for each in replicas.values())
        first = replicas.get("Worker") or replicas["Master"]
        container = first["template"]["spec"]["containers"][0]
        command = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
        if len(command) > 2 and command[0].rpartition("/")[2] in ("bash", "sh") and command[1].endswith("c"):
            command = shlex.split(command[2])
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        return None
    words = plain(command)
    place = find_launcher(words)
    if not words or (place is not None and place.launcher != "torchrun" and not place.launcher.startswith("torch.")):
        return words or None
    of_node = spec.get("nprocPerNode")
    said = plain([] if of_node is None else [f"--nproc_per_node={of_node}"])
    if nodes > 1:
        said.append(known(f"--nnodes={nodes}"))
        meeting = {"--node_rank": "RANK", "--master_addr": "MASTER_ADDR", "--master_port": "MASTER_PORT"}
        said += [Word(f'{option}="${name}"') for option, name in meeting.items()]
    if place is not None:
        return [*words[: place.options], *said, *words[place.options :]]  # what the command says itself comes later
    if not is_python(words[0]) or len(words) < 2:
        return [known("torchrun"), *said, known("--no-python"), *words]
    return [known("torchrun"), *said, *words[1:]]
