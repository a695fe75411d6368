"""A submission as Kubernetes objects: an Indexed Job, and for several nodes the Service by which they meet.

Their shape is in ``kubernetes.yaml`` beside this file; here are its values.
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
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?\Z")
_VOLUME = re.compile(r"(/[^:]*|[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?):(/[^:]+)(?::(ro|rw))?\Z")
_LABEL = r"(?:[A-Za-z0-9.-]+/)?[A-Za-z0-9][A-Za-z0-9._-]*"
_SELECTOR = re.compile(rf"({_LABEL})=([A-Za-z0-9._-]*)\Z")
_TOLERATION = re.compile(rf"({_LABEL})(?:=([A-Za-z0-9._-]*))?(?::(NoSchedule|PreferNoSchedule|NoExecute))?\Z")
_RDMA = re.compile(rf"({_LABEL})(?:=([1-9][0-9]{{0,3}}))?\Z")
_DEFAULT_SHM = "16Gi"
_OF_NAMES = "names have lower-case letters, digits, `-` and `.`"


def decide_manifest(
    submission: Submission, asked: Mapping[str, Any], command: Sequence[str], paths: Sequence[tuple[str, str]] = ()
) -> list[dict[str, Any]]:
    """Return the objects for the cluster; ``command`` is ``run`` with what follows, for the image's ddplaunch.

    ``paths`` are files and folders that the launch names, each with its flag. Raises UsageError for no image or GPUs,
    values that the cluster would refuse, and paths that would be gone with the pod.
    """
    image = asked.get("image")
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
    volumes, mounts = _volumes(submission, asked)
    _refuse_paths_of_no_volume(paths, mounts)
    values = {
        "name": submission.name,
        "namespace": _name("namespace", asked.get("namespace")),
        "queue": _name("queue", asked.get("queue")),
        "nodes": submission.nodes,
        "time_s": submission.time_s,
        "service": submission.name if submission.nodes > 1 else None,
        "grace_s": None if submission.grace_s is None else submission.grace_s + 10,  # some more than the ranks get
        "image": image,
        "command": _command(submission, command),
        "env": [_secret(text) for text in asked.get("secret") or ()],
        "limits": _limits(submission, asked),
        "volumes": volumes,
        "mounts": mounts,
        **_placement(asked),
    }
    service, job = _filled(_template(), values)
    return [service, job] if submission.nodes > 1 else [job]


def _template() -> list[Any]:
    import yaml  # 20 ms, for manifests only

    return list(yaml.safe_load_all(Path(__file__).with_name("kubernetes.yaml").read_text(encoding="utf-8")))


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of the template with its values; a field of which nothing is left is left out."""
    if isinstance(part, str) and part.startswith("$"):
        return values[part[1:]]
    if isinstance(part, dict):
        fields = {key: _filled(value, values) for key, value in part.items()}
        return {key: value for key, value in fields.items() if value not in (None, [], {})}
    return [_filled(value, values) for value in part] if isinstance(part, list) else part


def _command(submission: Submission, command: Sequence[str]) -> list[str]:
    """Return what a pod runs; Kubernetes itself puts the pod's index in the place of ``$(JOB_COMPLETION_INDEX)``."""
    words = _literal(["ddplaunch", *command])
    if submission.nodes > 1:
        first = f"{submission.name}-0.{submission.name}"
        place = ["--nnodes", str(submission.nodes), "--node-rank", "$(JOB_COMPLETION_INDEX)", "--master-addr", first]
        at = words.index("--")
        words[at:at] = place
    return words


def _name(flag: str, text: str | None) -> str | None:
    return _matched(flag, _NAME, text, _OF_NAMES, "training")[0] if text else None


def _refuse_paths_of_no_volume(paths: Sequence[tuple[str, str]], mounts: Sequence[Mapping[str, Any]]) -> None:
    """Raise UsageError for a path outside of all volumes, and for one to be written in a volume that is read only."""
    writable = {str(mount["mountPath"]): not mount.get("readOnly") for mount in mounts}
    for flag, path in paths:
        place = os.path.normpath(path)
        holder = max((at for at in writable if f"{place}/".startswith(f"{at.rstrip('/')}/")), key=len, default=None)
        claim = f"`--volume CLAIM:{place if place.startswith('/') else '/' + place.lstrip('./')}`"
        if holder is None:
            why = "what is written there is gone with the pod" if flag != "--data" else "a pod has what its image has"
            own = ", or leave `--data` out if the image holds it" if flag == "--data" else ""
            relative = "" if path.startswith("/") else ", and a relative path depends on the image; name a full path"
            raise usage(
                f"`{flag} {path}` is in no volume",
                why=why + relative,
                fix=f"{claim} mounts a PersistentVolumeClaim there{own}",
                where=f"flag: {flag}",
            )
        if flag != "--data" and not writable[holder]:
            raise usage(
                f"`{flag} {path}` is in a volume that is read only",
                why=f"`{holder}` was given with `:ro`",
                fix="leave `:ro` out, or name a path in another volume",
                where=f"flag: {flag}",
            )


