"""A submission as Kubernetes objects: an Indexed Job, and for several nodes the Service by which they meet.

``kubernetes.yaml`` beside this file is their template; this module computes its values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddplaunch.planning.job.submission import Submission, impossible_value
from ddplaunch.values.finding import usage

_QUANTITY = re.compile(r"([1-9][0-9]{0,9})(?:([KMGT])i?)?\Z", re.IGNORECASE)
_SECRET = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)/([A-Za-z0-9._-]+)\Z")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*\Z")
_OF_SECRETS = "it is VARIABLE=SECRET/KEY; a Secret is named by lower-case letters, digits, `-` and `.`"
_VOLUME = re.compile(r"(/[^:]*|[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?):(/[^:]+)(?::(ro|rw))?\Z")
_DEFAULT_SHM = "16Gi"


def decide_manifest(submission: Submission, flags: Mapping[str, Any], command: Sequence[str]) -> list[dict[str, Any]]:
    """Return the objects for the cluster; ``command`` is ``run`` with its arguments, for ddplaunch in the image.

    Raises UsageError for a missing image, a missing number of GPUs, and values that the cluster would refuse.
    """
    image = flags.get("image")
    if not image or not _IMAGE.match(image):
        raise impossible_value(
            "image", image or "", "the pods need an image that holds ddplaunch, torch and the script", "IMAGE:TAG"
        )
    if submission.gpus_per_node is None and submission.processes is None:
        raise usage(
            "no GPUs are asked for",
            why="a pod sees the GPUs that its resources name, and no other",
            fix="`--gpus-per-node 4`, or `ddplaunch submit 4 --device cpu …` for four ranks on the CPU",
            where="flag: --gpus-per-node",
        )
    volumes, mounts = _volumes(flags)
    values = {
        "name": submission.name,
        "nodes": submission.nodes,
        "time_s": submission.time_s,
        "service": submission.name if submission.nodes > 1 else None,
        "grace_s": None if submission.grace_s is None else submission.grace_s + 10,  # more than the ranks get
        "image": image,
        "command": _command(submission, command),
        "env": [_secret(text) for text in flags.get("secret") or ()],
        "limits": _limits(submission),
        "volumes": volumes,
        "mounts": mounts,
    }
    service, job = _filled(_template(), values)
    return [service, job] if submission.nodes > 1 else [job]


def _template() -> list[Any]:
    import yaml  # 20 ms, for manifests only

    return list(yaml.safe_load_all(Path(__file__).with_name("kubernetes.yaml").read_text(encoding="utf-8")))


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of the template with its values filled in, without the fields that stay empty."""
    if isinstance(part, str) and part.startswith("$"):
        return values[part[1:]]
    if isinstance(part, dict):
        fields = {key: _filled(value, values) for key, value in part.items()}
        return {key: value for key, value in fields.items() if value not in (None, [], {})}
    return [_filled(value, values) for value in part] if isinstance(part, list) else part


def _command(submission: Submission, command: Sequence[str]) -> list[str]:
    """Return a pod's command; Kubernetes itself replaces ``$(JOB_COMPLETION_INDEX)`` by the pod's index."""
    words = _literal(["ddplaunch", *command])
    if submission.nodes > 1:
        first = f"{submission.name}-0.{submission.name}"
        place = ["--nnodes", str(submission.nodes), "--node-rank", "$(JOB_COMPLETION_INDEX)", "--master-addr", first]
        at = words.index("--")
        words[at:at] = place
    return words


def _shm(size: str | None) -> str:
    """Return the size limit of /dev/shm, which counts as memory of the pod."""
    if size is not None and size.isdecimal():
        raise impossible_value("shm_size", size, "without a unit it would be so many bytes", f"{size}Gi")
    return _DEFAULT_SHM if size is None else _quantity("shm_size", size)


def _volumes(flags: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of a pod and where it mounts them.

    The first is memory for /dev/shm: a container's default of 64 MiB is too little for NCCL and DataLoaders.
    https://kubernetes.io/docs/concepts/storage/volumes/#emptydir
    """
    memory = {"medium": "Memory", "sizeLimit": _shm(flags.get("shm_size"))}
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": memory}]
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    for text in flags.get("volume") or ():
        _add_volume(text, volumes, mounts)
    return volumes, mounts


def _add_volume(text: str, volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]) -> None:
    match = _VOLUME.match(text)
    if match is None:
        why = "it is CLAIM:/PATH, or /HOST/PATH:/PATH, and `:ro` to make it read-only"
        raise impossible_value("volume", text, why, "datasets:/data:ro")
    source: dict[str, Any] = {"persistentVolumeClaim": {"claimName": match[1]}}
    if match[1].startswith("/"):
        source = {"hostPath": {"path": match[1]}}
    name = f"volume-{len(volumes)}"
    volumes.append({"name": name, **source})
    at = os.path.normpath(match[2])
    if any(mount["mountPath"] == at for mount in mounts):
        raise impossible_value("volume", text, f"`{at}` has a volume already", "datasets:/data:ro")
    mounts.append({"name": name, "mountPath": at, **({"readOnly": True} if match[3] == "ro" else {})})


def _limits(submission: Submission) -> dict[str, Any]:
    """Return the pod's resource limits; Kubernetes uses them as requests too, because the template has none."""
    limits: dict[str, Any] = {}
    if submission.gpus_per_node is not None:
        limits["nvidia.com/gpu"] = submission.gpus_per_node
    if submission.cpus_per_task is not None:
        limits["cpu"] = submission.cpus_per_task
    if submission.memory is not None:
        limits["memory"] = _quantity("mem", submission.memory)
    return limits


def _literal(words: Sequence[str]) -> list[str]:
    """Return arguments escaped for Kubernetes, which replaces ``$(NAME)`` by a value and ``$$`` by one ``$``.

    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    for word in words:
        if any(0xD800 <= ord(char) <= 0xDFFF or char == "\0" for char in word):
            raise usage(
                "an argument of the script is not UTF-8",
                why="a manifest is text, and text cannot carry these bytes",
                fix="write it to a file in the image, and pass the file's name",
            )
    return [word.replace("$", "$$") for word in words]


def _secret(text: str) -> dict[str, Any]:
    match = _SECRET.match(text)
    if match is None:
        raise impossible_value("secret", text.partition("=")[0], _OF_SECRETS, "HF_TOKEN=hf/token")
    return {"name": match[1], "valueFrom": {"secretKeyRef": {"name": match[2], "key": match[3]}}}


def _quantity(flag: str, text: str) -> str:
    """Return a quantity in Kubernetes' spelling: Slurm's ``200G`` is binary and becomes ``200Gi``."""
    match = _QUANTITY.match(text)
    if match is None:
        raise impossible_value(flag, text, "it is a number and Ki, Mi, Gi or Ti", "16Gi")
    unit = match[2] or ("M" if flag == "mem" else "")  # Slurm counts in MiB
    return f"{match[1]}{unit.upper()}i" if unit else match[1]