def _shm(submission: Submission, asked: str | None) -> str:
    """Return the size of /dev/shm, which counts as memory of the pod: by default 16 GiB, or half of little memory."""
    if asked is not None and asked.isdecimal():
        raise impossible_value("shm_size", asked, "without a unit it would be so many bytes", f"{asked}Gi")
    memory = None if submission.memory is None else _bytes(_quantity("mem", submission.memory))
    if asked is None:
        small = memory is not None and memory < 2 * _bytes(_DEFAULT_SHM)
        return f"{max(1, (memory or 0) >> 21)}Mi" if small else _DEFAULT_SHM
    size = _quantity("shm_size", asked)
    if memory is not None and _bytes(size) >= memory:
        raise usage(
            f"`--shm-size {asked}` leaves nothing of `--mem {submission.memory}`",
            why="what lies in /dev/shm counts as memory of the pod, which is killed when that is full",
            fix=f"`--mem` for more than both, or `--shm-size {max(1, memory >> 21)}Mi`",
            where="flag: --shm-size",
        )
    return size


def _bytes(quantity: str) -> int:
    """Return what a quantity with a binary unit, or none, is in bytes."""
    number, unit = quantity.rstrip("KMGTi"), quantity.lstrip("0123456789")
    return int(number) << 10 * " KMGT".index(unit[:1] or " ")


def _volumes(submission: Submission, asked: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of a pod and where it mounts them.

    One is memory for /dev/shm: a container's 64 MiB are too little for NCCL and DataLoaders.
    https://kubernetes.io/docs/concepts/storage/volumes/#emptydir
    """
    memory = {"medium": "Memory", "sizeLimit": _shm(submission, asked.get("shm_size"))}
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": memory}]
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    for text in asked.get("volume") or ():
        _add_volume(text, volumes, mounts)
    return volumes, mounts


def _placement(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the pods need of the nodes: which ones, their registry's Secrets, their network."""
    of_label = "it is the label of a node, KEY=VALUE"
    labels = [
        _matched("node_selector", _SELECTOR, text, of_label, "gpu=h100") for text in asked.get("node_selector") or ()
    ]
    secrets = [
        _matched("image_pull_secret", _NAME, text, _OF_NAMES, "registry")
        for text in asked.get("image_pull_secret") or ()
    ]
    host_network = bool(asked.get("host_network"))
    return {
        "node_selector": {label[1]: label[2] for label in labels},
        "tolerations": [_toleration(text) for text in asked.get("toleration") or ()],
        "image_pull_secrets": [{"name": secret[0]} for secret in secrets],
        "host_network": host_network or None,
        "dns_policy": "ClusterFirstWithHostNet" if host_network else None,  # or the pods' names are not found
        # memory for the network card is locked: https://github.com/Mellanox/k8s-rdma-shared-dev-plugin
        "security_context": {"capabilities": {"add": ["IPC_LOCK"]}} if asked.get("rdma") else None,
    }


def _matched(flag: str, pattern: re.Pattern[str], text: str, why: str, example: str) -> re.Match[str]:
    match = pattern.match(text)
    if match is None:
        raise impossible_value(flag, text, why, example)
    return match


def _add_volume(text: str, volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]) -> None:
    why = "it is CLAIM:/PATH, or /HOST/PATH:/PATH, with `:ro` behind it for one that is only read"
    match = _matched("volume", _VOLUME, text, why, "datasets:/data:ro")
    source: dict[str, Any] = {"persistentVolumeClaim": {"claimName": match[1]}}
    if match[1].startswith("/"):
        source = {"hostPath": {"path": match[1]}}
    name = next((str(each["name"]) for each in volumes if each.items() >= source.items()), f"volume-{len(volumes)}")
    if all(each["name"] != name for each in volumes):
        volumes.append({"name": name, **source})
    at = os.path.normpath(match[2])
    if any(mount["mountPath"] == at for mount in mounts):
        raise impossible_value("volume", text, f"`{at}` has a volume already", "datasets:/data:ro")
    mounts.append({"name": name, "mountPath": at, **({"readOnly": True} if match[3] == "ro" else {})})


def _toleration(text: str) -> dict[str, str]:
    why = "it is a node's taint: KEY, KEY=VALUE or KEY=VALUE:EFFECT, the effect NoSchedule or NoExecute"
    match = _matched("toleration", _TOLERATION, text, why, "nvidia.com/gpu:NoSchedule")
    value = {"operator": "Exists"} if match[2] is None else {"operator": "Equal", "value": match[2]}
    return {"key": match[1], **value, **({"effect": match[3]} if match[3] else {})}


def _limits(submission: Submission, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Limits; what is not requested apart is requested as limited."""
    limits: dict[str, Any] = {}
    if submission.gpus_per_node is not None:
        limits["nvidia.com/gpu"] = submission.gpus_per_node
    if submission.cpus_per_task is not None:
        limits["cpu"] = submission.cpus_per_task
    if submission.memory is not None:
        limits["memory"] = _quantity("mem", submission.memory)
    for text in asked.get("rdma") or ():
        why = "it is what the cluster calls its network cards, with their number: `kubectl describe node` lists it"
        match = _matched("rdma", _RDMA, text, why, "rdma/hca_shared_devices_a=1")
        limits[match[1]] = int(match[2] or 1)
    return limits


def _literal(words: Sequence[str]) -> list[str]:
    """Return arguments that mean themselves: Kubernetes replaces ``$(NAME)`` by a value and ``$$`` by one ``$``.

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
    """Return a quantity in Kubernetes' spelling: ``200G`` of Slurm's is binary, ``200Gi`` there."""
    match = _QUANTITY.match(text)
    if match is None:
        raise impossible_value(flag, text, "it is a number with Ki, Mi, Gi or Ti behind it", "16Gi")
    unit = match[2] or ("M" if flag == "mem" else "")  # Slurm counts in MiB
    return f"{match[1]}{unit.upper()}i" if unit else match[1]
